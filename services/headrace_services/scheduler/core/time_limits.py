"""How long a trial may run, over all of its attempts.

An attempt's time runs from the cycle that places it to the cycle that learns of its end, by the database's clock.
What its worker does before the program starts counts; pauses do not. A user who lets the trial continue gives it
the whole time again. Its worker is given the remaining time, and asks the program to leave when that is over: to
save and report, as when others need the slots. The answer to that report ends the trial here. If a program does
not report within the grace, its worker ends it and reports that. What the trial has reported counts either way.
"""

from typing import TYPE_CHECKING, Any

from headrace.spec import StudySpec
from headrace_services.scheduler.core.inputs import ExitedArrived, ReportArrived
from headrace_services.scheduler.core.lifecycle import Reason, State
from headrace_services.scheduler.core.records import Decision, Lease, Study, Trial
from headrace_services.scheduler.core.study_status import HEARD_S

if TYPE_CHECKING:
    from headrace_services.scheduler.core.state import CycleState


def left_s(spec: StudySpec, trial: Trial) -> float | None:
    """How long an attempt that starts now may run; None without a limit."""
    limit_s = _limit_s(spec)
    return None if limit_s is None else max(0.0, limit_s - trial.ran_s)


def at_report(state: "CycleState", lease: Lease, report: ReportArrived, decision: Decision) -> Decision:
    """The answer to a report of a trial that would continue or wait, but whose time is over: the trial ends, once
    it has saved.

    A report without a checkpoint may have been sent before the program was asked to leave, as when a study closes
    (`core.closing`).
    """
    trial, limit_s = state.trials[lease.number], _limit_s(state.study.spec)
    if limit_s is None or trial.state is State.TERMINATED or decision.action == "STOP":
        return decision
    over_s = ran_s(state.study, trial) - limit_s
    if over_s < 0:
        return decision
    why = _words(limit_s)
    saves_nothing = trial.saves_nothing_at(report.step) or over_s >= HEARD_S
    if lease.worker_id is not None and report.checkpoint is None and not saves_nothing:
        said = f"{why}; it saves its state first"
        return Decision(action="CONTINUE", next_milestone=report.step + 1, reason=said)
    state.terminate(trial.number, Reason.STOPPED_EARLY, why)
    return Decision(action="STOP", next_milestone=0, reason=why)


def timed_out(state: "CycleState", trial: Trial, message: ExitedArrived) -> Reason:
    """End a trial that its worker has ended because its time was over. Returns the reason with which it ended."""
    limit_s = _limit_s(state.study.spec)
    why = message.error if limit_s is None else _words(limit_s)
    reported = state.study.spec.objective.metric in trial.metrics
    reason = Reason.STOPPED_EARLY if reported else Reason.FAILED
    said = ", and did not stop when asked" if reported else ", without a report of its objective"
    state.terminate(trial.number, reason, why + said)
    return reason


def ran_s(study: Study, trial: Trial) -> float:
    """How long a trial has run so far."""
    return trial.ran_s + (0.0 if trial.runs_since_s is None else max(0.0, study.now_s - trial.runs_since_s))


def counted(study: Study, before: Trial, after: Trial) -> dict[str, Any]:
    """The fields of a trial's time that a move changes."""
    if _limit_s(study.spec) is None or before.leased == after.leased:
        return {}
    if after.leased:
        return {"runs_since_s": study.now_s}
    return {"ran_s": ran_s(study, before), "runs_since_s": None}


def _limit_s(spec: StudySpec) -> float | None:
    timeout = spec.template.timeout if spec.template is not None else None
    return None if timeout is None else timeout.total_seconds()


def _words(limit_s: float) -> str:
    return f"it timed out: it ran for {limit_s:g} s, the study's trial_timeout_s"
