"""The session protocol, message by message, over real streams and a real database."""

import asyncio
from typing import Any

import grpc
import pytest
from session_site import DEADLINE_S, TIMING, Replica, ScriptedWorker, serving, study, worker
from sqlalchemy import delete, select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from study_site import StudySite

from headrace.errors import DatabaseUnavailableError
from headrace.v1 import event_pb2, worker_pb2
from headrace_services.scheduler.core.inputs import PauseStudy, ResumeStudy, StopTrial
from headrace_services.scheduler.engine.submissions import Submission
from headrace_services.scheduler.session.reconciler import LeaseReconciler
from headrace_services.scheduler.store import tables, workers


async def test_a_new_worker_is_welcomed_and_gets_a_trial(engine: AsyncEngine, replica: Replica) -> None:
    site = await study(engine)
    async with worker(replica) as w:
        await w.hello()
        welcome = await w.hears("welcome")
        assert welcome.lease_ttl.ToTimedelta().total_seconds() == TIMING.lease_ttl_s
        replica.hub.kick(site.study_id)
        assign = await w.hears("assign")
        assert assign.lease.trial == f"studies/{site.name}/trials/0"
        assert assign.template.callable == "train:train"
        assert (assign.next_milestone, assign.max_steps, assign.metric) == (9, 9, "loss")
        assert w.heard[0].WhichOneof("message") == "welcome"


async def test_an_assignment_lost_with_the_stream_is_repeated(engine: AsyncEngine, replica: Replica) -> None:
    site = await study(engine)
    async with worker(replica) as w:
        await w.hello()
        await w.hears("welcome")
        replica.hub.kick(site.study_id)
        first = await w.hears("assign")
    async with worker(replica) as w:
        await w.hello()
        assert (await w.hears("assign")).lease == first.lease


async def test_a_trial_that_starts_again_is_not_told_the_rungs_behind_it(
    engine: AsyncEngine, replica: Replica
) -> None:
    asha = {"kind": "asha", "eta": 3, "rungs": [1, 3, 9]}
    site = await study(engine, policy=asha, max_trials=3)
    async with worker(replica) as w:
        await w.hello()
        replica.hub.kick(site.study_id)
        for number, loss in enumerate((0.1, 0.2, 0.3)):
            fresh = await w.hears(
                "assign", lambda assign, number=number: assign.lease.trial.endswith(f"/{number}")
            )
            assert (list(fresh.rungs), fresh.last_step) == ([1, 3, 9], 0)
            await w.report(fresh.lease, 1, 1, loss)
        best = await w.hears("assign", lambda assign: assign.lease.attempt == 2)
        assert best.lease.trial.endswith("/0")
        assert (best.resume_step, best.last_step, list(best.rungs)) == (0, 1, [3, 9])


async def test_an_error_is_stored_as_far_as_the_limits_say(engine: AsyncEngine, replica: Replica) -> None:
    site = await study(engine, max_trials=2, max_retries=0)
    async with worker(replica) as w:
        await w.hello()
        replica.hub.kick(site.study_id)
        lease = (await w.hears("assign")).lease
        error = "first\n" + "x" * 1_000_000
        await w.say(
            exited=worker_pb2.Exited(
                sequence=1, lease=lease, outcome=worker_pb2.EXIT_OUTCOME_FAILED, error=error, log_tail=error
            )
        )
        await w.hears("ack", lambda ack: 1 in ack.sequences)
    trial = await site.trial(0)
    assert len(trial.detail) == 8192
    assert trial.detail.startswith("first\nxxx")
    assert len(trial.log_tail) == 8192
    assert max(len(event.message) for event in await site.log()) < 9000


async def test_a_lease_that_the_worker_still_runs_is_confirmed_and_not_assigned_again(
    engine: AsyncEngine, replica: Replica
) -> None:
    site = await study(engine)
    async with worker(replica) as w:
        await w.hello()
        replica.hub.kick(site.study_id)
        lease = (await w.hears("assign")).lease
    foreign = event_pb2.LeaseRef(lease_id="nobody.0.1", trial=f"studies/{site.name}/trials/0", attempt=1)
    async with worker(replica) as w:
        await w.hello(held=(lease, foreign))
        assert list((await w.hears("welcome")).held) == [lease]
        await w.report(lease, 1, 1, 0.5)
        await w.hears("ack")
        assert not [response for response in w.heard if response.WhichOneof("message") == "assign"]


async def test_a_report_sent_again_after_a_reconnect_gets_the_same_decision_and_ack(
    engine: AsyncEngine, replica: Replica
) -> None:
    site = await study(engine)
    async with worker(replica) as w:
        await w.hello()
        replica.hub.kick(site.study_id)
        lease = (await w.hears("assign")).lease
        await w.report(lease, 7, 9, 0.5)
        decision = await w.hears("decision")
        assert decision.decision.action == event_pb2.DECISION_ACTION_STOP
    async with worker(replica) as w:
        await w.hello()
        await w.report(lease, 7, 9, 0.5)
        assert await w.hears("decision") == decision
        assert list((await w.hears("ack")).sequences) == [7]
    assert len(await site.events("report_recorded")) == 1


async def test_acknowledgements_travel_with_what_else_there_is_to_say(
    engine: AsyncEngine, replica: Replica
) -> None:
    site = await study(engine, max_trials=2)
    async with worker(replica) as w:
        await w.hello()
        replica.hub.kick(site.study_id)
        lease = (await w.hears("assign")).lease
        await w.report(lease, 1, 1, 0.5)
        await w.hears("decision")
        await w.say(
            exited=worker_pb2.Exited(sequence=2, lease=lease, outcome=worker_pb2.EXIT_OUTCOME_FINISHED)
        )
        await w.hears("ack", lambda ack: 2 in ack.sequences)
        await w.hears("assign", count=2)
        said = [(r.WhichOneof("message"), list(r.acknowledged)) for r in w.heard if not r.ack.heartbeat]
    assert said == [("welcome", []), ("assign", []), ("decision", [1]), ("assign", [2])]


async def test_messages_of_an_unknown_lease_are_acknowledged_and_cancelled(
    engine: AsyncEngine, replica: Replica
) -> None:
    site = await study(engine)
    stray = event_pb2.LeaseRef(lease_id="old.0.1", trial=f"studies/{site.name}/trials/0", attempt=1)
    deleted = event_pb2.LeaseRef(lease_id="old.0.1", trial="studies/deleted/trials/0", attempt=1)
    garbage = event_pb2.LeaseRef(lease_id="x", trial="nonsense", attempt=1)
    async with worker(replica) as w:
        await w.hello(slots=0)
        for sequence, lease in enumerate((stray, deleted, garbage), start=1):
            await w.report(lease, sequence, 1, 0.5)
            await w.hears("ack", lambda ack, sequence=sequence: list(ack.sequences) == [sequence])
            await w.hears("cancel", lambda cancel, lease=lease: cancel.lease == lease)
        await w.say(exited=worker_pb2.Exited(sequence=4, lease=stray, outcome=worker_pb2.EXIT_OUTCOME_LOST))
        await w.hears("ack", lambda ack: list(ack.sequences) == [4])


async def test_a_study_that_was_deleted_and_created_again_elsewhere_is_heard(
    engine: AsyncEngine, replica: Replica
) -> None:
    site = await study(engine)
    again = StudySite(engine, site.spec)
    again.name = site.name
    async with serving(engine, TIMING) as elsewhere:
        async with worker(replica) as w:
            await w.hello()
            replica.hub.kick(site.study_id)
            old = (await w.hears("assign")).lease
            await w.report(old, 1, 9, 0.5)
            await w.hears("ack", lambda ack: 1 in ack.sequences)
        async with engine.begin() as conn:
            await conn.execute(delete(tables.study).where(tables.study.c.id == site.study_id))
        async with worker(elsewhere) as w:
            await w.hello()
            elsewhere.hub.kick((await again.create()).study_id)
            lease = (await w.hears("assign")).lease
        async with worker(replica) as w:
            await w.hello(held=(lease,))
            await w.report(lease, 2, 3, 0.5)
            await w.report(lease, 3, 9, 0.4)
            await w.report(old, 4, 9, 0.5)
            await w.hears("decision", lambda said: said.report_sequence == 3)
            assert (await w.hears("cancel")).lease.lease_id == old.lease_id
    stored = select(tables.report.c.step).where(tables.report.c.study_id == again.study_id)
    assert sorted(row.step for row in await again.rows(stored)) == [3, 9]


async def test_a_newer_session_takes_over(engine: AsyncEngine, replica: Replica) -> None:
    async with worker(replica) as old, worker(replica) as new:
        await old.hello()
        await old.hears("welcome")
        await new.hello(incarnation="2")
        await new.hears("welcome")
        await old.say(heartbeat=worker_pb2.Heartbeat(sequence=1))
        async with asyncio.timeout(DEADLINE_S):
            await old.ended.wait()
        site = await study(engine)
        replica.hub.kick(site.study_id)
        await new.hears("assign")


async def test_an_assignment_that_got_lost_in_the_stream_is_repeated_after_two_heartbeats(
    engine: AsyncEngine, replica: Replica
) -> None:
    site = await study(engine)
    async with worker(replica) as w:
        await w.hello()
        replica.hub.kick(site.study_id)
        lease = (await w.hears("assign")).lease
        for sequence in (1, 2):
            await w.say(heartbeat=worker_pb2.Heartbeat(sequence=sequence))
        assert (await w.hears("assign", count=2)).lease == lease


async def test_a_lease_that_is_over_is_cancelled_when_heartbeats_still_name_it(
    engine: AsyncEngine, replica: Replica
) -> None:
    site = await study(engine)
    async with worker(replica) as w:
        await w.hello()
        replica.hub.kick(site.study_id)
        lease = (await w.hears("assign")).lease
        await replica.hub.submit(site.study_id, Submission(input=StopTrial(number=0, reason="")))
        await w.hears("cancel")
        for sequence in (1, 2):
            await w.say(heartbeat=worker_pb2.Heartbeat(sequence=sequence, held=[lease]))
        await w.hears("cancel", lambda cancel: cancel.lease.lease_id == lease.lease_id, count=2)


async def test_orders_reach_a_worker_on_another_replica(engine: AsyncEngine, replica: Replica) -> None:
    site = await study(engine)
    async with serving(engine, TIMING) as other, worker(other) as w:
        await w.hello()
        await w.hears("welcome")
        replica.hub.kick(site.study_id)
        assert (await w.hears("assign")).lease.trial.endswith("/trials/0")


async def test_a_restarted_worker_s_trials_continue_at_once_when_it_says_they_are_lost(
    engine: AsyncEngine, replica: Replica
) -> None:
    site = await study(engine)
    async with worker(replica) as w:
        await w.hello()
        replica.hub.kick(site.study_id)
        lease = (await w.hears("assign")).lease
    async with worker(replica) as w:
        await w.hello(incarnation="2")
        await w.say(exited=worker_pb2.Exited(sequence=1, lease=lease, outcome=worker_pb2.EXIT_OUTCOME_LOST))
        again = await w.hears("assign")
        assert (again.lease.attempt, again.lease.trial) == (2, lease.trial)
    assert (await site.trial(0)).failures == 0


async def test_a_worker_that_says_anything_before_hello_is_refused(replica: Replica) -> None:
    async with worker(replica) as w:
        await w.say(heartbeat=worker_pb2.Heartbeat(sequence=1))
        async with asyncio.timeout(DEADLINE_S):
            await w.ended.wait()
        assert w.heard == []


async def test_a_session_that_needs_a_database_which_is_away_ends_as_unavailable(
    engine: AsyncEngine, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(conn: AsyncConnection, uid: str) -> None:
        raise DatabaseUnavailableError("the database does not answer")

    monkeypatch.setattr(workers, "study_by_uid", away)
    async with worker(replica) as w:
        await w.hello()
        await w.hears("welcome")
        await w.report(event_pb2.LeaseRef(lease_id="u.0.1", trial="studies/s/trials/0", attempt=1), 1, 1, 0.5)
        async with asyncio.timeout(DEADLINE_S):
            assert await w.call.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_session_outlives_a_database_that_is_too_slow_to_say_what_the_worker_holds(
    engine: AsyncEngine, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, slow = workers.held_leases, asyncio.Event()

    async def too_slow(conn: AsyncConnection, worker_id: int) -> Any:
        if slow.is_set():
            return await read(conn, worker_id)
        slow.set()
        await conn.execute(text("SET LOCAL statement_timeout = 1"))
        return await conn.execute(text("SELECT pg_sleep(1)"))

    site = await study(engine)
    async with worker(replica) as w:
        await w.hello()
        await w.hears("welcome")
        replica.hub.kick(site.study_id)
        lease = (await w.hears("assign")).lease
        monkeypatch.setattr(workers, "held_leases", too_slow)
        for sequence in range(1, 5):  # it does not name the lease, so the rows are read: the first read fails
            await w.say(heartbeat=worker_pb2.Heartbeat(sequence=sequence))
            await w.hears("ack", lambda ack, sequence=sequence: ack.heartbeat == sequence)
        await w.hears("assign", lambda assign: assign.lease == lease, count=2)
        assert slow.is_set()
        assert not w.ended.is_set()


async def test_draining_tells_the_workers(replica: Replica) -> None:
    async with worker(replica) as w:
        await w.hello()
        await w.hears("welcome")
        replica.registry.drain()
        await w.hears("drain")


def test_a_difference_counts_when_it_shows_twice() -> None:
    held = LeaseReconciler()
    held.grant("a")
    assert not held.heartbeat(set())
    assert held.heartbeat(set())
    assert held.settle({"a"}, held.said) == ({"a"}, set())
    assert not held.heartbeat({"a"})
    held.end("a")
    assert not held.heartbeat({"a"})
    assert held.heartbeat({"a"})
    assert held.settle(set(), held.said) == (set(), {"a"})
    assert not held.heartbeat(set())


def test_what_began_while_the_rows_were_read_is_not_taken_for_a_stray() -> None:
    held = LeaseReconciler()
    said = held.said
    held.grant("new")
    held.heartbeat({"new"})
    assert held.settle(set(), said) == (set(), set())


async def test_an_assignment_that_no_replica_delivered_is_found_in_the_rows(
    engine: AsyncEngine, replica: Replica
) -> None:
    site = await study(engine)
    await site.step(PauseStudy())
    async with worker(replica) as w:
        await w.hello()
        await w.hears("welcome")
        await site.step(ResumeStudy())  # by a replica that dies before it sends the order
        (lease_id,) = site.leases
        await beats_until(w, "assign")
        assert (await w.hears("assign")).lease.lease_id == lease_id


async def test_a_cancellation_that_no_replica_delivered_is_found_in_the_rows(
    engine: AsyncEngine, replica: Replica
) -> None:
    site = await study(engine)
    async with worker(replica) as w:
        await w.hello()
        replica.hub.kick(site.study_id)
        lease = (await w.hears("assign")).lease
        await site.step(StopTrial(number=0, reason=""))
        await beats_until(w, "cancel", held=(lease,))
        assert (await w.hears("cancel")).lease.lease_id == lease.lease_id


async def beats_until(w: ScriptedWorker, kind: str, held: tuple[event_pb2.LeaseRef, ...] = ()) -> None:
    """Send heartbeats until a message of a kind arrives."""
    async with asyncio.timeout(DEADLINE_S):
        while not any(response.WhichOneof("message") == kind for response in w.heard):
            await w.say(heartbeat=worker_pb2.Heartbeat(sequence=1, held=held))
            await asyncio.sleep(TIMING.heartbeat_s)


async def test_nothing_is_sent_before_welcome(
    engine: AsyncEngine, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = await study(engine)
    read = workers.held_leases
    placed = asyncio.Event()

    async def read_and_dawdle(conn: AsyncConnection, worker_id: int) -> list[workers.HeldLease]:
        held = await read(conn, worker_id)
        if not placed.is_set():
            replica.hub.kick(site.study_id)
            while not await site.rows(select(tables.lease)):
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)  # the order is delivered after the commit
            placed.set()
        return held

    monkeypatch.setattr(workers, "held_leases", read_and_dawdle)
    async with worker(replica) as w:
        await w.hello()
        await w.hears("assign")
        assert w.heard[0].WhichOneof("message") == "welcome"


async def test_a_defect_of_the_scheduler_is_charged_to_nobody(
    engine: AsyncEngine, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message is refused and its process ended. The trial, which has no retries, starts again and completes."""
    site = await study(engine, max_retries=0)

    def broken(*_: object) -> None:
        raise RuntimeError("a defect")

    async with worker(replica) as w:
        await w.hello()
        replica.hub.kick(site.study_id)
        lease = (await w.hears("assign")).lease
        with monkeypatch.context() as patch:
            patch.setattr("headrace_services.scheduler.core.dispatch.reports.receive", broken)
            await w.report(lease, 1, 1, 0.5)
            await w.hears("cancel", lambda cancel: cancel.lease.lease_id == lease.lease_id)
            await w.hears("ack", lambda ack: list(ack.sequences) == [1])
        again = (await w.hears("assign", lambda assign: assign.lease.attempt == 2)).lease
        trial = await site.trial(0)
        assert (trial.failures, trial.interruptions) == (0, 1)
        assert "could not process a report of it: this is a defect of Headrace" in str(await site.events())
        await w.report(again, 2, 9, 0.5)
        await w.hears("decision", lambda d: d.lease == again)
    trial = await site.trial(0)
    assert (trial.state, trial.reason) == ("TERMINATED", "COMPLETED")
