"""A primary that changes, or stalls for a while: windows are relearnt, and no window is overrun meanwhile.

Hooks and agent are the production ones; their clock is simulated, so every window is exact. `examples/bubbles` and
`test_bubble_hook.py` have real ranks.
"""

from pathlib import Path

import pytest
from simulated_primary import MS, SimulatedPrimary

from headrace_services.bubble_agent.predictor import LEAST
from headrace_torch.bubbles.hook import PAUSED

CHANGE = 10
"""The step in which something changes."""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimulatedPrimary:
    return started(tmp_path, monkeypatch)


def started(folder: Path, patch: pytest.MonkeyPatch, **changes: object) -> SimulatedPrimary:
    made = SimulatedPrimary(folder, **changes)  # type: ignore[arg-type]  # of several types
    made.start(patch)
    made.run(CHANGE)
    assert made.first_used(0) == LEAST
    assert not made.overruns(0)
    return made


def learns_anew(job: SimulatedPrimary, since: int) -> None:
    """No gate opens in steps about which nothing is known. Then gates open again, and no window is overrun."""
    assert not job.overruns(CHANGE)
    assert job.first_used(since) == since + LEAST
    assert {one.stage for one in job.opened if one.step > since + LEAST} == set(range(job.stages))


@pytest.mark.parametrize("micro_batches", [4, 7, 16])
def test_other_micro_batches_are_relearnt(job: SimulatedPrimary, micro_batches: int) -> None:
    job.micro_batches = micro_batches
    job.run(15)
    learns_anew(job, CHANGE)


@pytest.mark.parametrize("times", [0.3, 0.9, 2.0])
def test_another_sequence_length_is_relearnt(job: SimulatedPrimary, times: float) -> None:
    job.reshape(times)
    job.run(15)
    learns_anew(job, CHANGE)


@pytest.mark.parametrize("times", [0.3, 0.9, 2.0])
def test_a_sequence_length_that_changes_without_notice_overruns_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: float
) -> None:
    """A stage sees the new length with its first input, and does not know how long it will wait for that input."""
    job = started(tmp_path, monkeypatch, dynamic=True)
    job.reshape(times)
    job.run(15)
    assert not job.overruns(CHANGE)
    again = {one.step for one in job.opened if one.step > CHANGE}
    assert min(again) == CHANGE + LEAST


STALLS = [(0, "F", 5), (1, "B", 2), (2, "B", 6), (3, "F", 4), (3, "B", 5)]


@pytest.mark.cases(4)
@pytest.mark.parametrize(("stage", "kind", "micro_batch"), STALLS)
@pytest.mark.parametrize("stall_ms", [5, 30, 300])
def test_a_stage_that_stands_still_for_a_moment_makes_nobody_overrun(
    job: SimulatedPrimary, stage: int, kind: str, micro_batch: int, stall_ms: int
) -> None:
    """What its neighbours sent meanwhile is already there: the following windows in this step are short."""
    job.stalls = {(stage, kind, micro_batch): stall_ms * MS}  # type: ignore[dict-item]  # the kind is a parameter
    job.run(20)
    assert not job.overruns(CHANGE)
    usual = job.covered(CHANGE - 1, CHANGE)
    assert job.covered(CHANGE + 5, CHANGE + 6) >= 0.9 * usual, "what was known is known"


@pytest.mark.parametrize(("stage", "kind", "micro_batch"), STALLS)
def test_a_stage_that_stands_still_for_long_is_relearnt(
    job: SimulatedPrimary, stage: int, kind: str, micro_batch: int
) -> None:
    job.stalls = {(stage, kind, micro_batch): 2 * PAUSED * job.lengths[-1]}  # type: ignore[dict-item]  # the kind is a parameter
    job.run(15)
    learns_anew(job, CHANGE + 1)


def test_a_job_that_does_something_else_between_steps_is_relearnt(job: SimulatedPrimary) -> None:
    job.run(15, pause_ns=2 * PAUSED * job.lengths[-1])
    learns_anew(job, CHANGE)


def test_a_short_break_between_steps_is_no_pause(job: SimulatedPrimary) -> None:
    job.run(1, pause_ns=job.lengths[-1])
    assert job.first_used(CHANGE) == CHANGE
    assert not job.overruns(CHANGE)


def test_with_jitter_a_change_makes_no_more_overruns_than_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = SimulatedPrimary(tmp_path, jitter=0.02)
    job.start(monkeypatch)
    job.run(60)
    job.micro_batches = 12
    job.run(8)
    job.reshape(0.5)
    job.run(8)
    job.stalls = {(2, "B", 6): 20_000.0 * MS}
    job.run(8)
    before = [one for one in job.opened if one.step < 60]
    after = [one for one in job.opened if one.step >= 60]
    assert len(after) > 50
    assert len(job.overruns(60)) / len(after) <= 0.15
    assert (len(job.overruns(0)) - len(job.overruns(60))) / len(before) <= 0.1
