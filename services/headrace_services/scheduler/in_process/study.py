"""The study: converts the calls of its one caller into inputs of the core."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError
from headrace.spec import StudySpec
from headrace.trial.runtime import Action, Decision
from headrace_services.scheduler.core.fold import Fold
from headrace_services.scheduler.core.inputs import (
    Accepted,
    ExitedArrived,
    Input,
    Outcome,
    ProposalComingError,
    ReportArrived,
    StopStudy,
    Suggest,
    Suggested,
)
from headrace_services.scheduler.core.lifecycle import Reason, StudyState
from headrace_services.scheduler.core.records import Checkpoint, Lease, Params
from headrace_services.scheduler.in_process.history import Kept
from headrace_services.scheduler.in_process.proposing import Proposing
from headrace_services.scheduler.samplers import expected_trials, make_sampler, points_of, require_own
from headrace_services.scheduler.session.messages import trial_seed
from headrace_services.scheduler.simulator.cluster_rows import ClusterRows
from headrace_services.scheduler.simulator.cycle import written
from headrace_services.scheduler.simulator.rows import StudyRows

if TYPE_CHECKING:
    from headrace.client.model import Report, StudyInfo, TrialInfo

CLIENT = "in process"


@dataclass(slots=True, kw_only=True)
class Asked:
    """A trial for the caller to run."""

    lease: Lease
    params: Params
    seed: int
    milestone: int
    """The step up to which it may run without a decision."""
    step: int
    """The step that it has reached; above 0 if it continues after a pause."""
    over: bool = False
    """Whether it no longer belongs to the caller."""

    @property
    def number(self) -> int:
        """The trial's number."""
        return self.lease.number


class InProcessStudy:
    """A study that one caller runs with plain function calls, ask/tell."""

    def __init__(self, spec: StudySpec, *, name: str) -> None:
        require_own(spec)
        fold = Fold.empty(spec, make_sampler(spec), points=points_of(spec))
        now = datetime.now(UTC)
        self._rows = StudyRows(spec, fold, name=name, created=now, planned=expected_trials(spec))
        self._studies = {self._rows.study.id: self._rows}
        self._cluster = ClusterRows(())
        self._proposing = Proposing(spec)
        self._kept = Kept()

    @property
    def spec(self) -> StudySpec:
        """The study's spec."""
        return self._rows.study.spec

    @property
    def has_reports(self) -> bool:
        """Whether any trial has reported anything."""
        return self._rows.study.reports > 0

    @property
    def has_failed(self) -> bool:
        """Whether the study has ended without a usable result."""
        return self._rows.study.state is StudyState.FAILED

    def ask(self) -> Asked | None:
        """The next trial to run; None if nothing is left to run."""
        while True:
            outcome = self._step(Suggest(client_id=CLIENT, ttl_s=math.inf))
            if isinstance(outcome, ProposalComingError):
                self._apply(self._proposing.next(self._rows))
                continue
            assert isinstance(outcome, Suggested)
            if outcome.trial is None or outcome.lease is None:
                return None
            trial = outcome.trial
            return Asked(
                lease=outcome.lease,
                params=trial.params,
                seed=trial_seed(self.spec.seed, trial.number),
                milestone=trial.milestone or self.spec.max_steps,
                step=outcome.lease.step,
            )

    def report(self, asked: Asked, step: int, metrics: Mapping[str, float], *, held: bool) -> Decision:
        """Record a result and say what to do next.

        `held`: the caller keeps the trial's state, so that it can continue after a pause. Raises InvalidFieldError
        for a step that the trial must not report, and for a report without an objective.
        """
        saved = Checkpoint(uri=f"memory:{asked.number}", step=step) if held else None
        outcome = self._apply(
            ReportArrived(
                lease_id=asked.lease.id,
                number=asked.number,
                attempt=asked.lease.attempt,
                sequence=None,
                step=step,
                metrics=dict(metrics),
                checkpoint=saved,
            )
        )
        if not isinstance(outcome, Accepted) or outcome.decision is None:
            asked.over = True
            return Decision(action=Action.STOP, reason=self._rows.study.detail or "the study has ended")
        decision = outcome.decision
        asked.over = decision.action != "CONTINUE"
        return Decision(
            action=Action[decision.action], next_milestone=decision.next_milestone, reason=decision.reason
        )

    def finish(self, asked: Asked) -> None:
        """The trial ended by itself."""
        self._end(asked, "FINISHED", "")

    def fail(self, asked: Asked, error: str) -> None:
        """The trial failed."""
        self._end(asked, "FAILED", error)

    def infeasible(self, asked: Asked, reason: str) -> None:
        """Its configuration makes no sense."""
        self._end(asked, "INFEASIBLE", reason)

    def stop(self, why: str) -> None:
        """End the study, and cancel its unfinished trials."""
        if not self._rows.study.state.ended:
            self._apply(StopStudy(reason=why))

    def take_ended(self) -> list[int]:
        """The trials that ran and have ended since the last call."""
        return self._kept.take_ended()

    def trial(self, number: int) -> "TrialInfo":
        """One trial in its present state."""
        from headrace_services.scheduler.in_process.showing import trial_info

        return trial_info(self._rows, self._kept, number)

    def show(self) -> "tuple[StudyInfo, list[TrialInfo], list[Report]]":
        """The whole study in its present state."""
        from headrace_services.scheduler.in_process.showing import shown

        return shown(self._rows, self._kept)

    def _end(self, asked: Asked, outcome: str, error: str) -> None:
        asked.over = True
        self._apply(
            ExitedArrived(
                lease_id=asked.lease.id,
                number=asked.number,
                attempt=asked.lease.attempt,
                sequence=None,
                outcome=outcome,
                error=error,
                by_itself=True,
            )
        )

    def _apply(self, one: Input) -> Outcome:
        """Run one cycle. Raises the error if the input was refused."""
        outcome = self._step(one)
        if isinstance(outcome, HeadraceError):
            raise outcome
        return outcome

    def _step(self, one: Input) -> Outcome | HeadraceError:
        now = datetime.now(UTC)
        self._rows.clock(now)
        plan = written(self._rows, self._studies, self._cluster, [one], time.monotonic())
        self._kept.record(plan, now)
        if plan.changes.rungs or any(
            change.after.reason in (Reason.COMPLETED, Reason.INFEASIBLE) for change in plan.changes.trials
        ):
            self._proposing.observe(plan, self._rows.fold.policy)
        return plan.outcomes[0]
