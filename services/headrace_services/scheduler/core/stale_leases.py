"""Why a lease no longer belongs to its holder, and when a client may get it back.

    live ──┬── the trial leaves by a decision, an end or a failure: the lease is over for good
           └── the holder was silent for too long
                 ├── a worker's lease is over for good: another process may run the trial, or this one twice
                 └── a client's lease has lapsed, and its trial is offered to any client that asks
                       ├── the client reports, completes or renews first: it gets the lease back, in the same attempt
                       └── another client gets the trial, or it ends: the lease is over for good

The trial's row records that its last lease has lapsed (`Trial.lapsed`). Every move of the trial clears this. So
handling a late message needs no clock, and no more trust than one in time: the attempt is still the trial's last
one. The database refuses to restore a worker's lease.
"""

from headrace_services.scheduler.core.inputs import Accepted, Leased, Outcome, Renewed, Stale
from headrace_services.scheduler.core.lifecycle import Action, Reason, State, StudyState
from headrace_services.scheduler.core.records import Lease, Trial
from headrace_services.scheduler.core.state import CycleState

_OVER = {
    Reason.COMPLETED: "it has completed",
    Reason.STOPPED_EARLY: "it was stopped early",
    Reason.FAILED: "it has failed",
    Reason.CANCELLED: "it was cancelled",
    Reason.INFEASIBLE: "it is infeasible",
}
_STUDY_OVER = {
    StudyState.COMPLETED: "has completed",
    StudyState.STOPPED: "was stopped",
    StudyState.FAILED: "has failed",
}
STUDY_FAILED = "the study failed"
"""The reason with which trials end that a failed study left behind."""
_LEFT = {
    Action.PAUSE.value: "it was paused by the answer to its last report",
    Action.VACATE.value: "it was paused by the answer to its last report",
    Action.RETRY.value: "it was completed with an error, to be tried again",
    Action.INTERRUPT.value: "it was released by its client",
}
"""How a client's lease ended, for a trial that nobody has had since and that is not over, unless the lease lapsed."""
_REOPENED = "it had ended, alone or with its study, and a user has resumed it since"
_ANSWERED = (Action.PAUSE.value, Action.VACATE.value, Action.RETRY.value)
_ASK = "Leave this trial and ask for another one."


def may_reclaim(state: CycleState, lease: Lease) -> bool:
    """Whether the holder of a lease that is over may take it up again."""
    trial = state.trials[lease.number]
    return lease.worker_id is None and trial.lapsed and trial.attempt == lease.attempt


def renewed(state: CycleState, message: Renewed) -> Outcome:
    """A client is working on its trial. It gets its lease back if that has lapsed."""
    lease = state.lease(message)
    if lease is None or not (lease.live or may_reclaim(state, lease)):
        return gone(state, message)
    if not lease.live:
        state.reclaim(lease)
    return Accepted()


def gone(state: CycleState, message: Leased) -> Stale:
    """The answer to a message whose lease is over for good, with the cause in words and what to do."""
    trial, lease = state.trials.get(message.number), state.lease(message)
    if trial is None:
        return Stale(why=f"study '{state.study.name}' has no such trial", remedy=_ASK)
    if lease is None:
        why = "you have no such lease; or the scheduler's database was restored from a copy since"
        return Stale(why=why, remedy=_ASK)
    if trial.attempt != lease.attempt:
        return _given_on(state, trial, lease)
    if trial.state is State.TERMINATED:
        return Stale(why=_ended(state, trial), remedy=_ASK)
    if lease.worker_id is not None:
        return Stale(why=trial.detail or "its lease is over", remedy=_ASK)
    left = _LEFT.get(lease.ended, _REOPENED)
    told = trial.detail and lease.ended in _ANSWERED  # else the detail is about what happened later
    return Stale(why=f"{left}: {trial.detail}" if told else left, remedy=_ASK)


def _given_on(state: CycleState, trial: Trial, lease: Lease) -> Stale:
    holder = state.leases.get(trial.lease_id or "")
    to = "given to another client"
    if holder is not None and holder.client_id:
        to = f"given to client '{holder.client_id}'"
    elif holder is not None and lease.worker_id is not None:
        same = holder.worker_id == lease.worker_id
        to = "started again in a later attempt" if same else "given to another worker"
    if lease.worker_id is not None:
        return Stale(why=f"the trial was {to}", remedy=_ASK)
    if lease.ended != "lapse":
        return Stale(why=f"{_LEFT.get(lease.ended, 'its lease ended')}, and then {to}", remedy=_ASK)
    remedy = f"{_ASK} Where an evaluation takes longer, ask with a longer lease_s, or renew the lease while it runs."
    return Stale(
        why=f"its lease ran out, {lease.ttl_s:g} s after your last message, and it was {to}",
        remedy=remedy,
    )


def _ended(state: CycleState, trial: Trial) -> str:
    """What ended a trial: its study, or its own end."""
    study = state.study
    if study.state in _STUDY_OVER and trial.detail in (study.detail, STUDY_FAILED):
        return f"study '{study.name}' {_STUDY_OVER[study.state]}: {study.detail}"
    how = _OVER[trial.reason] if trial.reason is not None else "it is over"
    return f"{how}: {trial.detail}" if trial.detail else how
