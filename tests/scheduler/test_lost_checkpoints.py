"""The checkpoint that a trial was to go on from is gone, as after `headrace gc`: the trial begins anew, uncharged."""

import pytest
from reopened_site import train
from sqlalchemy.ext.asyncio import AsyncEngine
from study_site import StudySite, gone, make_spec

from headrace.v1 import event_pb2, worker_pb2
from headrace_services.scheduler.core.inputs import RetryTrials
from headrace_services.scheduler.core.records import Lease
from headrace_services.scheduler.replay.replaying import replay
from headrace_services.scheduler.session.messages import checked_input

GONE = "checkpoint file:///s/ is not there: no manifest.json"


async def retried(engine: AsyncEngine) -> tuple[StudySite, Lease]:
    """A study whose one trial failed behind its rungs at 1 and 3, and is tried again."""
    spec = make_spec(max_retries=0, max_trials=1, policy={"kind": "asha", "rungs": [1, 3, 9]})
    site = await StudySite(engine, spec).create()
    await site.connect(slots=1)
    (lease,) = await site.kick()
    for step in (1, 3):
        await site.tell(lease, step, 0.5)
    await site.step(gone(lease, "FAILED", error="ValueError: no"))
    await site.step(RetryTrials(numbers=None))
    trial = await site.trial(0)
    assert (trial.state, trial.checkpoint["step"]) == ("RESUMED", 3)
    return site, site.leases[trial.lease_id]


async def again(site: StudySite, lease: Lease) -> Lease:
    await site.step(gone(lease, "NO_CHECKPOINT", error=GONE))
    return site.leases[(await site.trial(0)).lease_id]


async def test_the_second_time_it_begins_anew_and_is_charged_nothing(engine: AsyncEngine) -> None:
    site, lease = await retried(engine)
    second = await again(site, lease)
    assert second.resume is not None, "one worker alone may not see the store"
    assert second.resume.step == 3
    third = await again(site, second)
    assert (third.resume, third.step) == (None, 0)
    trial = await site.trial(0)
    assert (trial.state, trial.checkpoint, trial.failures, trial.losses_in_row) == ("RUNNING", None, 0, 0)
    told = [event.message for event in await site.log() if event.trial == 0]
    assert any("its checkpoint of step 3 is not there any more, so it begins anew" in line for line in told)
    assert any(GONE in line for line in told)
    await site.tell(third, 1, 0.4)
    assert (await site.tell(third, 9, 0.1)).action == "STOP"
    trial = await site.trial(0)
    assert (trial.reason, trial.rungs) == ("COMPLETED", 3)
    found = replay(site.spec, await site.log())
    assert found.identical, found.differences


async def test_a_loss_of_another_kind_keeps_the_checkpoint(engine: AsyncEngine) -> None:
    site, lease = await retried(engine)
    for _ in range(3):
        await site.step(gone(lease, "LOST", error="the store does not answer"))
        lease = site.leases[(await site.trial(0)).lease_id]
        assert lease.resume is not None


async def test_a_loss_of_another_kind_is_no_look_at_the_store(engine: AsyncEngine) -> None:
    """A machine dies, and the one that takes over has not mounted the store: it is not believed at once."""
    site, lease = await retried(engine)
    for outcome in ("LOST", "NO_CHECKPOINT", "LOST", "NO_CHECKPOINT"):
        await site.step(gone(lease, outcome, error=GONE))
        lease = site.leases[(await site.trial(0)).lease_id]
        assert lease.resume is not None
        assert lease.resume.step == 3
    assert (await again(site, lease)).resume is None, "now twice in a row"


async def test_a_new_checkpoint_counts_anew(engine: AsyncEngine) -> None:
    site, lease = await retried(engine)
    second = await again(site, lease)
    await site.tell(second, 5, 0.4)
    await site.step(gone(second, "LOST"))
    resumed = site.leases[(await site.trial(0)).lease_id]
    assert resumed.resume is not None
    assert resumed.resume.step == 5
    await train(site)
    assert (await site.study()).state == "COMPLETED"


@pytest.mark.parametrize(("outcome", "known"), [(5, "NO_CHECKPOINT"), (4, "LOST"), (99, "LOST")])
def test_a_worker_says_so_and_what_is_unknown_is_a_loss(outcome: int, known: str) -> None:
    lease = event_pb2.LeaseRef(lease_id="l", trial="studies/s/trials/0", attempt=1)
    message = worker_pb2.Exited(lease=lease, sequence=1, error=GONE)
    message.ParseFromString(message.SerializeToString() + bytes([0x18, outcome]))
    assert checked_input(message, 0, 1).outcome == known  # type: ignore[union-attr]
