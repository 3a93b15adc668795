"""A study that ends by `until` closes first, so that its running trials lose no state.

    open ── a condition comes true ──→ closing ── no trial is held, or the grace is over ──→ ended

While the study closes, its state is still active, but it starts nothing. Its trials are asked to leave at their
next report, as when other studies need their slots (`core.preemption`): they save a checkpoint there, are answered
STOP, and exit by themselves. They have the template's grace for that (`trial.grace_s`), counted for all of them
from the moment in which the study closes. Trials that still run after it are cancelled. A trial whose own report
ends the study is answered STOP if that report came with a checkpoint.

A report without a checkpoint may have been sent before the program received the request, so the trial continues to
the next report. After `HEARD_S` the program must have received it and evidently saves nothing, so it is answered
STOP.

An ask/tell client keeps its trial for as long as it holds the lease: the result of an evaluation that has started
counts, and is answered STOP. In a study without workers, the scheduler waits for such results for up to
`CLIENTS_S`.

The study's row records that it closes, and the deadline. So any replica can finish it (`engine.budgets`), and a
worker that missed the message gets it again with its next heartbeat. A scheduler of an earlier version does not
know about closing: the same condition comes true again there, and it ends the study at once.
"""

from headrace.grants import DEFAULT_GRACE_S
from headrace_services.scheduler.core import events
from headrace_services.scheduler.core.inputs import Preemption, ReportArrived
from headrace_services.scheduler.core.lifecycle import Reason, StudyState
from headrace_services.scheduler.core.needs import Deciding, Unfinished, ask
from headrace_services.scheduler.core.records import Decision, Lease, Study
from headrace_services.scheduler.core.state import CycleState
from headrace_services.scheduler.core.study_status import HEARD_S, Closing, Leaving

CLIENTS_S = 6 * 3600.0
"""The grace of studies without workers: a client may hold its trial for days, or renew its lease without end."""


def begin(state: CycleState, why: str, asked: str) -> None:
    """Close the study."""
    template, now_s = state.study.spec.template, state.study.now_s
    if template is None:
        grace_s = CLIENTS_S
    else:
        grace_s = DEFAULT_GRACE_S if template.grace is None else template.grace.total_seconds()
    state.close_study(Closing(why=why, asked=asked, since_s=now_s, by_s=now_s + grace_s))


def advance(state: CycleState) -> Deciding[None]:
    """Ask trials to leave that were not asked yet. End the study once none is left, or the grace is over."""
    closing = state.study.closing
    if closing is None or state.study.state.ended:
        return
    held: list[Lease] = []
    if state.study.now_s < closing.by_s:
        state.add_rows((yield from ask(Unfinished(after=-1, limit=0))).rows)
        held = [state.leases[trial.lease_id] for trial in state.trials.values() if trial.lease_id is not None]
    if not held:
        _end(state)
        return
    new = [lease for lease in held if lease.worker_id is not None and not _was_asked(state, lease)]
    for lease in new:
        assert lease.worker_id is not None
        assert lease.grant is not None
        why = f"its study ends: {closing.why}"
        state.changes.asks[lease.grant.id] = Leaving(for_study_id=state.study.id, at_report=True, why=why)
        state.orders.append(Preemption(worker_id=lease.worker_id, lease=lease, reason=why))
    if new:
        state.emit(events.study_closes(closing.why, len(new), closing.by_s - state.study.now_s))


def at_report(state: CycleState, lease: Lease, report: ReportArrived, decision: Decision) -> Decision:
    """Decide on the report of a trial whose study closes, or whose report ends the study: STOP, once it has
    saved."""
    study, trial = state.study, state.trials[lease.number]
    if not trial.leased or (study.closing is None and not study.state.ended):
        return decision
    if study.state.ended or study.closing is None:
        return Decision(action="STOP", next_milestone=0, reason=study.detail)
    waited_s = study.now_s - study.closing.since_s
    saves_nothing = trial.saves_nothing_at(report.step) or waited_s >= HEARD_S
    if lease.worker_id is not None and report.checkpoint is None and not saves_nothing:
        why = f"its study ends, and it saves its state first: {study.closing.why}"
        return Decision(action="CONTINUE", next_milestone=report.step + 1, reason=why)
    _, why = _how(study, study.closing)
    state.terminate(lease.number, Reason.STOPPED_EARLY, why)
    return Decision(action="STOP", next_milestone=0, reason=why)


def _was_asked(state: CycleState, lease: Lease) -> bool:
    """Whether the trial leaves at its next report, for whatever reason: it then stops, as `at_report` decides."""
    assert lease.grant is not None
    asked = state.study.leaving.get(lease.grant.id)
    return asked is not None and asked.at_report


def _end(state: CycleState) -> None:
    assert state.study.closing is not None
    state.move_study(*_how(state.study, state.study.closing))


def _how(study: Study, closing: Closing) -> tuple[StudyState, str]:
    """How the study ends, given the results of its trials."""
    if study.standing.progress.best_value is None:
        return StudyState.FAILED, f"{closing.why}, and no trial has a usable value ({closing.asked})"
    return StudyState.COMPLETED, f"{closing.why} ({closing.asked})"
