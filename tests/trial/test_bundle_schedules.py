"""Whatever a bundle's members go through, each has the same curve as when it runs alone."""

import random
import tempfile
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from fake_group import FakeGroup
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import drawn

from headrace.trial import Bundle
from headrace.trial.bundle_run import run_bundle
from headrace.trial.bundle_runtime import Answer, Attached, Ended, Said, Seat
from headrace.trial.runtime import Action, Assignment, Decision, Report

STEPS = 6
RUNGS = (1, 3, 6)


@dataclass
class Trials:
    """Decides late or at once, pauses, ends leases, and lets trials join in any order."""

    folder: Path
    count: int
    seats: int
    chance: random.Random
    lone: bool = False
    curves: dict[int, dict[int, float]] = field(default_factory=dict)
    saved: dict[int, tuple[Path, int]] = field(default_factory=dict)
    undecided: dict[str, Report] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)
    milestones: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.queue = deque(range(self.count))
        self.running: dict[str, int] = {}
        self.leases = 0

    def attach(self) -> Attached:
        return Attached(members=tuple(self._join(1)), seats=self.seats)

    def _join(self, least: int = 0) -> list[Seat]:
        room = min(self.seats - len(self.running), len(self.queue))
        seats = []
        for _ in range(
            room if self.lone or not self.running else self.chance.randint(min(least, room), room)
        ):
            number = self.queue.popleft()
            self.leases += 1
            lease = f"lease-{self.leases}"
            self.running[lease] = number
            restore, step = self.saved.get(number, (None, 0))
            self.milestones[lease] = next(rung for rung in RUNGS if rung > step)
            assignment = Assignment(
                trial=f"studies/s/trials/{number}",
                params={"lr": number + 2},
                seed=10 + number,
                max_steps=STEPS,
                rungs=RUNGS,
                next_milestone=self.milestones[lease],
                restore_dir=restore,
                resume_step=step,
                checkpoint_dir=self.folder / str(number),
                metric="loss",
            )
            seats.append(Seat(lease=lease, assignment=assignment))
        return seats

    def turn(self, said: Said) -> Answer:
        assert said.waits or said.reports or said.finished
        for one in said.finished:
            self.errors[self.running.pop(one.lease)] = one.error
        for lease, report in said.reports:
            assert lease not in self.undecided, "it trained without a decision"
            number = self.running[lease]
            assert report.step <= self.milestones[lease]
            value = report.metrics["loss"]
            assert self.curves.setdefault(number, {}).setdefault(report.step, value) == value
            if report.checkpoint_dir is not None:
                self.saved[number] = (report.checkpoint_dir, report.step)
            self.undecided[lease] = report
        decisions = []
        gone = []
        for lease, report in list(self.undecided.items()):
            at_milestone = report.step >= self.milestones[lease]
            if at_milestone and not self.lone and not said.waits and self.chance.random() < 0.4:
                continue
            del self.undecided[lease]
            decision = self._decide(lease, report, at_milestone)
            if decision is None:
                gone.append(lease)
            else:
                decisions.append((lease, decision))
        joined = self._join()
        return Answer(
            decisions=tuple(decisions),
            joined=tuple(joined),
            gone=tuple(gone),
            over=not self.running and not self.queue,
        )

    def _decide(self, lease: str, report: Report, at_milestone: bool) -> Decision | None:
        if report.step >= STEPS:
            del self.running[lease]
            return Decision(action=Action.STOP)
        if not self.lone and self.chance.random() < 0.3:
            self.queue.append(
                self.running.pop(lease)
            )  # cut off, or paused: it comes back from its checkpoint
            return Decision(action=Action.PAUSE) if at_milestone else None
        if at_milestone:
            self.milestones[lease] = next(rung for rung in RUNGS if rung > report.step)
        return Decision(action=Action.CONTINUE, next_milestone=self.milestones[lease])

    def finish(self, end: Ended) -> None:
        assert end == Ended()


def train(bundle: Bundle) -> None:
    group = FakeGroup()
    bundle.track(group=group)
    for _ in bundle.steps():
        group.step()
        bundle.report(loss=group.step())


def curves(
    folder: Path, count: int, seats: int, seed: int, *, lone: bool = False
) -> dict[int, dict[int, float]]:
    trials = Trials(folder, count, seats, random.Random(seed), lone)
    run_bundle(train, trials, trials.attach())
    assert not trials.errors
    return trials.curves


@settings(max_examples=drawn(first=8, full=25))
@given(count=st.integers(1, 6), seats=st.integers(1, 4), seed=st.integers(0, 10_000))
def test_each_member_has_the_curve_that_it_has_alone(count: int, seats: int, seed: int) -> None:
    with tempfile.TemporaryDirectory() as place:
        together = curves(Path(place) / "a", count, seats, seed)
        alone = curves(Path(place) / "b", count, 1, 0, lone=True)
    assert together == alone
    assert all(sorted(curve) == list(range(1, STEPS + 1)) for curve in together.values())
