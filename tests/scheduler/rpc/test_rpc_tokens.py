"""A scheduler that requires tokens: each call of each service with each kind of token, and the calls about tokens."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio
from rpc_site import duration
from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncEngine
from token_site import NUMBERS, SERVED, Site, guarded, path

from headrace.errors import (
    InvalidFieldError,
    PermissionDeniedError,
    TokenNotFoundError,
    UnauthenticatedError,
)
from headrace.v1 import identity_pb2 as pb
from headrace.v1 import identity_pb2_grpc, study_pb2
from headrace.v1.identity_pb2_grpc import IdentityServiceStub
from headrace.v1.study_pb2_grpc import StudyServiceStub
from headrace_services.identity.permissions import PERMISSIONS, Permission
from headrace_services.identity.roles import Role
from headrace_services.identity.tokens import new_token
from headrace_services.scheduler.engine.janitor import Janitor
from headrace_services.scheduler.rpc.identity_service import IdentityServicer
from headrace_services.scheduler.rpc.interceptors import make_server_interceptors
from headrace_services.scheduler.store import tables
from headrace_services.scheduler.store.tokens import TokenRows


@pytest_asyncio.fixture
async def guarded_site(engine: AsyncEngine) -> AsyncIterator[Site]:
    async with guarded(engine) as site:
        yield site


async def test_every_call_with_every_kind_of_token(guarded_site: Site) -> None:
    site = guarded_site
    expired = await site.token(Role.ADMIN, lifetime_s=0.001)
    revoked = await site.token(Role.ADMIN)
    async with site.engine.begin() as conn:
        await conn.execute(
            text("UPDATE token SET revoke_time = now() WHERE id = :id"), {"id": revoked.split("_")[1]}
        )
    bad = {
        "none": None,
        "malformed": "hr_nonsense",
        "empty": "",
        "foreign": new_token().text,
        "expired": expired,
        "revoked": revoked,
    }
    roles = {role: await site.token(role) for role in Role}
    assert len(SERVED) >= 43
    wrong = []
    for method in SERVED:
        permission = PERMISSIONS[path(method)].permission
        for kind, token in bad.items():
            code = await site.status(method, token)
            if (code is grpc.StatusCode.UNAUTHENTICATED) != (permission is not Permission.OPEN):
                wrong.append((method.full_name, kind, code))
        for role, token in roles.items():
            code = await site.status(method, token)
            denied = code is grpc.StatusCode.PERMISSION_DENIED
            if denied != (role not in permission.roles) or code is grpc.StatusCode.UNAUTHENTICATED:
                wrong.append((method.full_name, role, code))
    assert not wrong


@pytest.mark.parametrize(
    ("kind", "says"),
    [("expired", "has expired"), ("revoked", "was revoked"), ("foreign", "is not known here")],
)
async def test_what_is_reported_about_a_bad_token_and_what_is_not(
    guarded_site: Site, kind: str, says: str
) -> None:
    site = guarded_site
    token = new_token().text if kind == "foreign" else await site.token(Role.EDITOR, "p", 0.001)
    if kind == "revoked":
        async with site.engine.begin() as conn:
            await conn.execute(text("UPDATE token SET revoke_time = now(), expire_time = NULL"))
    error = await site.refusal("WhoAmI", pb.WhoAmIRequest(), token)
    assert isinstance(error, UnauthenticatedError)
    assert f"authorization: token hr_{token.split('_')[1]}_…" in error.message
    assert says in error.message
    assert token[-43:] not in str(error)
    assert "headrace login" in error.remedy
    assert not error.retryable


async def test_each_call_has_its_own_caller(guarded_site: Site) -> None:
    site = guarded_site
    texts = {
        (role, project): await site.token(role, project) for role in Role for project in ("p", "q", "default")
    }

    async def who(role: Role, project: str) -> None:
        for _ in range(5):
            found = await site.call("WhoAmI", pb.WhoAmIRequest(), texts[role, project])
            assert (found.role, found.project) == (NUMBERS[role], project)
            assert found.token.name == f"tokens/{texts[role, project].split('_')[1]}"

    async with asyncio.TaskGroup() as tasks:
        for key in texts:
            tasks.create_task(who(*key))


async def test_a_token_is_made_listed_used_and_revoked(guarded_site: Site) -> None:
    site = guarded_site
    admin = await site.token(Role.ADMIN, "p")
    request = pb.CreateTokenRequest(display_name="ann", role=pb.ROLE_VIEWER, lifetime=duration(3600.0))
    made = await site.call("CreateToken", request, admin)
    assert made.secret.startswith(f"hr_{made.token.name.removeprefix('tokens/')}_")
    assert (made.token.project, made.token.display_name) == ("p", "ann")
    assert 3590 < (made.token.expire_time.ToSeconds() - made.token.create_time.ToSeconds()) < 3610
    listed = await site.call("ListTokens", pb.ListTokensRequest(), admin)
    assert [token.display_name for token in listed.tokens] == ["ann", "n"]
    assert not listed.tokens[0].HasField("last_used_time")
    studies = StudyServiceStub(site.channel)
    metadata = (("authorization", f"Bearer {made.secret}"),)
    await studies.ListStudies(study_pb2.ListStudiesRequest(), timeout=60, metadata=metadata)
    listed = await site.call("ListTokens", pb.ListTokensRequest(), admin)
    assert listed.tokens[0].HasField("last_used_time")
    revoked = await site.call("RevokeToken", pb.RevokeTokenRequest(name=made.token.name), admin)
    again = await site.call("RevokeToken", pb.RevokeTokenRequest(name=made.token.name), admin)
    assert revoked.token.HasField("revoke_time")
    assert again == revoked
    await studies.ListStudies(study_pb2.ListStudiesRequest(), timeout=60, metadata=metadata)  # cached
    site.clock_s += 5.1
    error = await site.refusal("WhoAmI", pb.WhoAmIRequest(), made.secret)
    assert isinstance(error, UnauthenticatedError)


async def test_the_secret_is_stored_nowhere(guarded_site: Site) -> None:
    site = guarded_site
    admin = await site.token(Role.ADMIN)
    made = await site.call("CreateToken", pb.CreateTokenRequest(role=pb.ROLE_EDITOR), admin)
    secret = made.secret.split("_", 2)[2]
    async with site.engine.connect() as conn:
        for table in tables.metadata.tables.values():
            for row in await conn.execute(select(text(f"{table.name}::text")).select_from(table)):
                assert secret not in str(row)
                assert secret.encode().hex() not in str(row)


async def test_an_admin_keeps_to_the_own_project(guarded_site: Site) -> None:
    site = guarded_site
    p, root = await site.token(Role.ADMIN, "p"), await site.token(Role.ADMIN)
    others = f"tokens/{(await site.token(Role.VIEWER, 'q')).split('_')[1]}"
    create = pb.CreateTokenRequest(role=pb.ROLE_VIEWER, project="q")
    assert isinstance(await site.refusal("CreateToken", create, p), PermissionDeniedError)
    worker = pb.CreateTokenRequest(role=pb.ROLE_WORKER)
    assert isinstance(await site.refusal("CreateToken", worker, p), PermissionDeniedError)
    listing = pb.ListTokensRequest(project="q")
    assert isinstance(await site.refusal("ListTokens", listing, p), PermissionDeniedError)
    assert isinstance(
        await site.refusal("RevokeToken", pb.RevokeTokenRequest(name=others), p), TokenNotFoundError
    )
    assert {token.project for token in (await site.call("ListTokens", pb.ListTokensRequest(), p)).tokens} == {
        "p"
    }
    assert len((await site.call("ListTokens", pb.ListTokensRequest(), root)).tokens) == 3
    await site.call("CreateToken", create, root)
    await site.call("CreateToken", worker, root)
    await site.call("RevokeToken", pb.RevokeTokenRequest(name=others), root)


@pytest.mark.parametrize(
    ("name", "request_"),
    [
        ("DrainWorker", study_pb2.DrainWorkerRequest(worker="workers/none")),
        ("UndrainWorker", study_pb2.UndrainWorkerRequest(worker="workers/none")),
        ("CordonDevices", study_pb2.CordonDevicesRequest(worker="workers/none")),
        ("UncordonDevices", study_pb2.UncordonDevicesRequest(worker="workers/none")),
        ("CleanUp", study_pb2.CleanUpRequest()),
    ],
)
async def test_machines_and_upkeep_are_for_admins_of_the_default_project(
    guarded_site: Site, name: str, request_: Any
) -> None:
    """Workers run the trials of every project, and the janitor deletes those of every project."""
    call = getattr(StudyServiceStub(guarded_site.channel), name)
    codes = {}
    for project in ("p", "default"):
        metadata = (("authorization", f"Bearer {await guarded_site.token(Role.ADMIN, project)}"),)
        codes[project] = await call(request_, timeout=60, metadata=metadata).code()
    assert codes["p"] is grpc.StatusCode.PERMISSION_DENIED
    assert codes["default"] is not grpc.StatusCode.PERMISSION_DENIED


async def test_a_list_of_tokens_has_pages(guarded_site: Site) -> None:
    site = guarded_site
    admin = await site.token(Role.ADMIN)
    for _ in range(4):
        await site.token(Role.VIEWER)
    found, page_token = [], ""
    while True:
        page = await site.call("ListTokens", pb.ListTokensRequest(page_size=2, page_token=page_token), admin)
        assert len(page.tokens) <= 2
        found += [token.name for token in page.tokens]
        page_token = page.next_page_token
        if not page_token:
            break
    assert len(set(found)) == len(found) == 5


@pytest.mark.parametrize(
    ("name", "request_", "field"),
    [
        ("CreateToken", pb.CreateTokenRequest(), "role"),
        ("CreateToken", pb.CreateTokenRequest(role=pb.ROLE_VIEWER, project="No Name"), "project"),
        ("CreateToken", pb.CreateTokenRequest(role=pb.ROLE_VIEWER, lifetime=duration(0.0)), "lifetime"),
        ("CreateToken", pb.CreateTokenRequest(role=pb.ROLE_VIEWER, display_name="a\nb"), "display_name"),
        ("RevokeToken", pb.RevokeTokenRequest(name="abc"), "name"),
        ("RevokeToken", pb.RevokeTokenRequest(name="tokens/../x"), "name"),
    ],
)
async def test_bad_requests_name_the_field(guarded_site: Site, name: str, request_: Any, field: str) -> None:
    admin = await guarded_site.token(Role.ADMIN)
    error = await guarded_site.refusal(name, request_, admin)
    assert isinstance(error, InvalidFieldError)
    (violation,) = error.violations
    assert violation.field == field
    assert violation.remedy


async def test_tokens_that_are_over_for_long_are_forgotten(guarded_site: Site) -> None:
    site = guarded_site
    for _ in range(3):
        await site.token(Role.VIEWER)
    long_ago = "now() - interval '91 days'"
    async with site.engine.begin() as conn:
        await conn.execute(text(f"UPDATE token SET expire_time = {long_ago} WHERE number = 1"))
        await conn.execute(
            text(f"UPDATE token SET revoke_time = {long_ago}, expire_time = now() WHERE number = 2")
        )
    await Janitor(site.engine).clean()
    async with site.engine.connect() as conn:
        assert (await conn.execute(text("SELECT array_agg(number) FROM token"))).scalar_one() == [3]


async def test_a_database_that_is_away_is_reported_as_such(
    guarded_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace.errors import DatabaseUnavailableError

    async def away(*_: object) -> None:
        raise DatabaseUnavailableError("the database does not answer")

    monkeypatch.setattr(TokenRows, "find", away)
    error = await guarded_site.refusal("WhoAmI", pb.WhoAmIRequest(), new_token().text)
    assert isinstance(error, DatabaseUnavailableError)
    assert error.retryable


async def test_without_a_gate_everybody_is_an_admin_who_may_give_all(engine: AsyncEngine) -> None:
    server = grpc.aio.server(interceptors=make_server_interceptors())
    identity_pb2_grpc.add_IdentityServiceServicer_to_server(IdentityServicer(engine), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = IdentityServiceStub(channel)
        who = await stub.WhoAmI(pb.WhoAmIRequest(), timeout=60)
        assert who == pb.WhoAmIResponse(project="default", role=pb.ROLE_ADMIN)
        await stub.CreateToken(pb.CreateTokenRequest(role=pb.ROLE_ADMIN, project="p"), timeout=60)
        await stub.CreateToken(pb.CreateTokenRequest(role=pb.ROLE_WORKER), timeout=60)
        assert len((await stub.ListTokens(pb.ListTokensRequest(), timeout=60)).tokens) == 2
    await server.stop(0)
