"""What a worker receives for a study with bundles: which leases share a process, message by message over a real
stream."""

from session_site import Replica, study, worker
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from headrace.v1 import event_pb2, worker_pb2
from headrace_services.scheduler.store import tables

FUSED = {"fuse": {"most": 3}, "max_trials": 6}


async def test_assignments_name_the_grant_that_they_share(engine: AsyncEngine, replica: Replica) -> None:
    site = await study(engine, **FUSED)
    async with worker(replica) as w:
        await w.hello()
        replica.hub.kick(site.study_id)
        await w.hears("assign", count=3)
        assigned = [response.assign for response in w.heard if response.WhichOneof("message") == "assign"]
        assert [one.grant.id for one in assigned] == [assigned[0].lease.lease_id] * 3
        assert [(one.grant.seats, list(one.grant.slots)) for one in assigned] == [(3, [0])] * 3
        assert len({one.lease.lease_id for one in assigned}) == 3

        await w.report(assigned[0].lease, 1, 9, 0.5)
        decision = await w.hears("decision")
        assert decision.decision.action == event_pb2.DECISION_ACTION_STOP
        joined = await w.hears("assign", count=4)
        assert joined.grant == assigned[0].grant, "the seat is given on, in the same process"

        for sequence, member in enumerate((assigned[1], assigned[2], joined), start=2):
            lost = worker_pb2.Exited(
                sequence=sequence,
                lease=member.lease,
                outcome=worker_pb2.EXIT_OUTCOME_LOST,
                error="the bundle's process died",
            )
            await w.say(exited=lost)
            await w.hears("ack", lambda ack, sequence=sequence: sequence in ack.sequences)
        again = await w.hears("assign", lambda assign: assign.lease.attempt == 2)
        assert again.grant.id == again.lease.lease_id, "a process of its own"
        assert again.grant.seats == 1
        assert {row.failures for row in await site.trials()} == {0}


async def test_a_worker_that_comes_back_is_told_of_all_members_that_it_misses(
    engine: AsyncEngine, replica: Replica
) -> None:
    site = await study(engine, **FUSED)
    async with worker(replica) as w:
        await w.hello()
        replica.hub.kick(site.study_id)
        first = await w.hears("assign")
        await w.hears("assign", count=3)
    async with worker(replica) as w:
        await w.hello(held=(first.lease,))
        await w.hears("assign", count=2)
        again = [response.assign for response in w.heard if response.WhichOneof("message") == "assign"]
        assert [one.grant for one in again] == [first.grant] * 2


async def test_an_ordinary_assignment_names_a_grant_of_one_seat(
    engine: AsyncEngine, replica: Replica
) -> None:
    site = await study(engine)
    async with worker(replica) as w:
        await w.hello()
        replica.hub.kick(site.study_id)
        assign = await w.hears("assign")
        assert (assign.grant.id, assign.grant.seats) == (assign.lease.lease_id, 1)


async def test_a_turn_of_several_members_is_one_message_each_way(
    engine: AsyncEngine, replica: Replica
) -> None:
    site = await study(engine, **FUSED)
    async with worker(replica) as w:
        await w.hello()
        replica.hub.kick(site.study_id)
        await w.hears("assign", count=3)
        members = [
            response.assign.lease for response in w.heard if response.WhichOneof("message") == "assign"
        ]
        cost = event_pb2.TurnCost(members=3, turns=5, fresh=True)
        cost.time.FromSeconds(10)
        turn = [
            worker_pb2.Report(sequence=sequence, lease=lease, step=1, metrics={"loss": 0.5})
            for sequence, lease in enumerate(members, start=1)
        ]
        turn[0].turn.CopyFrom(cost)
        turn.append(worker_pb2.Report(sequence=9, lease=members[0], step=2, metrics={"loss": 0.4}))
        turn.append(worker_pb2.Report(sequence=10, lease=event_pb2.LeaseRef(lease_id="nobody"), step=2))
        await w.say(reports=worker_pb2.Reports(reports=turn))
        await w.hears("ack", lambda ack: 9 in ack.sequences)
        await w.hears("cancel", lambda cancel: cancel.lease.lease_id == "nobody")
        answers = [
            [one.report_sequence for one in response.decisions.decisions]
            for response in w.heard
            if response.WhichOneof("message") == "decisions"
        ]
        assert answers == [[1, 2, 3, 9]]
        await w.say(reports=worker_pb2.Reports(reports=turn[:2]))  # the connection broke before the answer
        await w.hears("decisions", count=2)
    assert len(await site.events("report_recorded")) == 4, "a repeated one counts once"
    (profile,) = await site.rows(select(tables.bundle_profile))
    assert profile.steady == {}
    assert profile.fresh == {"3": {"turns": 5, "time_s": 2.0, "memory_bytes": 0}}


async def test_a_bundle_out_of_memory_is_told_by_its_exits(engine: AsyncEngine, replica: Replica) -> None:
    site = await study(engine, **FUSED)
    async with worker(replica) as w:
        await w.hello()
        replica.hub.kick(site.study_id)
        await w.hears("assign", count=3)
        members = [
            response.assign.lease for response in w.heard if response.WhichOneof("message") == "assign"
        ]
        for sequence, lease in enumerate(members, start=1):
            await w.say(
                exited=worker_pb2.Exited(
                    sequence=sequence, lease=lease, outcome=worker_pb2.EXIT_OUTCOME_LOST, out_of_memory=3
                )
            )
        await w.hears("assign", lambda assign: assign.lease.attempt == 2)
    (profile,) = await site.rows(select(tables.bundle_profile))
    assert (profile.device, profile.most) == ("cpu", 1)
