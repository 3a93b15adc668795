"""Watching: every event once and in order, across broken connections, replicas, shutdowns and deletion."""

import asyncio
import random
from collections import Counter
from contextlib import aclosing
from functools import partial
from itertools import pairwise
from typing import Any
from unittest.mock import AsyncMock

import pytest
from rpc_site import Replica, RpcSite
from sqlalchemy import delete, func, select

from headrace.errors import DatabaseUnavailableError, DrainingError, HeadraceError, StudyNotFoundError
from headrace.v1 import study_pb2 as pb
from headrace_services.scheduler.rpc import watching
from headrace_services.scheduler.store import tables


def loss(params: dict[str, Any], step: int) -> float:
    return params["x"] / step


async def newest_cursor(site: RpcSite) -> int:
    async with site.engine.connect() as conn:
        return (await conn.execute(select(func.max(tables.event.c.cursor)))).scalar_one()


async def follow(replica: Replica, after: int = 0) -> list[pb.WatchStudyResponse]:
    request = pb.WatchStudyRequest(name="studies/s", after_cursor=after)
    return [response async for response in replica.watch(request)]


def check(responses: list[pb.WatchStudyResponse], after: int, newest: int) -> None:
    cursors = [event.cursor for response in responses for event in response.events]
    assert cursors == list(range(after + 1, newest + 1))
    seen = after
    for response in responses:
        seen = max([seen, *(event.cursor for event in response.events)])
        assert response.study.status.cursor >= seen
        assert len(response.events) <= watching.MAX_EVENTS
    assert responses[-1].study.state == pb.STUDY_STATE_COMPLETED


async def test_watchers_see_every_event_once_while_two_replicas_work(site: RpcSite) -> None:
    other = await site.add_replica()
    await site.create(max_trials=9)
    async with asyncio.TaskGroup() as tasks:
        watches = [
            tasks.create_task(follow(replica)) for replica in (site.replicas[0], other) for _ in range(3)
        ]
        await site.drive(loss, clients=4)
    newest = await newest_cursor(site)
    for watch in watches:
        check(watch.result(), 0, newest)


@pytest.mark.full
async def test_a_watch_that_is_cut_again_and_again_continues_without_gaps_or_repeats(
    site: RpcSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "MAX_EVENTS", 4)
    other = await site.add_replica()
    await site.create(max_trials=9)
    dice = random.Random(3)
    responses: list[pb.WatchStudyResponse] = []

    async def follow_with_cuts() -> int:
        cursor, cuts, done = 0, 0, False
        while not done:
            replica = dice.choice([site.replicas[0], other])
            left = dice.randint(1, 3)
            request = pb.WatchStudyRequest(name="studies/s", after_cursor=cursor)
            async with aclosing(replica.watch(request)) as updates:
                async for update in updates:
                    responses.append(update)
                    cursor = max([cursor, *(event.cursor for event in update.events)])
                    ended = update.study.state == pb.STUDY_STATE_COMPLETED
                    done = ended and cursor == update.study.status.cursor
                    left -= 1
                    if not left:
                        cuts += 1
                        break
        return cuts

    async with asyncio.TaskGroup() as tasks:
        following = tasks.create_task(follow_with_cuts())
        await site.drive(loss, clients=2)
    assert following.result() > 3
    check(responses, 0, await newest_cursor(site))


async def test_a_long_history_comes_in_bounded_messages(
    site: RpcSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "MAX_EVENTS", 7)
    await site.create(policy={"kind": "run_all"}, max_trials=4)
    await site.drive(loss)
    newest = await newest_cursor(site)
    for after in (0, 5, newest - 1):
        responses = await follow(site.replicas[0], after)
        check(responses, after, newest)
        assert len(responses) == -(-(newest - after) // 7)


async def test_a_watch_of_events_that_were_deleted_by_age_ends(site: RpcSite) -> None:
    await site.create(policy={"kind": "run_all"}, max_trials=4)
    await site.drive(loss)
    newest = await newest_cursor(site)
    for left in (newest - 3, 0):  # the newest ones are gone, then all
        async with site.engine.begin() as conn:
            await conn.execute(delete(tables.event).where(tables.event.c.cursor > left))
        async with asyncio.timeout(30):
            responses = await follow(site.replicas[0], 0)
        assert [event.cursor for one in responses for event in one.events] == list(range(1, left + 1))
        assert len(responses) == (2 if left else 1)
        assert responses[-1].study.status.cursor == newest


async def test_the_first_message_comes_at_once_though_nothing_is_new(site: RpcSite) -> None:
    await site.create(max_trials=1, max_steps=1, policy={"kind": "run_all"})
    newest = await newest_cursor(site)
    request = pb.WatchStudyRequest(name="studies/s", after_cursor=newest)
    async with aclosing(site.replicas[0].watch(request)) as updates:
        first = await anext(updates)
        assert not first.events
        assert first.study.status.cursor == newest
    await site.drive(loss)
    ended = await follow(site.replicas[0], await newest_cursor(site))
    assert [list(response.events) for response in ended] == [[]]
    assert ended[0].study.state == pb.STUDY_STATE_COMPLETED


@pytest.mark.full
async def test_watchers_share_one_status_taken_at_most_twice_a_second(
    site: RpcSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[float] = []
    load = watching.Snapshot._load

    async def counted(self: watching.Snapshot) -> pb.Study:
        taken.append(asyncio.get_running_loop().time())
        return await load(self)

    monkeypatch.setattr(watching.Snapshot, "_load", counted)
    await site.create(max_trials=6)
    async with asyncio.TaskGroup() as tasks:
        watches = [tasks.create_task(follow(site.replicas[0])) for _ in range(6)]
        await site.drive(loss, clients=2)
    newest = await newest_cursor(site)
    for watch in watches:
        check(watch.result(), 0, newest)
    gaps = [later - earlier for earlier, later in pairwise(taken)]
    assert all(gap >= watching.SNAPSHOT_EVERY_S * 0.98 for gap in gaps), gaps


async def test_watchers_at_one_place_share_what_is_read_for_them(
    site: RpcSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise one viewer's many watches would block the event loop for everybody."""
    reads: Counter[str] = Counter()
    for module, name in ((watching.history, "events_after"), (watching.studies, "head")):
        monkeypatch.setattr(module, name, partial(_counted, reads, name, getattr(module, name)))
    await site.create(max_trials=6)
    await site.drive(loss)
    newest, watchers = await newest_cursor(site), 40
    reads.clear()
    for responses in await asyncio.gather(*(follow(site.replicas[0]) for _ in range(watchers))):
        check(responses, 0, newest)
    assert reads["events_after"] < watchers / 4
    reads.clear()
    async with watching.Snapshots(site.engine, AsyncMock()).of(1) as snapshot:
        await asyncio.gather(*(snapshot.head() for _ in range(watchers)))
    assert reads["head"] <= 2  # one for the first, and one for those that asked while it was in progress


async def _counted(reads: Counter[str], name: str, read: Any, *given: Any) -> Any:
    reads[name] += 1
    return await read(*given)


async def test_all_watchers_are_told_of_a_read_that_failed_and_the_next_one_works(
    site: RpcSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    await site.create(max_trials=2)
    await site.drive(loss)
    with monkeypatch.context() as patch:
        failing = AsyncMock(side_effect=DatabaseUnavailableError("the database does not answer"))
        patch.setattr(watching.studies, "head", failing)
        told = await asyncio.gather(*(follow(site.replicas[0]) for _ in range(8)), return_exceptions=True)
    assert [type(one) for one in told] == [DatabaseUnavailableError] * 8
    check(await follow(site.replicas[0]), 0, await newest_cursor(site))


async def test_a_shutdown_ends_watches_so_that_clients_go_elsewhere(site: RpcSite) -> None:
    other = await site.add_replica()
    await site.create()
    request = pb.WatchStudyRequest(name="studies/s")
    async with aclosing(other.watch(request)) as updates:
        await anext(updates)
        await other.hub.drain()
        with pytest.raises(DrainingError) as refused:
            async for _ in updates:
                pass
    assert refused.value.retryable
    assert isinstance(
        await other.refusal("PauseStudy", pb.PauseStudyRequest(name="studies/s")), DrainingError
    )


async def test_deletion_ends_a_watch(site: RpcSite) -> None:
    other = await site.add_replica()
    await site.create()
    async with aclosing(other.watch(pb.WatchStudyRequest(name="studies/s"))) as updates:
        first = await anext(updates)
        await site.call("StopStudy", pb.StopStudyRequest(name="studies/s"))
        await site.call("DeleteStudy", pb.DeleteStudyRequest(name="studies/s"))
        end: HeadraceError | None = None
        try:
            rest = [update async for update in updates]
        except HeadraceError as error:
            end = error
    assert first.study.state == pb.STUDY_STATE_ACTIVE
    # It may have seen the study's end before the study was gone.
    assert isinstance(end, StudyNotFoundError) or rest[-1].study.state == pb.STUDY_STATE_STOPPED


async def test_a_watcher_that_goes_away_leaves_nothing_behind(site: RpcSite) -> None:
    hub = site.replicas[0].hub
    study = await site.create()
    for _ in range(3):
        async with aclosing(site.replicas[0].watch(pb.WatchStudyRequest(name=study.name))) as updates:
            await anext(updates)
    async with asyncio.timeout(60):
        while hub._watchers:
            await asyncio.sleep(0.01)
