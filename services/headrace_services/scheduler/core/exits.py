"""A trial's process has ended, or its lease holder is silent: who is to blame, and what follows.

Failures of the machine are never charged to the configuration. The trial continues from its last checkpoint or, if
that cannot be loaded, from an earlier one or from the start (`core.unreadable_checkpoints`). The same holds if its
worker did not reach its program (`core.failed_starts`). A worker that cannot prepare the study's program is
avoided. If none is left the study fails, and no trial is charged.

Failures of the user's code are charged: after a few retries the trial is over. Two kinds of failure that no retry
can fix end the study with the reason: the first trials all fail before anything was reported, or a program is
killed again and again without making progress.
"""

import re
import signal

from msgspec.structs import replace

from headrace.last_words import printed_last
from headrace.spec import StudySpec
from headrace_services.scheduler.core import (
    code_changes,
    events,
    failed_starts,
    other_code,
    seats,
    shared_faults,
    stale_leases,
    time_limits,
    unreadable_checkpoints,
    until,
)
from headrace_services.scheduler.core.inputs import (
    Accepted,
    ExitedArrived,
    LeaseExpired,
    Outcome,
    RestoredArrived,
    Stale,
)
from headrace_services.scheduler.core.lifecycle import Action, Reason, State, StudyState
from headrace_services.scheduler.core.records import Lease, Trial
from headrace_services.scheduler.core.results import with_attempts
from headrace_services.scheduler.core.state import CycleState

MAX_LOSSES_IN_ROW = 10
"""After this many losses of its process or machine in a row, with no new checkpoint or rung in between, the trial
is taken to be the cause: it runs out of memory, or hangs its machine. Reports are no progress, as it repeats them
each time."""

MAX_KILLS_IN_ROW = 4
"""The same for a trial whose own process the system kills, as it does when memory runs out: that is seldom chance.
Losses for other reasons in between do not count."""

SUSPECTED = 3
"""How many failures in a row with an error of its device a trial is not charged for, with no new checkpoint or
rung in between. By then the device is out of use, or it is not the cause."""

_OF_THE_PROGRAM = re.compile(
    r"(ModuleNotFound|Import|Syntax|Indentation|Tab|Name|UnboundLocal|Attribute|Type)Error\b"
    r"|(program|working_dir) .* cannot be (started|entered)"
)
"""Errors caused by the program's text or its location. They recur, unless the cause is something that one machine
lacks and another has."""
_KILLED = "SIGKILL"
"""How a program ends that the system kills because memory ran out."""
AFTERWARDS = "; then its program ended early: "
"""Separates the end of a completed trial from the error or signal that its program ended with afterwards."""
ENDED_AFTERWARDS = "; then its process was ended by "
"""Separates the end of a completed trial from the signal that was needed to end its process."""
_NEVER_CONNECTED = (
    "it exited with 0 and never connected to its trial. Call trial.current(), loop over t.steps(), and call "
    "t.report(...) in it. If it was killed behind a shell script: with `set -e`, the script passes that on"
)
"""The explanation for an attempt without a connection in a study without reports."""
_CUT_OFF = ("FAILED", "LOST")
"""How a program ends that had more to do."""
_BY_ITSELF = ("FAILED", "FINISHED", "INFEASIBLE")
"""How a program ends that was not ended from outside."""
_TOLD_TO_LEAVE = (Reason.COMPLETED, Reason.STOPPED_EARLY)
"""Why a trial is over that learned so from the answer to its last report, and could exit by itself."""
_LINES_ALIKE = 10
"""How many last lines of two logs are compared."""


def restored(state: CycleState, message: RestoredArrived) -> Outcome:
    """A resumed trial has loaded its checkpoint."""
    lease = state.lease(message)
    if lease is None or not lease.live:
        return stale_leases.gone(state, message)
    if message.code is not None:
        return (
            Accepted()
            if code_changes.check(state, lease, message.code)
            else stale_leases.gone(state, message)
        )
    failed_starts.over(state, lease.number)
    # Record nothing if nothing moves: a change without an event would be hidden from other replicas.
    if state.trials[lease.number].state is State.RESUMED and state.is_fresh(lease, message.sequence):
        before = state.trials[lease.number].read_s
        read_s = before if lease.owner_stage else message.read_time_s or before
        state.move(lease.number, Action.RESTORED, read_s=read_s, unread=None)
    return Accepted()


def exited(state: CycleState, message: ExitedArrived) -> Outcome:
    """A trial's program ended without being told to, or the worker released it."""
    lease = state.lease(message)
    if lease is None:
        return stale_leases.gone(state, message)
    if not lease.live and stale_leases.may_reclaim(state, lease):
        lease = state.reclaim(lease)
    _tell(state, lease, message)
    if not lease.live:
        trial = state.trials[lease.number]
        over = trial.state is State.TERMINATED and trial.attempt == lease.attempt
        if over and message.outcome in _CUT_OFF and trial.reason is Reason.COMPLETED:
            _failed_afterwards(state, trial, message)
        if (
            over
            and message.outcome == "RELEASED"
            and message.exit_code < 0
            and trial.reason in _TOLD_TO_LEAVE
        ):
            _ended_afterwards(state, trial, message.exit_code)
        return Stale(over=True) if over else stale_leases.gone(state, message)
    if not state.is_fresh(lease, message.sequence):
        return Accepted()
    number = lease.number
    before = state.trials[number].log_tail
    if message.log_tail and (message.outcome in _BY_ITSELF or not state.trials[number].failures):
        state.update(
            number, log_tail=message.log_tail
        )  # else the log of its failure is shown, not that of a loss
    match message.outcome:
        case "FINISHED":
            _finished(state, state.trials[number], lease, message)
        case "FAILED":
            error = message.error or "its program failed"
            if message.device_words and state.trials[number].losses_in_row < SUSPECTED:
                _lost(state, state.trials[number], lease, f"{error} (possibly caused by its device)")
            else:
                certain = _is_certain(state, message, error, before)
                _failed(state, state.trials[number], lease, error, certain=certain)
        case "INFEASIBLE":  # by its own statement: no failure, and another attempt is pointless
            why = message.error or "no reason given"
            state.terminate(number, Reason.INFEASIBLE, why)
        case "TIMED_OUT":
            if time_limits.timed_out(state, state.trials[number], message) is Reason.FAILED:
                _count_early_failure(state, state.trials[number])
        case "RELEASED":  # released by its holder: nothing points to its program
            state.close(lease)
            if message.shared_fault:
                shared_faults.count(state, number)
            _interrupt(state, state.trials[number], message.error or "its client or worker released it")
        case outcome if outcome in unreadable_checkpoints.OUTCOMES:
            state.close(lease)
            unreadable_checkpoints.handle(state, state.trials[number], lease, message)
        case "UNPREPARED":
            _unprepared(state, state.trials[number], lease, message.error or "no reason was given")
        case "UNREACHED":
            _unreached(state, state.trials[lease.number], lease, message.error or "no reason was given")
        case "DEFECT":
            _lost(state, state.trials[number], lease, message.error, defect=True)
        case _:
            state.close(lease)
            _lost_with_bundle(state, lease, message)
    if message.log_tail and state.trials[number].state is State.TERMINATED:
        state.update(number, log_tail=message.log_tail)  # of the end that is shown
    return Accepted()


def _tell(state: CycleState, lease: Lease, message: ExitedArrived) -> None:
    """Says what the worker has noticed. A message that is repeated after a decision ended the lease is told again: such
    a lease remembers none."""
    if message.sequence is not None and message.sequence <= lease.last_sequence:
        return
    if message.left_behind:
        state.emit(events.process_not_reused(lease.number, message.left_behind))
    if message.advice:
        state.emit(events.trial_warned(lease.number, message.advice))


def expired(state: CycleState, message: LeaseExpired) -> Outcome:
    """The holder of a lease was not heard from in time. If it is alive after all, it is told to give up the lease.

    The lease continues if its holder has been heard from since: the rows say so now, or an earlier message in this
    cycle.
    """
    lease = state.lease(message)
    if lease is None or not lease.live or lease.id not in state.silent or lease.id in state.changes.updated:
        return Stale()
    state.close(lease)
    state.cancel(state.trials[lease.number], message.why)
    lapses = lease.worker_id is None
    _lost(state, state.trials[lease.number], lease, message.why, lapses=lapses)
    return Accepted()


def _finished(state: CycleState, trial: Trial, lease: Lease, message: ExitedArrived) -> None:
    """The program ended before the full budget, or the client says that it is done: a report so far ends the
    trial.

    What the program saved at its end is the checkpoint of a trial that completes. A trial that failed is retried
    from the checkpoint before that one, because from its end it would end at once. If the program could not save,
    that is recorded, and the result stands.
    """
    spec = state.study.spec
    if message.unconnected and state.study.reports:
        _failed(state, trial, lease, _unconnected(trial), certain=False)
        return
    if message.unsaved:
        state.emit(events.trial_warned(trial.number, message.unsaved))
    asked = spec.template is None and not message.by_itself  # by a loop that asked for the trial
    ended = "its client completed it" if asked else "its program ended"
    if spec.objective.metric in trial.metrics:
        own = "" if asked else " on its own"
        why = f"{ended}{own} at step {lease.step} of {spec.max_steps}"
        if lease.step < trial.step:
            why = f"{why}; its result is that of step {trial.step}, which an earlier attempt reported"
        if message.unsaved:
            why = f"{why}; {message.unsaved}"
        if spec.template is not None and lease.step == lease.begun and not message.by_itself:
            why = f"{why}; {_silent(lease)}"
            state.emit(events.trial_warned(trial.number, why))
        saved = other_code.saved(trial, lease, message.checkpoint)
        state.terminate(trial.number, Reason.COMPLETED, why, checkpoint=saved or trial.checkpoint)
        until.compare(state, trial)
        until.look(state)
    else:
        how = _NEVER_CONNECTED if message.unconnected else _unreported(spec, trial, lease)
        why = f"{ended} without reporting '{spec.objective.metric}'; {how}"
        if _is_the_workers(state, trial, lease, why):
            return
        state.terminate(trial.number, Reason.FAILED, why)
        _count_early_failure(state, trial)


def _failed_afterwards(state: CycleState, trial: Trial, message: ExitedArrived) -> None:
    """The program failed or was killed after its last report. The result stands; the program's remaining work is
    not done."""
    if AFTERWARDS in trial.detail:
        return  # a duplicate message
    error = message.error or "the reason is unknown"
    detail = f"{trial.detail}{AFTERWARDS}{error}"
    state.update(trial.number, detail=detail, log_tail=message.log_tail or trial.log_tail)
    warning = (
        f"its program ended early, after its last report: {error}. Its result stands; code after the loop may not "
        "have run, and does not run again"
    )
    state.emit(events.trial_warned(trial.number, warning))


def _ended_afterwards(state: CycleState, trial: Trial, exit_code: int) -> None:
    """The program did not exit after its last report, until a signal ended it. The result stands."""
    if ENDED_AFTERWARDS in trial.detail:
        return  # a duplicate message
    if state.study.state.ended and trial.detail == state.study.detail:
        return  # it ended with its study, which ended its process
    try:
        how = signal.Signals(-exit_code).name
    except ValueError:
        how = f"signal {-exit_code}"
    state.update(trial.number, detail=f"{trial.detail}{ENDED_AFTERWARDS}{how}")
    warning = (
        f"its process did not end after its last report, and was ended by {how}. Until then its slots were not free. "
        "A thread was still running, code after the loop took longer than the study's trial.grace_s, or its worker "
        "was stopped"
    )
    state.emit(events.trial_warned(trial.number, warning))


def _unreported(spec: StudySpec, trial: Trial, lease: Lease) -> str:
    if trial.metrics:
        return f"it reported {', '.join(sorted(trial.metrics))}"
    if spec.template is None:
        return "report before you complete"
    return _silent(lease)


def _silent(lease: Lease) -> str:
    """The explanation for an attempt whose program ended with success and reported nothing."""
    return (
        f"this attempt began at step {lease.begun}, reported nothing and exited with 0. Loop over t.steps(), and "
        "call t.report(...) in it: what a function returns does not count. A loop over its own range, resumed "
        "from a file, may have had no iterations"
    )


def _unconnected(trial: Trial) -> str:
    """The error of an attempt whose program never connected to its trial, and ended with success."""
    where = "an earlier attempt" if trial.metrics else "other trials"
    return (
        f"its program exited with 0 without connecting to its trial, which it did in {where}: it was probably killed, "
        "or its script skips the training. A script with `set -e`, or with `exec` before its training, passes on how "
        "that ended"
    )


def _is_certain(state: CycleState, message: ExitedArrived, error: str, before: str) -> bool:
    """Whether another attempt would fail in the same way: the trial failed twice by an error of its own program,
    with the same last lines in its log, and never reported anything."""
    trial = state.trials[message.number]
    if not trial.failures or trial.metrics or not message.log_tail or not _OF_THE_PROGRAM.match(error):
        return False
    return before.splitlines()[-_LINES_ALIKE:] == message.log_tail.splitlines()[-_LINES_ALIKE:]


def _failed(state: CycleState, trial: Trial, lease: Lease, error: str, *, certain: bool) -> None:
    if _is_the_workers(state, trial, lease, error):
        return
    failures, attempts = trial.failures + 1, state.study.spec.max_retries + 1
    if failures >= attempts or certain:
        detail = with_attempts(error, failures, attempts)
        state.terminate(trial.number, Reason.FAILED, detail, failures=failures)
    else:
        state.move(trial.number, Action.RETRY, failures=failures, detail=error)
    _count_early_failure(state, trial)


def _is_the_workers(state: CycleState, trial: Trial, lease: Lease, error: str) -> bool:
    """Charge a failure to its worker first, if the worker may be at fault; the trial then continues and is not
    charged.

    A worker may be at fault while no trial has reported anything, all failures so far were on it, and others could
    run the trial. It is avoided after as many failures as may end a study, until it restarts.
    """
    if not (slots := state.slots.get(lease.id, ())):
        return False
    worker, incarnation = slots[0].worker_name, slots[0].incarnation
    standing = state.study.standing
    if incarnation not in standing.avoided:
        if state.study.reports:
            return False
        failures = standing.early.get(worker, 0) + 1
        state.stand(early={**standing.early, worker: failures})
        if standing.early.keys() - {worker} or not state.able - {worker}:
            return False
        if failures >= state.study.spec.max_early_failures:
            state.stand(avoided={**standing.avoided, incarnation: worker})
            state.emit(events.worker_avoided(worker, failures, error))
    _interrupt(state, trial, f"{error} (charged to worker {worker}, where all failures were so far)")
    return True


def _unprepared(state: CycleState, trial: Trial, lease: Lease, error: str) -> None:
    """Its worker cannot get its code, or cannot install its requirements. No training failed, so no trial is
    charged."""
    slots = state.slots.get(lease.id, ())
    worker = slots[0].worker_name if slots else "unknown"
    standing = state.study.standing
    state.able -= {worker}
    if slots and slots[0].incarnation not in standing.avoided:
        state.stand(avoided={**standing.avoided, slots[0].incarnation: worker})
        state.emit(events.worker_unprepared(worker, error))
    _interrupt(state, trial, f"worker {worker} could not prepare the program: {error}")
    if not state.able:
        state.move_study(
            StudyState.FAILED, f"no worker could prepare the program; the last one, {worker}: {error}"
        )


def _unreached(state: CycleState, trial: Trial, lease: Lease, error: str) -> None:
    """Its worker did not reach its program, which says nothing about the trial."""
    slots = state.slots.get(lease.id, ())
    worker = slots[0].worker_name if slots else "unknown"
    if slots:
        failed_starts.note(state, trial.number, slots[0], error)
    _interrupt(state, trial, f"worker {worker} did not reach its program: {error} (charged to no one)")


def _count_early_failure(state: CycleState, trial: Trial) -> None:
    if state.study.reports or trial.failures:
        return
    count = state.study.early_failures + 1
    state.study = replace(state.study, early_failures=count)
    if count >= state.study.spec.max_early_failures:
        last = state.trials[trial.number]
        printed = printed_last(last.log_tail)
        said = f"; it printed last: {printed!r}" if printed and printed not in last.detail else ""
        why = f"the first {count} trials failed before reporting anything{_where(state)}"
        state.move_study(StudyState.FAILED, f"{why}; the last one: {last.detail}{said}")


def failed_early(state: CycleState, trial: Trial) -> bool:
    """Whether an unfinished trial is one of those for which the study fails before any report."""
    return trial.failures > 0 and not state.study.reports


def last_failure(state: CycleState, trial: Trial) -> str:
    """How the last attempt of such a trial failed. While it runs again, only the end of its log still shows that."""
    lines = trial.log_tail.strip().splitlines()
    error = trial.detail or (lines[-1] if lines else "its program failed")
    attempts = state.study.spec.max_retries + 1
    return f"{error} (attempt {trial.failures} of {attempts}; not tried again, as the study failed)"


def _where(state: CycleState) -> str:
    """The workers on which the trials failed."""
    workers = sorted(state.study.standing.early)
    if len(workers) > 1:
        return f" (on the workers {', '.join(workers)})"
    return f" (all on worker '{workers[0]}')" if workers else ""


def _lost_with_bundle(state: CycleState, lease: Lease, message: ExitedArrived) -> None:
    """A process was lost, possibly a bundle's. If it ran out of memory it had too many members: none of them is to
    blame, and from now on half as many share a process. A process with a single member is an ordinary trial, which
    is charged for the memory that it asks for."""
    trial, why = state.trials[lease.number], message.error or "its process was lost"
    if message.out_of_memory > 1 and lease.grant is not None and lease.grant.seats > 1:
        seats.too_many(state, lease, message.out_of_memory)
        _interrupt(state, trial, why)
        return
    if message.out_of_memory == 1:
        halvings = _sharing(state, lease).bit_length() - 1
        trial = state.update(trial.number, losses_in_row=max(trial.losses_in_row, halvings - 1))
    _lost(state, trial, lease, why)


def _sharing(state: CycleState, lease: Lease) -> int:
    """How many trials may share a process on this lease's grant, as far as is known."""
    return 1 if lease.grant is None else seats.capacity_of(state, lease.grant, ()).trials


def _lost(
    state: CycleState,
    trial: Trial,
    lease: Lease,
    why: str,
    *,
    defect: bool = False,
    lapses: bool = False,
) -> None:
    """The attempt ended by no error of the trial's: the trial continues, unless it has made no progress for too
    long.

    In that case it counts as failed, or as cancelled if a defect of the scheduler ended it. `lapses`: its holder
    may come back.
    """
    by_itself = _KILLED in why and (lease.grant is None or lease.grant.seats == 1)
    losses, kills = trial.losses_in_row + 1, trial.kills_in_row + by_itself
    looked = (
        replace(trial.unread, missing=False) if trial.unread else None
    )  # this one did not look for its checkpoint
    trial = state.update(trial.number, losses_in_row=losses, kills_in_row=kills, unread=looked)
    too_many_kills = kills >= MAX_KILLS_IN_ROW
    if too_many_kills or seats.losses_alone(_sharing(state, lease), losses) >= MAX_LOSSES_IN_ROW:
        count = kills if too_many_kills else losses
        detail = f"{why}, {count} times in a row without a new checkpoint or a rung between"
        detail += ": is it out of memory?" if too_many_kills else ""
        reason = Reason.CANCELLED if defect else Reason.FAILED
        state.terminate(trial.number, reason, detail)
    else:
        _interrupt(state, state.trials[trial.number], why, lapses=lapses)


def _interrupt(state: CycleState, trial: Trial, why: str, *, lapses: bool = False) -> None:
    state.move(
        trial.number, Action.INTERRUPT, interruptions=trial.interruptions + 1, detail=why, lapsed=lapses
    )
