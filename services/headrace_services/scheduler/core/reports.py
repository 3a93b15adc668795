"""A report arrives: what it adds to the trial, and what the trial is to do next.

A report counts once, however often it arrives. If it makes no progress in its attempt (the same step again, or a
lower one), it is recorded and changes only the checkpoint, whose predecessor the worker may delete. From an ask/tell
client, such a report is a repeat: if it says nothing new, it is answered and not recorded, and if it differs, it is
refused, so the first report of a step counts. If a report is at or past the milestone, it is recorded at every rung it
crosses, lowest first, and then the policy decides.
"""

from collections.abc import Mapping
from math import isfinite

from msgspec import Struct
from msgspec.structs import replace

from headrace.bests import improves
from headrace.errors import InvalidFieldError, Violation, show_value
from headrace.spec import StudySpec
from headrace.spec.objective import is_feasible
from headrace.spec.scalars import INT64_MAX
from headrace.steps import counted_already, refusal
from headrace_services.scheduler.core import (
    closing,
    code_changes,
    events,
    failed_starts,
    other_code,
    preemption,
    seats,
    stale_leases,
    time_limits,
    until,
)
from headrace_services.scheduler.core.changes import RungChange
from headrace_services.scheduler.core.inputs import Accepted, Outcome, ReportArrived
from headrace_services.scheduler.core.lifecycle import (
    AT_ITS_END,
    BY_USER,
    WITH_STUDY,
    Action,
    Reason,
    State,
    StudyState,
)
from headrace_services.scheduler.core.policies import Action as Ruling
from headrace_services.scheduler.core.policies import Explanation
from headrace_services.scheduler.core.records import (
    Decision,
    Exploit,
    Lease,
    Report,
    RungCost,
    RungEntry,
    Trial,
)
from headrace_services.scheduler.core.scores import best_report, is_made_by, scored, windows
from headrace_services.scheduler.core.state import CycleState

_NAMES_SHOWN = 8


def receive(state: CycleState, report: ReportArrived) -> Outcome:
    """Apply a report.

    Raises InvalidFieldError if an ask/tell client reports a step that its trial must not report, or omits an
    objective's metric. A worker's report is accepted as it is: a worker repeats what it has until it is accepted.
    """
    lease = state.lease(report)
    if lease is None:
        return stale_leases.gone(state, report)
    sequence = report.sequence if report.sequence is not None else lease.last_sequence + 1
    if sequence <= lease.last_sequence:
        known = state.answers.get((lease.number, lease.attempt, sequence))
        return (
            Accepted(decision=_pinning(state, lease.number, known))
            if known
            else stale_leases.gone(state, report)
        )
    if not (lease.live or stale_leases.may_reclaim(state, lease)):
        return stale_leases.gone(state, report)
    if report.sequence is None:
        _require_sound(state, state.trials[lease.number], lease, report)
        code_changes.require_unchanged(state, report.code)
    if not lease.live:
        lease = state.reclaim(lease)
    if not code_changes.check(state, lease, report.code):
        return stale_leases.gone(state, report)
    if state.trials[lease.number].state is State.RESUMED:
        state.move(lease.number, Action.RESTORED)
    failed_starts.over(state, lease.number)
    if state.trials[lease.number].unread is not None:
        state.update(lease.number, unread=None)
    before = state.trials[lease.number]
    if report.sequence is None and _is_repeat(before, lease, report):
        return Accepted(decision=_pinning(state, lease.number, _of_repeat(state.study.spec, before, report)))
    progress = max(0, report.step - lease.step)
    lease = state.update_lease(lease, last_sequence=sequence, step=lease.step + progress)
    report = _with_marks(state, lease, report)
    trial = _note_metrics(state, lease, report, progress)
    if progress and lease.model and report.train_time_s > 0 and not lease.owner_stage:
        state.learn_speed(lease, progress, report.train_time_s)
        trial = state.trials[lease.number]
    returns = state.study.standing.returns
    if returns is None or (returns and not report.returned):
        state.stand(returns=report.returned)
    state.emit(events.report_recorded(lease, sequence, report))
    if report.turn is not None:
        seats.learn(state, lease, report.turn)
    for warning in report.warnings:
        state.emit(events.trial_warned(lease.number, warning))
    if state.study.reports == 1:
        _look_for_metrics(state, report)
    if not progress or trial.milestone is None or report.step < trial.milestone:
        decision = _before_milestone(state, trial, lease, report)
    elif state.study.metric_seen or _is_the_first(state, trial):
        decision = _at_milestone(state, trial, lease, report, progress)
    else:
        decision = _metric_unknown(state, report)
    until.compare(state, before)
    until.look(state)
    decision = closing.at_report(state, lease, report, decision)
    decision = time_limits.at_report(state, lease, report, decision)
    state.answers[lease.number, lease.attempt, sequence] = decision
    state.changes.reports.append(
        Report(
            number=lease.number,
            attempt=lease.attempt,
            sequence=sequence,
            step=report.step,
            metrics=report.metrics,
            checkpoint=report.checkpoint,
            train_time_s=report.train_time_s,
            decision=decision,
        )
    )
    return Accepted(decision=_pinning(state, lease.number, decision))


def _require_sound(state: CycleState, trial: Trial, lease: Lease, report: ReportArrived) -> None:
    violations = [*_step_violations(state, trial, lease, report), *_metric_violations(state, report)]
    if violations:
        raise InvalidFieldError(violations)


def _step_violations(state: CycleState, trial: Trial, lease: Lease, report: ReportArrived) -> list[Violation]:
    spec, step = state.study.spec, report.step
    refused = refusal(step, since=lease.step, rungs=trial.rungs_ahead(spec), max_steps=spec.max_steps)
    if refused is None and not (step == lease.step and _told(report.metrics) == _told(trial.metrics)):
        refused = counted_already(step, lease.step)
    if refused is None:
        return []
    return [Violation(field="step", value=show_value(step), message=refused.message, remedy=refused.remedy)]


def _is_repeat(trial: Trial, lease: Lease, report: ReportArrived) -> bool:
    """Whether a sound report of an ask/tell client was recorded before in this attempt and says nothing new: neither
    another checkpoint nor other code."""
    saved, code = report.checkpoint, report.code
    known = saved is None or (trial.checkpoint is not None and trial.checkpoint.uri == saved.uri)
    same_code = code is None or code.digest == trial.code
    return lease.last_sequence > 0 and report.step == lease.step and known and same_code


def _of_repeat(spec: StudySpec, trial: Trial, report: ReportArrived) -> Decision:
    """The answer to a repeat. Its caller still holds the trial, so the first report was answered with CONTINUE."""
    return _go_on(trial.next_save(spec, report.step) or report.step, "this report was recorded before")


def _told(metrics: Mapping[str, float]) -> set[tuple[str, str]]:
    """Metrics as a set that can be compared: NaN equals NaN."""
    return {(name, repr(value)) for name, value in metrics.items()}


def _metric_violations(state: CycleState, report: ReportArrived) -> list[Violation]:
    """The faults of a report without the objective's value: it is no use for judging, and might end the study at a
    rung."""
    missing = _missing(state.study.spec, report)
    if not missing:
        return []
    named = " and ".join(f"'{metric}'" for metric in missing)
    reported = ", ".join(f"'{name}'" for name in sorted(report.metrics)[:_NAMES_SHOWN])
    return [
        Violation(
            field="metrics",
            value=reported,
            message=f"lack the objective's metric {named}",
            remedy=f"Report {named} at every step: a number, or NaN where there is none; None does not count.",
        )
    ]


def _pinning(state: CycleState, number: int, decision: Decision) -> Decision:
    """The decision with the trial's checkpoints that must not be deleted: others use them or may do so, it is the
    best one and kept, or it is that of an earlier end."""
    spec, trial = state.study.spec, state.trials[number]
    if not trial.retains_checkpoints(spec):
        return decision
    pinned = set(state.fold.policy.pinned(number)) if spec.shares_checkpoints else set()
    stay = (trial.best_checkpoint, *(end.checkpoint for end in trial.earlier_ends))
    pinned |= {one.uri for one in stay if one is not None}
    return replace(decision, pinned=tuple(sorted(pinned)))


def _before_milestone(state: CycleState, trial: Trial, lease: Lease, report: ReportArrived) -> Decision:
    """Continue, unless a study with higher priority needs the slots and this report has a checkpoint to resume
    from."""
    why = preemption.at_report(state, lease, report) if trial.milestone is not None else None
    if why is not None:
        return _leave(state, trial.number, why, milestone=trial.milestone)
    return _go_on(trial.next_save(state.study.spec, report.step) or report.step, "before the next rung")


def _with_marks(state: CycleState, lease: Lease, report: ReportArrived) -> ReportArrived:
    """The report, with a checkpoint that says which steps behind it other code has trained."""
    trial = state.trials[lease.number]
    trial = state.update(trial.number, other_code=other_code.at_step(trial, lease, report.step))
    return replace(report, checkpoint=other_code.saved(trial, lease, report.checkpoint))


def _note_metrics(state: CycleState, lease: Lease, report: ReportArrived, progress: int) -> Trial:
    trial = state.trials[report.number]
    spec = state.study.spec
    value = report.metrics.get(spec.objective.metric)
    state.study = replace(
        state.study,
        reports=state.study.reports + 1,
        metric_seen=state.study.metric_seen or not _missing(spec, report),
    )
    saved = report.checkpoint
    further = saved is not None and (trial.checkpoint is None or saved.step > trial.checkpoint.step)
    trial = state.update(
        trial.number,
        steps_spent=min(trial.steps_spent + progress, INT64_MAX),
        checkpoint=saved or trial.checkpoint,
        code=report.code.digest if report.code is not None else trial.code,
        losses_in_row=0 if further else trial.losses_in_row,
        kills_in_row=0 if further else trial.kills_in_row,
        schedules=trial.schedules if report.schedules is None else report.schedules,
    )
    feasible = is_feasible(spec.constraints, report.metrics)
    best = feasible and improves(value, trial.best_value, maximize=spec.maximizes())
    if _best_again(spec, trial, report):  # it repeats steps, and the checkpoint of its best value is gone
        trial = state.update(trial.number, best_checkpoint=saved)
    if progress and best:
        kept = saved if saved is not None and spec.keeps_best else trial.best_checkpoint
        found = best_report(spec, value, report.step, report.metrics)
        trial = state.update(trial.number, best_checkpoint=kept, **found)
        if value is not None and not trial.baseline:
            until.measured(state, trial.number, value)
    if progress:
        before = report.step - progress
        fields = windows(
            spec, trial, value, step=report.step, feasible=feasible, begun=lease.begun, before=before
        )
        trial = state.update(trial.number, **fields) if fields else trial
    diverged = trial.value is not None and not isfinite(trial.value)
    # An earlier attempt that got further counts, unless it diverged.
    if progress and (report.step >= trial.step or diverged):
        changes = {"step": report.step, "value": value, "metrics": report.metrics}
        changes |= scored(spec, trial, value, feasible=feasible)
        if is_made_by(spec, value, is_best=best):
            changes["score_marked"] = bool(trial.code_changed)
        trial = state.update(trial.number, **changes)
    return trial


def _best_again(spec: StudySpec, trial: Trial, report: ReportArrived) -> bool:
    """Whether a report saves the best value again, of which no checkpoint is left."""
    known = (trial.best_value, trial.best_step)
    same = (report.metrics.get(spec.objective.metric), report.step) == known
    return spec.keeps_best and trial.best_checkpoint is None and report.checkpoint is not None and same


def _look_for_metrics(state: CycleState, report: ReportArrived) -> None:
    """At the study's first report, warn at once of missing metrics, not at the first rung."""
    spec = state.study.spec
    missing = [name for name in spec.metrics if name not in report.metrics]
    if missing:
        state.emit(events.metrics_missing(report.number, missing, sorted(report.metrics)))


def _missing(spec: StudySpec, report: ReportArrived) -> list[str]:
    """The objectives' metrics that a report lacks."""
    return [one.metric for one in spec.objectives if one.metric not in report.metrics]


def _at_milestone(
    state: CycleState, trial: Trial, lease: Lease, report: ReportArrived, progress: int
) -> Decision:
    ladder = state.fold.policy.ladder(trial.bracket)
    entries = [] if trial.baseline else _record_rungs(state, trial, lease, ladder, report, progress)
    if report.step >= ladder[-1]:
        budget = state.study.spec.max_steps
        why = f"reached the full budget of {budget} step{'s' * (budget > 1)}"
        state.terminate(trial.number, Reason.COMPLETED, why)
        return Decision(action="STOP", next_milestone=0, reason=why)
    if entries:
        return _judge(state, entries[-1], lease)
    why = "the baseline runs to the end" if trial.baseline else "it was recorded at this rung before"
    target = next(level for level in ladder if level > report.step)
    if trial.user_paused or not state.active:
        return _leave(state, trial.number, _paused(state, trial), milestone=target)
    leaves = preemption.at_rung(state, lease, state.trials[trial.number], target)
    if leaves is not None:
        return _leave(state, trial.number, leaves, milestone=target)
    state.update(trial.number, milestone=target)
    return _go_on(target, why)


def _record_rungs(
    state: CycleState,
    trial: Trial,
    lease: Lease,
    ladder: tuple[int, ...],
    report: ReportArrived,
    progress: int,
) -> list[RungEntry]:
    cost = _cost(trial, lease, report, progress) if state.study.spec.prices_pauses else None
    entries = [
        RungEntry(
            number=trial.number,
            bracket=trial.bracket,
            rung=rung,
            milestone=ladder[rung],
            step=report.step,
            value=report.metrics.get(state.study.spec.objective.metric),
            arrival=state.fold.next_arrival(trial.bracket, rung),
            checkpoint=report.checkpoint if state.study.spec.shares_checkpoints else None,
            cost=cost,
        )
        for rung in range(trial.rungs, len(ladder))
        if ladder[rung] <= report.step
    ]
    for entry in entries:
        state.fold.record(entry)
        cursor = state.emit(events.rung_recorded(entry))
        state.changes.rungs.append(RungChange(entry=entry, cursor=cursor))
        state.update(trial.number, rungs=entry.rung + 1, losses_in_row=0, kills_in_row=0)
    for entry in entries[:-1]:
        state.mark_promoted(entry.number, entry.bracket, entry.rung)
    return entries


def _cost(trial: Trial, lease: Lease, report: ReportArrived, progress: int) -> RungCost:
    """What a pause of this trial would cost, as far as it was measured. Time on ephemeral slots is not measured."""
    saved = report.checkpoint
    if lease.owner_stage:
        return RungCost(checkpoint_bytes=saved.size_bytes if saved else None)
    return RungCost(
        step_s=report.train_time_s / progress if report.train_time_s > 0 else None,
        checkpoint_bytes=saved.size_bytes if saved else None,
        write_s=saved.write_time_s if saved and saved.write_time_s > 0 else None,
        read_s=trial.read_s,
    )


class Ruled(Struct, frozen=True, kw_only=True):
    """What a trial may do at a rung, and what it takes over first."""

    action: Ruling
    explanation: Explanation
    exploit: Exploit | None = None


def ruled(state: CycleState, number: int, bracket: int, rung: int) -> Ruled:
    """Ask the policy. A trial that would have to wait continues anyway if it is the one to be promoted now."""
    verdict = state.fold.policy.verdict(number, bracket, rung, more=state.more)
    if verdict.action is Ruling.PAUSE and not state.unstarted:
        found = state.next_promotion()
        if found is not None and found.trial == number:
            return Ruled(action=Ruling.CONTINUE, explanation=found.explanation, exploit=found.exploit)
    return Ruled(action=verdict.action, explanation=verdict.explanation)


def _judge(state: CycleState, entry: RungEntry, lease: Lease) -> Decision:
    found = ruled(state, entry.number, entry.bracket, entry.rung)
    explanation, exploit = found.explanation, found.exploit
    if found.action is Ruling.STOP:
        why = explanation.sentence
        state.explain(entry.number, Ruling.STOP, explanation, frees=lease)
        state.terminate(entry.number, Reason.STOPPED_EARLY, why)
        return Decision(action="STOP", next_milestone=0, reason=why)
    if found.action is Ruling.PAUSE:
        state.explain(entry.number, Ruling.PAUSE, explanation, frees=lease)
        return _leave(state, entry.number, explanation.sentence, milestone=None)
    target = state.fold.policy.ladder(entry.bracket)[entry.rung + 1]
    state.mark_promoted(entry.number, entry.bracket, entry.rung)
    if exploit is not None:  # it restarts from the other trial's state, on a slot of this very cycle
        state.explain(entry.number, Ruling.PAUSE, explanation, frees=lease)
        state.exploit(exploit)
        return _leave(state, entry.number, explanation.sentence, milestone=target)
    if state.trials[entry.number].user_paused or not state.active:
        why = f"{_paused(state, state.trials[entry.number])}; otherwise it would continue: {explanation.sentence}"
        state.explain(entry.number, Ruling.PAUSE, explanation, frees=lease, said=why)
        return _leave(state, entry.number, why, milestone=target)
    leaves = preemption.at_rung(state, lease, state.trials[entry.number], target)
    if leaves is not None:
        state.explain(entry.number, Ruling.CONTINUE, explanation, frees=lease)
        return _leave(state, entry.number, f"{explanation.sentence}; {leaves}", milestone=target)
    state.explain(entry.number, Ruling.CONTINUE, explanation)
    state.update(entry.number, milestone=target)
    if (
        state.next_promotion() is not None
    ):  # the same result lets others continue, and slots may be free for them
        state.wants_placement = True
    return _go_on(target, explanation.sentence)


def _paused(state: CycleState, trial: Trial) -> str:
    """Why a trial that the policy lets continue does not."""
    if state.study.closing is not None:
        return AT_ITS_END
    return BY_USER if trial.user_paused or state.study.detail == BY_USER else WITH_STUDY


def _leave(state: CycleState, number: int, why: str, *, milestone: int | None) -> Decision:
    """Take a trial off its worker, to be continued up to `milestone`, or when it is promoted."""
    if state.trials[number].checkpoint is None:
        why = f"{why}; it saved no checkpoint, so it starts again from step 0 when it resumes"
        state.move(number, Action.VACATE, detail=why, milestone=milestone)
    else:
        state.move(number, Action.PAUSE, detail=why, milestone=milestone)
    return Decision(action="PAUSE", next_milestone=0, reason=why)


def _is_the_first(state: CycleState, trial: Trial) -> bool:
    """Whether a trial reaches its rung before any other, and others will follow: they may report what it omits."""
    if state.study.next_number == 1 and not state.more:
        return False
    return trial.baseline or state.fold.is_empty


def _metric_unknown(state: CycleState, report: ReportArrived) -> Decision:
    """End the study: a second trial reaches a rung, and no report so far had every objective, so none ever will."""
    missing = " and ".join(f"'{metric}'" for metric in _missing(state.study.spec, report))
    names = ", ".join(sorted(report.metrics)) or "nothing"
    remedy = "report it together with the others in one report(...), or correct objective.metric"
    if state.study.spec.further_objectives:
        remedy = "report all objectives in one report(...), or correct their names in the study"
    why = f"the trials do not report the objective's metric {missing} but {names}; {remedy}"
    state.move_study(StudyState.FAILED, why)
    return Decision(action="STOP", next_milestone=0, reason=why)


def _go_on(milestone: int, reason: str) -> Decision:
    return Decision(action="CONTINUE", next_milestone=milestone, reason=reason)
