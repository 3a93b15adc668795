"""A runtime in memory: it records what it receives, and decides as it was told to."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from headrace.trial import Trial
from headrace.trial.runtime import TOLD, Action, Assignment, Decision, EndsStudy, KeepBest, OwnEnd, Report


@dataclass(kw_only=True)
class RecordingRuntime:
    """Milestones at each of `rungs`; the decision at each is CONTINUE unless `decisions` says otherwise."""

    checkpoint_dir: Path | None
    rungs: tuple[int, ...] = (2, 4)
    decisions: dict[int, Action] = field(default_factory=dict)
    params: dict[str, Any] = field(default_factory=lambda: {"lr": 0.1, "act": "relu"})
    metric: str = ""
    constraint_metrics: tuple[str, ...] = ()
    last_step: int = 0
    keep_best: KeepBest | None = None
    ends_study: EndsStudy | None = None
    reports: list[Report] = field(default_factory=list)
    restores: int = 0
    finished: list[str] = field(default_factory=list)
    ends: list[OwnEnd] = field(default_factory=list)

    def attach(self) -> Assignment:
        assignment = Assignment(
            trial="studies/s/trials/5",
            params=self.params,
            max_steps=self.rungs[-1],
            rungs=self.rungs,
            next_milestone=self.rungs[0],
            seed=3,
            metric=self.metric,
            constraint_metrics=self.constraint_metrics,
            last_step=self.last_step,
            keep_best=self.keep_best,
            ends_study=self.ends_study,
            checkpoint_dir=self.checkpoint_dir,
        )
        saved = [report for report in self.reports if report.checkpoint_dir is not None]
        if not saved:
            return assignment
        step = saved[-1].step
        milestone = next((rung for rung in self.rungs if rung > step), self.rungs[-1])
        return replace(
            assignment, restore_dir=saved[-1].checkpoint_dir, resume_step=step, next_milestone=milestone
        )

    def trial(self) -> Trial:
        """The trial of a new process."""
        return Trial(self.attach(), self)

    def restored(self, *, read_time_s: float) -> None:
        assert read_time_s >= 0
        self.restores += 1

    def report(self, report: Report) -> Decision:
        self.reports.append(report)
        milestone = next((rung for rung in self.rungs if rung > report.step), self.rungs[-1])
        action = self.decisions.get(report.step, Action.CONTINUE)
        return Decision(action=action, next_milestone=milestone, reason="as told")

    def finish(self, *, error: str, traceback: str, own: OwnEnd = TOLD) -> None:
        assert bool(error) == bool(traceback)
        self.finished.append(error)
        self.ends.append(own)
