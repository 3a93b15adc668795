"""Every call on the permissions page, made on real servers: each caller gets what the page says."""

import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import psycopg
import pytest
import pytest_asyncio
from closed_processes import closed_processes
from closed_site import CALLER, ClosedSite, closed_site
from every_call import differences
from google.protobuf.message_factory import GetMessageClass
from sample_calls import Samples
from served import METHODS, path

from headrace_services.identity.callers import CALLERS, Caller, Place, places
from headrace_services.scheduler.store.database import open_engine

Closed = tuple[ClosedSite, Samples]


@pytest.fixture(scope="module")
def one_database(postgres_url: str, migrated_template: str) -> str:
    """A database for this file. It is dropped with its server."""
    name = f"closed_{secrets.token_hex(6)}"
    with psycopg.connect(postgres_url, autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {name} TEMPLATE {migrated_template} STRATEGY FILE_COPY")
    head, _, query = postgres_url.partition("?")
    return f"{head.rpartition('/')[0]}/{name}?{query}"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def closed(one_database: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Closed]:
    """The service in this process."""
    folder, engine = tmp_path_factory.mktemp("closed"), open_engine(one_database)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADRACE_TLS_CA", str(folder / "ca" / "ca.pem"))
        async with closed_site(engine, folder) as site:
            samples = Samples(site, tmp_path_factory.mktemp("code"))
            await samples.begin()
            yield site, samples
    await engine.dispose()


@pytest.mark.cases(4)
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("caller", CALLERS, ids=lambda caller: caller.heading)
async def test_a_caller_gets_what_the_page_says(closed: Closed, caller: Caller) -> None:
    wrong = await differences(*closed, caller)
    assert not wrong, "\n".join(wrong)


@pytest.mark.asyncio(loop_scope="module")
async def test_what_is_served_on_the_agents_socket_alone_works_there(closed: Closed) -> None:
    for one in METHODS:
        if places(one) == {Place.SOCKET} and "BubbleService" in one:
            request = GetMessageClass(METHODS[one].input_type)()
            code, _ = await closed[0].call(one, CALLER["no token"], "agent_socket", request)
            # There is no job, so its timeline is refused like a wrong name.
            assert code is (grpc.StatusCode.INVALID_ARGUMENT if "Timeline" in one else grpc.StatusCode.OK), (
                one
            )


@pytest.mark.full
async def test_the_commands_that_people_start_do_the_same(database_url: str, tmp_path: Path) -> None:
    engine = open_engine(database_url)
    async with closed_processes(engine, database_url, tmp_path) as site:
        (folder := tmp_path / "code").mkdir()
        samples = Samples(site, folder)
        await samples.begin()
        wrong = {caller.heading: await differences(site, samples, caller) for caller in CALLERS}
    await engine.dispose()
    assert not any(wrong.values()), wrong


def test_every_method_of_the_descriptors_is_called() -> None:
    """So a new method fails until its request can be made and the page has its row."""
    assert len(METHODS) >= 66
    assert {path(method) for method in METHODS.values()} == set(METHODS)
