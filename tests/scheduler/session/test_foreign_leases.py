"""A worker speaks only for its own leases: whatever it sends about another worker's leases changes nothing there."""

from typing import Any

import pytest
from session_site import Replica, study, worker
from sqlalchemy.ext.asyncio import AsyncEngine

from headrace.v1 import worker_pb2

LAST = 2**53
"""The highest sequence that a scheduler accepts: no later message of the same lease would count."""

FOREIGN = [
    {"report": worker_pb2.Report(sequence=LAST, step=9, metrics={"loss": -999.0})},
    {"report": worker_pb2.Report(sequence=1, step=1, metrics={"loss": -999.0})},
    {"report": worker_pb2.Report(sequence=1, step=0, metrics={"loss": -999.0})},  # out of bounds
    {"restored": worker_pb2.Restored(sequence=LAST)},
    {"exited": worker_pb2.Exited(sequence=LAST, outcome=worker_pb2.EXIT_OUTCOME_FINISHED)},
    {"exited": worker_pb2.Exited(sequence=LAST, outcome=worker_pb2.EXIT_OUTCOME_FAILED, error="x")},
    {"exited": worker_pb2.Exited(sequence=LAST, outcome=worker_pb2.EXIT_OUTCOME_RELEASED)},
    {"exited": worker_pb2.Exited(sequence=LAST, outcome=worker_pb2.EXIT_OUTCOME_NO_CHECKPOINT)},
    {"exited": worker_pb2.Exited(sequence=LAST, outcome=worker_pb2.EXIT_OUTCOME_UNPREPARED)},
    {"exited": worker_pb2.Exited(sequence=LAST, outcome=worker_pb2.EXIT_OUTCOME_LOST)},
]


@pytest.mark.parametrize("said", FOREIGN, ids=[f"{next(iter(one))}-{n}" for n, one in enumerate(FOREIGN)])
async def test_what_a_worker_says_of_another_s_lease_changes_nothing(
    engine: AsyncEngine, replica: Replica, said: dict[str, Any]
) -> None:
    site = await study(engine)
    async with worker(replica) as holder, worker(replica) as rogue:
        await holder.hello()
        replica.hub.kick(site.study_id)
        lease = (await holder.hears("assign")).lease
        await rogue.hello(name="rogue", slots=0)
        await rogue.hears("welcome")
        before, events = await site.trial(0), len(await site.events())
        ((kind, message),) = said.items()
        stolen = type(message)()
        stolen.CopyFrom(message)
        stolen.lease.CopyFrom(lease)
        await rogue.say(**{kind: stolen})
        await rogue.hears("ack", lambda ack: message.sequence in ack.sequences)
        assert await site.trial(0) == before
        assert len(await site.events()) == events
        await holder.report(lease, 1, 9, 0.5)  # the holder still has its lease, and its messages count
        decision = await holder.hears("decision")
        assert decision.lease == lease
        assert (await site.trial(0)).metrics == {"loss": 0.5}
