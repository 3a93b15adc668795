"""Workers and schedulers of other releases: they keep working, or say clearly what to update."""

import pytest
from session_site import TIMING, serving, worker
from sqlalchemy.ext.asyncio import AsyncEngine

from headrace.error_status import from_rpc_error
from headrace.errors import VersionMismatchError
from headrace.protocol import SPOKEN, Spoken, why_not
from headrace.v1 import worker_pb2
from headrace_worker.session_core import Identity, SessionCore, SessionProtocolError

OLD, NEW = Spoken(newest=1, oldest=1, release="0.1"), Spoken(newest=4, oldest=3, release="0.9")


@pytest.mark.parametrize(
    ("ours", "theirs", "says"),
    [
        (OLD, OLD, ""),
        (OLD, Spoken(newest=9, oldest=1), ""),
        (NEW, OLD, "update w"),
        (OLD, NEW, "update me"),
    ],
)
def test_the_older_one_is_to_be_updated(ours: Spoken, theirs: Spoken, says: str) -> None:
    found = why_not(ours, theirs, we="me", they="w")
    assert found.endswith(says)
    assert bool(found) == bool(says)
    if says:
        assert "(headrace 0.1) speaks version 1 of the session protocol" in found
        assert "(headrace 0.9) needs at least version 3" in found


async def test_a_worker_that_needs_a_newer_scheduler_is_told(engine: AsyncEngine) -> None:
    async with serving(engine, TIMING) as replica, worker(replica) as scripted:
        hello = worker_pb2.Hello(worker="w", incarnation="1", version="7.0", protocol=9, oldest_protocol=8)
        await scripted.say(hello=hello)
        await scripted.ended.wait()
        refused = from_rpc_error(scripted.error)
        assert isinstance(refused, VersionMismatchError)
        assert refused.message.endswith("update this scheduler")
        assert "worker 'w' (headrace 7.0) needs at least version 8" in refused.message


async def test_a_worker_that_tells_no_version_is_refused(engine: AsyncEngine) -> None:
    async with serving(engine, TIMING) as replica, worker(replica) as scripted:
        await scripted.hello(protocol=0)
        await scripted.ended.wait()
        refused = from_rpc_error(scripted.error)
        assert isinstance(refused, VersionMismatchError)
        assert refused.message.endswith("update worker 'w'")


async def test_a_scheduler_tells_what_it_speaks(engine: AsyncEngine) -> None:
    async with serving(engine, TIMING) as replica, worker(replica) as scripted:
        await scripted.hello()
        welcome = await scripted.hears("welcome")
        assert (welcome.protocol, welcome.oldest_protocol) == (SPOKEN.newest, SPOKEN.oldest)


def test_a_worker_says_that_it_is_too_old_for_the_scheduler_or_too_new() -> None:
    for speaks, oldest, says in ((OLD, 8, "update this worker"), (NEW, 0, "update the scheduler")):
        identity = Identity(
            worker="w", incarnation="1", devices=(), labels={}, version="", log_dir="", speaks=speaks
        )
        core = SessionCore(identity)
        hello = core.connect()
        assert (hello.protocol, hello.oldest_protocol) == (speaks.newest, speaks.oldest)
        welcome = worker_pb2.Welcome(protocol=oldest, oldest_protocol=oldest, version="x")
        with pytest.raises(SessionProtocolError, match=says):
            core.receive(worker_pb2.SessionResponse(welcome=welcome))
