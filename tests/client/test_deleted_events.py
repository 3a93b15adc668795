"""A stopped study whose events of trials were deleted by age, the newest one among them: every reader comes to an end.

The scheduler is the real one, and the rows are deleted as it deletes them.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from sqlalchemy import delete
from sqlalchemy.ext.asyncio import AsyncEngine

sys.path.insert(0, str(Path(__file__).parent.parent / "scheduler" / "rpc"))

from command_line import headrace_command
from rpc_site import RpcSite

from headrace import AsyncClient, Client
from headrace.client.events import Event, Update
from headrace.client.model import Report, StudyInfo, TrialInfo
from headrace.errors import HeadraceError
from headrace.report.data import gather
from headrace.track.exporter import Exporter
from headrace.track.tracker import EventsGoneError, missing
from headrace.track.trouble import Trouble
from headrace_services.scheduler.replay.replaying import replay_study
from headrace_services.scheduler.store import aging, tables
from headrace_services.scheduler.store.database import open_engine, transaction

pytestmark = pytest.mark.timeout(120)


@pytest_asyncio.fixture
async def site(database_url: str) -> AsyncIterator[RpcSite]:
    """A scheduler on a fresh database."""
    engine = open_engine(database_url, pool_size=6)
    async with AsyncExitStack() as stack:
        opened = RpcSite(engine=engine, stack=stack)
        await opened.add_replica()
        yield opened
    await engine.dispose()


async def aged(site: RpcSite) -> tuple[list[Event], int]:
    """Stop a study and delete its events of trials; returns those that are left, and the study's cursor."""
    await site.create(policy={"kind": "run_all"}, max_trials=4)
    async with AsyncClient(site.replicas[0].address) as client:
        study = client.study("s")
        asked = await study.ask()
        assert asked is not None
        await asked.report(1, {"loss": 0.5})
        await study.stop()
        await study.wait()
        whole = [event async for update in study.watch() for event in update.events]
        newest = (await study.status()).cursor
    gone = await delete_events(site.engine)
    assert whole[-1].cursor == newest
    assert newest in gone, "the newest one is gone"
    left = [event for event in whole if event.cursor not in gone]
    assert left
    return left, newest


async def delete_events(engine: AsyncEngine) -> set[int]:
    """Delete what the scheduler deletes by age."""
    part, only = aging.OF_ROWS["events"]
    assert part.table is tables.event
    async with transaction(engine) as conn:
        found = await conn.execute(delete(tables.event).where(*only).returning(tables.event.c.cursor))
        return set(found.scalars())


async def with_client(site: RpcSite, read: Callable[[Client], Any]) -> Any:
    """What a blocking client reads, within 20 seconds; closing it ends a read that would go on."""
    with Client(site.replicas[0].address) as client:
        reading = asyncio.create_task(asyncio.to_thread(read, client))
        done, _ = await asyncio.wait((reading,), timeout=20)
        client.close()
        assert done, "it has come to an end"
        return await reading


async def test_the_command_lists_what_is_left_and_ends(
    site: RpcSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, _ = await aged(site)
    opened: list[Client] = []
    entered = Client.__enter__
    monkeypatch.setattr(Client, "__enter__", lambda self: opened.append(self) or entered(self))  # type: ignore[func-returns-value]  # `append` returns None, so `or` goes on
    arguments = ("--address", site.replicas[0].address, "events", "s", "--json")
    running = asyncio.create_task(asyncio.to_thread(headrace_command, *arguments))
    done, _ = await asyncio.wait((running,), timeout=20)
    for client in opened:
        client.close()
    assert done, "it has come to an end"
    found = await running
    assert found.returncode == 0, found.stderr
    assert [json.loads(line)["cursor"] for line in found.stdout.splitlines()] == [one.cursor for one in left]


async def test_a_watch_ends(site: RpcSite) -> None:
    left, newest = await aged(site)
    async with AsyncClient(site.replicas[0].address) as client, asyncio.timeout(20):
        updates = [update async for update in client.study("s").watch()]
    assert [event for update in updates for event in update.events] == left
    assert updates[-1].events == ()
    assert updates[-1].study.cursor == newest

    found = await with_client(site, lambda client: list(client.study("s").watch(left[-1].cursor)))
    assert [update.events for update in found] == [()]


async def test_all_events_up_to_now(site: RpcSite) -> None:
    left, newest = await aged(site)
    async with AsyncClient(site.replicas[0].address) as client, asyncio.timeout(20):
        study = client.study("s")
        assert [event async for event in study.events()] == left
        assert [event async for event in study.events(left[0].cursor)] == left[1:]
        assert [event async for event in study.events(until=left[-1].cursor)] == left
        assert [event async for event in study.events(until=left[0].cursor)] == left[:1]
        assert [event async for event in study.events(newest)] == []
    assert await with_client(site, lambda client: list(client.study("s").events())) == left


async def test_a_report_of_what_is_left(site: RpcSite) -> None:
    left, _ = await aged(site)
    found = await with_client(site, lambda client: gather(client.study("s")))
    assert list(found.events) == left
    assert len(found.trials) == 4


async def test_a_replay_says_that_events_are_gone(site: RpcSite) -> None:
    await aged(site)
    with pytest.raises(HeadraceError, match="deleted by age"):
        await with_client(site, lambda client: replay_study(client, "s"))


class Sink:
    """A tracker's copy: counts what was written."""

    def __init__(self) -> None:
        self.cursor = self.newest = 0
        self.tables = 0

    def write(self, update: Update) -> None:
        if missing(update, self.cursor):
            raise EventsGoneError("gone")
        self.cursor = update.events[-1].cursor if update.events else self.cursor

    def write_tables(self, study: StudyInfo, trials: Sequence[TrialInfo], reports: Sequence[Report]) -> None:
        self.tables += 1
        assert (len(trials), len(reports)) == (4, 1)
        self.cursor = study.cursor

    def close(self, *, ended: bool) -> None:
        assert ended


@dataclass
class Target:
    """The tracker."""

    sink: Sink
    title: str = "the tracker"

    def open(self, *_: Any) -> Sink:
        return self.sink


async def test_a_tracker_copies_the_tables(site: RpcSite) -> None:
    _, newest = await aged(site)
    sink, said = Sink(), list[str]()
    trouble = Trouble("the tracker", said.append)
    exporter = Exporter(
        target=Target(sink), say=said.append, trouble=trouble, scheduler=trouble, wait=lambda _: False
    )
    final = await with_client(site, lambda client: exporter.follow(client.study("s")))
    assert final.state.ended
    assert (sink.tables, sink.cursor) == (1, newest)
