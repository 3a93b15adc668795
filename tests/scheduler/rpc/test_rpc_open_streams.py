"""Open streams whose token is revoked or expires end soon, even if no message passes over them."""

import asyncio
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor
from grpc_reflection.v1alpha import reflection_pb2
from rpc_site import make_spec
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from token_site import SERVED, Site, guarded, path

from headrace.errors import DatabaseUnavailableError
from headrace.spec import to_proto
from headrace.v1 import code_pb2, study_pb2, worker_pb2
from headrace.v1.study_pb2_grpc import StudyServiceStub
from headrace_services.identity.permissions import PERMISSIONS, Permission
from headrace_services.identity.roles import Role
from headrace_services.scheduler.store.tokens import TokenRows

DIGEST = "0" * 64
STREAMS = {
    path(method): method
    for method in SERVED
    if (method.client_streaming or method.server_streaming)
    and PERMISSIONS[path(method)].permission not in (Permission.OPEN, Permission.CERTIFIED)
}
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
REQUESTS = {
    "/headrace.v1.StudyService/WatchStudy": study_pb2.WatchStudyRequest(name="studies/s"),
    "/headrace.v1.WorkerService/Session": worker_pb2.SessionRequest(
        hello=worker_pb2.Hello(protocol=1, worker="w", incarnation="1", log_dir="/l")
    ),
    "/headrace.v1.CodeService/PutCode": code_pb2.PutCodeRequest(digest=DIGEST),
    REFLECTION: reflection_pb2.ServerReflectionRequest(list_services=""),
}


@pytest.mark.parametrize("over", ["revoke_time", "expire_time"])
async def test_every_stream_ends_soon_after_its_token(engine: AsyncEngine, over: str) -> None:
    assert set(REQUESTS) == set(STREAMS), "a streaming method needs its request here"
    async with guarded(engine, asked_again_s=0.05) as site:
        await _study(site)
        opened = {name: await _opened(site, method) for name, method in STREAMS.items()}
        await asyncio.sleep(0.2)
        assert not [name for name, call in opened.items() if call.done()]
        async with site.engine.begin() as conn:
            await conn.execute(text(f"UPDATE token SET {over} = now()"))
        site.clock_s += 5.1
        async with asyncio.timeout(60):
            ended = {name: await call.code() for name, call in opened.items()}
            assert set(ended.values()) == {grpc.StatusCode.UNAUTHENTICATED}, ended


@pytest.mark.parametrize("name", ["file_by_filename", "file_containing_symbol", "list_services"])
async def test_a_long_question_of_reflection_is_refused(engine: AsyncEngine, name: str) -> None:
    """Its answer would repeat it: 150 streams that nobody read took 2 GB."""
    async with guarded(engine) as site:
        call = await _opened(site, STREAMS[REFLECTION])
        await call.write(reflection_pb2.ServerReflectionRequest(**{name: "x" * 5000}))
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "5003 bytes" in await call.details()


async def test_a_stream_continues_while_nobody_can_say_whether_its_token_works(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asyncio.Event()

    async def away(*_: object) -> None:
        asked.set()
        raise DatabaseUnavailableError("the database does not answer")

    async with guarded(engine, asked_again_s=0.05) as site:
        call = await _opened(site, STREAMS[REFLECTION])
        monkeypatch.setattr(TokenRows, "find", away)
        site.clock_s += 5.1
        async with asyncio.timeout(60):
            await asked.wait()
        await call.write(REQUESTS[REFLECTION])
        assert (await call.read()).list_services_response.service
        call.cancel()


async def _study(site: Site) -> None:
    metadata = (("authorization", f"Bearer {await site.token(Role.EDITOR)}"),)
    create = study_pb2.CreateStudyRequest(study_id="s", spec=to_proto(make_spec()))
    await StudyServiceStub(site.channel).CreateStudy(create, timeout=60, metadata=metadata)


async def _opened(site: Site, method: MethodDescriptor) -> Any:
    """A stream with a token of its own, after its first message if it has one."""
    role = min(PERMISSIONS[path(method)].permission.roles)
    metadata = (("authorization", f"Bearer {await site.token(role)}"),)
    request = REQUESTS[path(method)]
    if method.client_streaming:
        call = site.calling(method)(timeout=120, metadata=metadata)
        await call.write(request)
    else:
        call = site.calling(method)(request, timeout=120, metadata=metadata)
    if method.server_streaming:
        assert await call.read() is not grpc.aio.EOF
    return call
