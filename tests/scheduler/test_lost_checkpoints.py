"""The checkpoint from which a trial should continue is gone or damaged, or its store is away: nobody is charged."""

import pytest
from reopened_site import train
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncEngine
from study_site import StudySite, gone, lock_study, make_spec

from headrace.v1 import event_pb2, worker_pb2
from headrace_services.scheduler.core.inputs import ExitedArrived, RetryTrials
from headrace_services.scheduler.core.needs import Named
from headrace_services.scheduler.core.records import Lease
from headrace_services.scheduler.core.unreadable_checkpoints import (
    DAMAGED_TRIES,
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
)
from headrace_services.scheduler.replay.replaying import replay
from headrace_services.scheduler.rpc.waiting import waits_for
from headrace_services.scheduler.session.messages import checked_input
from headrace_services.scheduler.store import tables
from headrace_services.scheduler.store.database import transaction
from headrace_services.scheduler.store.load import load

GONE = "checkpoint file:///s/ is not there: no manifest.json"
DAMAGED = "checkpoint file:///s/: state.json has SHA-256 1, its manifest says 2"
AWAY = "store file:///s is away: its marker .headrace-store is not there"
THREE = ("file:///0/3", "file:///0/1")
"""The contents of the store, with the checkpoints of steps 1 and 3."""


async def retried(engine: AsyncEngine) -> tuple[StudySite, Lease]:
    """A study whose only trial failed after its rungs at 1 and 3, and is retried."""
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


async def lose(
    site: StudySite, lease: Lease, outcome: str, error: str = "", stored: tuple[str, ...] = ()
) -> None:
    await site.step(gone(lease, outcome, error=error, stored=stored))


async def wait_out(site: StudySite) -> Lease:
    """Let a trial's pause expire, and check."""
    t = tables.trial
    async with transaction(site.engine) as conn:
        await conn.execute(update(t).where(t.c.study_id == site.study_id).values(not_before_s=0))
    await site.kick()
    return site.leases[(await site.trial(0)).lease_id]


async def again(site: StudySite, lease: Lease, outcome: str = "NO_CHECKPOINT", error: str = GONE) -> Lease:
    await lose(site, lease, outcome, error)
    return await wait_out(site)


async def test_the_second_time_it_starts_again_and_is_charged_nothing(engine: AsyncEngine) -> None:
    site, lease = await retried(engine)
    second = await again(site, lease)
    assert second.resume is not None, "one worker alone may not see the store"
    assert second.resume.step == 3
    third = await again(site, second)
    assert (third.resume, third.step) == (None, 0)
    trial = await site.trial(0)
    assert (trial.state, trial.checkpoint, trial.failures, trial.losses_in_row) == ("RUNNING", None, 0, 0)
    told = [event.message for event in await site.log() if event.trial == 0]
    assert any("its checkpoint of step 3 no longer exists, so it starts over" in line for line in told)
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
    """A machine dies, and the one that takes over has not mounted the store. Its report is not believed at once."""
    site, lease = await retried(engine)
    for outcome in ("LOST", "NO_CHECKPOINT", "LOST", "NO_CHECKPOINT"):
        lease = await again(site, lease, outcome)
        assert lease.resume is not None
        assert lease.resume.step == 3
    assert (await again(site, lease)).resume is None, "now twice in a row"


async def test_a_new_checkpoint_restarts_the_count(engine: AsyncEngine) -> None:
    site, lease = await retried(engine)
    second = await again(site, lease)
    await site.tell(second, 5, 0.4)
    trial = await site.trial(0)
    assert (trial.unread, trial.not_before_s) == (None, None)
    await site.step(gone(second, "LOST"))
    resumed = site.leases[(await site.trial(0)).lease_id]
    assert resumed.resume is not None
    assert resumed.resume.step == 5
    await train(site)
    assert (await site.study()).state == "COMPLETED"


@pytest.mark.parametrize(
    ("outcome", "error"), [("NO_CHECKPOINT", GONE), ("UNREADABLE_CHECKPOINT", DAMAGED), ("STORE_AWAY", AWAY)]
)
async def test_between_two_attempts_there_is_a_pause_in_which_the_study_is_not_over(
    engine: AsyncEngine, outcome: str, error: str
) -> None:
    site, lease = await retried(engine)
    await lose(site, lease, outcome, error)
    assert await site.kick() == []
    trial = await site.trial(0)
    assert (trial.state, trial.lease_id, trial.failures, trial.losses_in_row) == ("PAUSED", None, 0, 0)
    assert trial.detail == f"{error}; it is tried again in {FIRST_PAUSE_S:g} s"
    assert (await site.study()).state == "ACTIVE"
    assert site.last is not None
    assert 0 < (site.last.effects.rests_s or 0) <= FIRST_PAUSE_S, "somebody looks again then"
    assert (await wait_out(site)).resume == lease.resume


async def test_why_says_that_a_trial_waits_for_its_next_try(engine: AsyncEngine) -> None:
    site, lease = await retried(engine)
    for _ in range(6):  # a pause of 32 s: it has not expired when the rows are read
        lease = await again(site, lease, "STORE_AWAY", AWAY)
    await lose(site, lease, "STORE_AWAY", AWAY)
    async with transaction(engine) as conn:
        study = await lock_study(conn, site.study_id)
        assert study is not None
        (trial,) = (await load(conn, site.study_id, Named(numbers=frozenset({0})))).trials
        said = await waits_for(conn, study, [trial])
    assert said == {0: f"its next try, after a pause: {AWAY}; it is tried again in 60 s"}


async def test_a_damaged_checkpoint_is_tried_with_growing_pauses_and_charged_to_nobody(
    engine: AsyncEngine,
) -> None:
    site, lease = await retried(engine)
    pauses = []
    for _ in range(DAMAGED_TRIES - 1):
        before = lease
        await lose(site, lease, "UNREADABLE_CHECKPOINT", DAMAGED)
        pauses.append((await site.trial(0)).detail.rpartition(" in ")[2])
        lease = await wait_out(site)
        assert lease.resume == before.resume
    assert pauses == ["1 s", "2 s", "4 s", "8 s", "16 s", "32 s"]
    await lose(site, lease, "UNREADABLE_CHECKPOINT", DAMAGED)
    trial = await site.trial(0)
    assert (trial.state, trial.checkpoint, trial.failures, trial.losses_in_row) == ("RUNNING", None, 0, 0)
    told = [event.message for event in await site.log() if event.trial == 0]
    assert any(
        "its checkpoint of step 3 cannot be read, 7 times in a row, so it starts over" in line
        for line in told
    )
    await train(site)
    assert (await site.study()).state == "COMPLETED"


async def test_a_store_that_is_away_is_waited_for_and_nothing_is_given_up(engine: AsyncEngine) -> None:
    site, lease = await retried(engine)
    for _ in range(3 * DAMAGED_TRIES):
        lease = await again(site, lease, "STORE_AWAY", AWAY)
        assert lease.resume is not None
        assert lease.resume.step == 3
    await lose(site, lease, "STORE_AWAY", AWAY)
    assert (await site.trial(0)).detail.endswith(f"it is tried again in {LONGEST_PAUSE_S:g} s")


async def test_a_trial_without_a_checkpoint_waits_for_its_store_too(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec(max_trials=1)).create()
    await site.connect(slots=1)
    (lease,) = await site.kick()
    for _ in range(12):
        lease = await again(site, lease, "STORE_AWAY", AWAY)
    trial = await site.trial(0)
    assert (trial.state, trial.failures, trial.losses_in_row) == ("RUNNING", 0, 0)
    await train(site)
    assert (await site.study()).state == "COMPLETED"


async def test_a_checkpoint_that_is_given_up_is_replaced_by_the_one_before_it_that_is_there(
    engine: AsyncEngine,
) -> None:
    site, lease = await retried(engine)
    for _ in range(DAMAGED_TRIES - 1):
        lease = await again(site, lease, "UNREADABLE_CHECKPOINT", DAMAGED)
    await lose(site, lease, "UNREADABLE_CHECKPOINT", DAMAGED, stored=THREE)
    lease = site.leases[(await site.trial(0)).lease_id]
    assert lease.resume is not None
    assert (lease.resume.step, lease.resume.uri) == (1, "file:///0/1")
    detail = [event.message for event in await site.log() if event.trial == 0]
    assert any("so it resumes from the one of step 1" in line for line in detail)
    await lose(site, lease, "NO_CHECKPOINT", GONE)
    assert site.leases[(await site.trial(0)).lease_id].resume is None, "that one is not waited for"


async def test_other_trials_run_while_one_waits(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec(max_trials=3)).create()
    await site.connect(slots=1)
    (first,) = await site.kick()
    await lose(site, first, "STORE_AWAY", AWAY)
    assert [lease.number for lease in site.leases.values() if lease.id != first.id] == [1]


async def test_the_next_attempt_is_on_another_worker_where_one_is_free(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec(max_trials=1, max_parallel=1)).create()
    here = await site.connect("a", slots=1)
    there = await site.connect("b", slots=4)
    (lease,) = await site.kick()
    assert lease.worker_id == here, "the tightest fit"
    lease = await again(site, lease, "STORE_AWAY", AWAY)
    assert lease.worker_id == there
    assert (await again(site, lease, "STORE_AWAY", AWAY)).worker_id == here, "of two that failed, any will do"


@pytest.mark.parametrize(
    ("outcome", "known"),
    [(5, "NO_CHECKPOINT"), (4, "LOST"), (8, "UNREADABLE_CHECKPOINT"), (9, "STORE_AWAY"), (99, "LOST")],
)
def test_a_worker_says_so_and_what_is_unknown_is_a_loss(outcome: int, known: str) -> None:
    lease = event_pb2.LeaseRef(lease_id="l", trial="studies/s/trials/0", attempt=1)
    message = worker_pb2.Exited(lease=lease, sequence=1, error=GONE, stored=THREE)
    message.ParseFromString(message.SerializeToString() + bytes([0x18, outcome]))
    found = checked_input(message, 0, 1)
    assert isinstance(found, ExitedArrived)
    assert (found.outcome, found.stored) == (known, THREE)
