"""One study run twice under the scheduler's core, on one slot: with separate trials in plain PyTorch, and in a
bundle.

The core decides over rows in memory. Without a bundle the trials run one after the other, in the order in which
the core places them. In the bundle they train together, and their reports reach the core in that same order.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from headrace.spec import StudySpec
from headrace.trial import Bundle
from headrace.trial.bundle_run import run_bundle
from headrace.trial.bundle_runtime import Answer, Attached, Ended, Said, Seat
from headrace.trial.runtime import Action, Assignment, Decision
from headrace_services.scheduler.core import inputs
from headrace_services.scheduler.core.fold import Fold
from headrace_services.scheduler.core.records import Checkpoint
from headrace_services.scheduler.samplers import make_sampler
from headrace_services.scheduler.session.messages import trial_seed
from headrace_services.scheduler.simulator.cluster import machines
from headrace_services.scheduler.simulator.cluster_rows import ClusterRows
from headrace_services.scheduler.simulator.cycle import cycle
from headrace_services.scheduler.simulator.rows import StudyRows

Arrival = tuple[int, int]
"""A trial and a step."""
Advance = Callable[[], float]
"""Trains one more step, and returns the value to report."""


class Study:
    """A study under the core, on one slot."""

    def __init__(self, spec: StudySpec) -> None:
        self.spec = spec
        self.rows = StudyRows(spec, Fold.empty(spec, make_sampler(spec)), name="digits")
        self.rows.events = []
        self.curves: dict[int, dict[int, float]] = {}
        self._cluster = ClusterRows(machines(1))
        self._sequence = 0

    @property
    def over(self) -> bool:
        return self.rows.study.state.ended

    @property
    def decisions(self) -> list[tuple[int | None, str]]:
        """Every decision in order: the trial and the words, but not who gets its slot."""
        made = [one for one in self.rows.events or () if one.kind == "decision_made"]
        return [(one.number, one.message.partition("; its slot goes to")[0]) for one in made]

    def place(self) -> list[inputs.Assignment]:
        """Starts what can start."""
        return self._step(inputs.PlaceNow())[1]

    def report(
        self, run: inputs.Assignment, step: int, value: float, saved: Path | None
    ) -> tuple[Decision, list[inputs.Assignment]]:
        """Takes a report; returns the decision and the assignments that start now."""
        number = run.lease.number
        self.curves.setdefault(number, {})[step] = value
        self._sequence += 1
        arrived = inputs.ReportArrived(
            lease_id=run.lease.id,
            number=number,
            attempt=run.lease.attempt,
            sequence=self._sequence,
            step=step,
            metrics={self.spec.objective.metric: value},
            checkpoint=None if saved is None else Checkpoint(uri=str(saved), step=step),
        )
        outcome, started = self._step(arrived)
        assert isinstance(outcome, inputs.Accepted)
        assert outcome.decision is not None
        action = Action[outcome.decision.action]
        return Decision(action=action, next_milestone=outcome.decision.next_milestone), started

    def _step(self, one: inputs.Input) -> tuple[object, list[inputs.Assignment]]:
        plan = cycle(self.rows, {self.rows.study.id: self.rows}, self._cluster, [one], 0.0)
        started = [order for order in plan.effects.orders if isinstance(order, inputs.Assignment)]
        return plan.outcomes[0], started


def one_by_one(study: Study, begin: Callable[[int, int, dict[str, float]], Advance]) -> list[Arrival]:
    """Runs a study without bundles to its end; `begin` makes a trial from its number, seed and parameters. Returns
    the order of the reports."""
    order: list[Arrival] = []
    trials: dict[int, Advance] = {}
    (run,) = study.place()
    while True:
        number, milestone = run.lease.number, run.trial.milestone
        if number not in trials:
            trials[number] = begin(number, trial_seed(study.spec.seed, number), dict(run.trial.params))
        step, decision = run.lease.step, Decision(action=Action.CONTINUE)
        started: list[inputs.Assignment] = []
        while decision.action is Action.CONTINUE:
            step += 1
            order.append((number, step))
            saved = Path("saved") if step == milestone else None
            decision, started = study.report(run, step, trials[number](), saved)
            milestone = decision.next_milestone or milestone
        if not started:
            assert study.over
            return order
        (run,) = started


@dataclass
class Together:
    """The bundle's runtime: reports reach the core in the given order, whatever order they arrive in."""

    study: Study
    order: deque[Arrival]
    folder: Path
    most: int = 0
    """The largest number of members at once."""
    _runs: dict[str, inputs.Assignment] = field(default_factory=dict)
    _waiting: dict[Arrival, tuple[str, float, Path | None]] = field(default_factory=dict)

    def attach(self) -> Attached:
        assert self.study.spec.fuse is not None
        return Attached(members=self._seats(self.study.place()), seats=self.study.spec.fuse.most)

    def turn(self, said: Said) -> Answer:
        assert not said.finished, said.finished
        metric = self.study.spec.objective.metric
        for lease, report in said.reports:
            arrival = self._runs[lease].lease.number, report.step
            self._waiting[arrival] = lease, report.metrics[metric], report.checkpoint_dir
        decisions: list[tuple[str, Decision]] = []
        joined: list[Seat] = []
        while self.order and self.order[0] in self._waiting:
            arrival = self.order.popleft()
            lease, value, saved = self._waiting.pop(arrival)
            decision, started = self.study.report(self._runs[lease], arrival[1], value, saved)
            decisions.append((lease, decision))
            if decision.action is not Action.CONTINUE:
                del self._runs[lease]
            joined += self._seats(started)
        assert decisions or not said.waits, f"nobody trains, and {self.order[0]} does not come"
        return Answer(decisions=tuple(decisions), joined=tuple(joined), over=not self._runs)

    def finish(self, end: Ended) -> None:
        assert end == Ended(), end.traceback

    def _seats(self, started: list[inputs.Assignment]) -> tuple[Seat, ...]:
        self._runs |= {run.lease.id: run for run in started}
        self.most = max(self.most, len(self._runs))
        return tuple(Seat(lease=run.lease.id, assignment=self._assignment(run)) for run in started)

    def _assignment(self, run: inputs.Assignment) -> Assignment:
        spec, number, resume = self.study.spec, run.lease.number, run.lease.resume
        assert run.trial.milestone is not None
        return Assignment(
            trial=f"studies/digits/trials/{number}",
            params=run.trial.params,
            max_steps=spec.max_steps,
            rungs=spec.rungs(),
            next_milestone=run.trial.milestone,
            seed=trial_seed(spec.seed, number),
            metric=spec.objective.metric,
            restore_dir=None if resume is None else Path(resume.uri),
            resume_step=run.lease.step,
            checkpoint_dir=self.folder / run.lease.id,
        )


def together(study: Study, train: Callable[[Bundle], object], order: list[Arrival], folder: Path) -> Together:
    """Runs a study of one bundle to its end."""
    runtime = Together(study, deque(order), folder)
    run_bundle(train, runtime, runtime.attach())
    assert not runtime.order
    return runtime
