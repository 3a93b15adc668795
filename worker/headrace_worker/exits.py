"""How a trial's process ended, and who is to blame. Pure."""

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from headrace.bounds.kinds import Told
from headrace.environment import hint
from headrace.v1 import worker_pb2
from headrace_worker.disk import says_full

# Signals that somebody else sends: an administrator, the OOM killer, a closing terminal.
_FROM_OUTSIDE = {signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGSTOP}
_ERROR: Final = Told(2000, end=True)
# EX_TEMPFAIL of sysexits.h: `headrace.trial` exits with it when its daemon has not answered for long.
_DAEMON_GONE = 75
# A shell exits with this plus the signal's number if the program that it ran was killed.
_SHELLS = 128
# What libraries say about one of their processes that was killed, as by the OOM killer. A crash reads differently.
# SIGTERM is not here: programs end their own helpers with it, and for a batch job's there is `in_ended_job`.
_CHILD_KILLED = re.compile(
    r"DataLoader worker \(pid \d+\) is killed by signal: Killed"
    r"|died with <Signals\.SIGKILL"  # subprocess
    r"|\bprocess \d+ terminated with signal SIGKILL"  # torch.multiprocessing
    r"|exit codes of the workers are \{[^}]*SIGKILL\(-9\)"  # joblib
)
_OF_ALL = (
    worker_pb2.EXIT_OUTCOME_FINISHED,
    worker_pb2.EXIT_OUTCOME_UNREACHED,
    worker_pb2.EXIT_OUTCOME_RELEASED,
)
"""The outcomes of a bundle's process that each member has."""
_ANOTHER = "\nDuring handling of the above exception, another exception occurred:\n"
"""The line between an error that was handled and the one that ended the program."""
# `headrace.trial` tries for at least this long: a script that exits with this code sooner has a reason of its own.
_LONG_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """Why the daemon ended a process, which is then the outcome whatever the exit code says."""

    outcome: worker_pb2.ExitOutcome.ValueType
    error: str = ""
    # Set for a decision, which the program learns of in the answer to a report: how it fails afterwards is its own
    # fault.
    decided: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LastSave:
    """The checkpoint that a program saved when it ended, which no report has announced."""

    checkpoint_dir: str
    # The step of the last report.
    step: int
    save_time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """What the program said about its own end."""

    error: str = ""
    traceback: str = ""
    # In a gang: the rank that ended it without a word, and its exit status.
    rank: int = 0
    exit_code: int = 0
    # What it saved when it ended, if anything, and why it could not.
    last: LastSave | None = None
    unsaved: str = ""
    by_itself: bool = False
    # Its library could not read the checkpoint from which it was to resume.
    unreadable: bool = False
    # It says that its configuration is infeasible.
    infeasible: bool = False
    # Its interpreter was exiting, so its exit status has the last word.
    exiting: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The content of an `Exited`."""

    outcome: worker_pb2.ExitOutcome.ValueType
    error: str = ""
    exit_code: int = 0
    # With how many members its bundle ran out of memory; 0 if it did not.
    out_of_memory: int = 0
    # What may be due to its device rather than the program, and how often in a row attempts on its devices ended
    # so.
    device_words: str = ""
    device_failures: int = 0
    # It ended in a fault of an MPS server, and it is not known which of the clients caused that.
    shared_fault: bool = False


def classify(
    exit_code: int,
    *,
    ending: Ending | None,
    finished: Finished | None,
    last_line: str,
    withheld: Sequence[str] = (),
    waited_s: float = 0.0,
    signalled: bool = True,
    left_by_trainer: bool = False,
) -> Verdict:
    """Decides an outcome from the exit code (negative: a signal) and from what the program said before.

    First comes the daemon's own reason for ending the process, with two exceptions. If the daemon ended it only
    because the daemon stops, a program that has reported success has succeeded. If a decision ended it, a program
    that fails has failed, and one that somebody other than the worker killed (`signalled` is false) is lost: the
    scheduler knows whether that matters.

    Then comes what the program said, except that the machine is at fault for a full disk and for a killed child
    process, and the store for a checkpoint that the library cannot read. Then comes the exit code; for a gang,
    that of the rank that ended it. A script that was exiting did not know its exit code, so its exit code counts.

    An error that names a variable that the trial was not given (`withheld`) says so. `waited_s` is how long the
    program lived without asking for its configuration; 0 if it asked. `left_by_trainer`: the process that trained
    is not the leader, and has ended without the message that it sends at any end but a kill.
    """
    who = ""
    if finished is not None and finished.exit_code:
        who, exit_code, finished = f"rank {finished.rank} ", finished.exit_code, None
    if finished is not None and finished.exiting and exit_code > 0:
        finished = None
    succeeded = finished is not None and not finished.error
    failed = exit_code > 0 or (finished is not None and bool(finished.error))
    failed |= exit_code < 0 and not signalled and not succeeded
    lets_it_speak = ending is not None and (
        (ending.outcome == worker_pb2.EXIT_OUTCOME_LOST and succeeded) or (ending.decided and failed)
    )
    if ending is not None and not lets_it_speak:
        return Verdict(outcome=ending.outcome, error=ending.error, exit_code=exit_code)
    if finished is not None and finished.error:
        outcome = worker_pb2.EXIT_OUTCOME_FAILED
        if finished.infeasible:
            return Verdict(
                outcome=worker_pb2.EXIT_OUTCOME_INFEASIBLE,
                error=_ERROR.kept(finished.error),
                exit_code=exit_code,
            )
        if finished.unreadable:
            outcome = worker_pb2.EXIT_OUTCOME_UNREADABLE_CHECKPOINT
        elif says_full(finished.error) or _lost_a_child(finished):
            outcome = worker_pb2.EXIT_OUTCOME_LOST
        return Verdict(
            outcome=outcome,
            error=_ERROR.kept(finished.error + hint(finished.error, withheld)),
            exit_code=exit_code,
        )
    if exit_code == 0 and finished is None and left_by_trainer:
        error = (
            "the training process was probably killed: it ended without a message, "
            "although its program exited with 0"
        )
        return Verdict(outcome=worker_pb2.EXIT_OUTCOME_LOST, error=error)
    if exit_code == 0 or succeeded:
        # A crash after success is the teardown of some library, not the trial.
        return Verdict(outcome=worker_pb2.EXIT_OUTCOME_FINISHED, exit_code=exit_code)
    by_shell = exit_code - _SHELLS
    if by_shell in _FROM_OUTSIDE:
        killed = f"a process that it started was killed by {signal_name(by_shell)}"
        error = f"{who}{killed} (exit status {exit_code})"
        return Verdict(outcome=worker_pb2.EXIT_OUTCOME_LOST, error=error, exit_code=exit_code)
    if exit_code < 0:
        outside = -exit_code in _FROM_OUTSIDE
        how = "stopped" if exit_code == -signal.SIGSTOP else "killed"
        return Verdict(
            outcome=worker_pb2.EXIT_OUTCOME_LOST if outside else worker_pb2.EXIT_OUTCOME_FAILED,
            error=f"{who and who + 'was '}{how} by {signal_name(-exit_code)}",
            exit_code=exit_code,
        )
    if exit_code == _DAEMON_GONE:
        error = f"it could not reach its worker (exit status {exit_code})"
        reached = waited_s < _LONG_S
        outcome = worker_pb2.EXIT_OUTCOME_LOST if reached else worker_pb2.EXIT_OUTCOME_UNREACHED
        return Verdict(outcome=outcome, error=error, exit_code=exit_code)
    error = f"{who and who + 'ended with '}exit status {exit_code}" + (
        f"; last output: {last_line}{hint(last_line, withheld)}" if last_line else ""
    )
    return Verdict(outcome=worker_pb2.EXIT_OUTCOME_FAILED, error=_ERROR.kept(error), exit_code=exit_code)


def _lost_a_child(finished: Finished) -> bool:
    """Whether the program failed because one of its child processes was killed. If it handled that, it failed of
    something else."""
    told = finished.traceback.rpartition(_ANOTHER)[2]
    return _CHILD_KILLED.search(f"{finished.error}\n{told}") is not None


def in_ended_job(verdict: Verdict) -> Verdict:
    """The verdict on a program that failed after its worker's batch job was sent SIGTERM, which reaches every process
    of the job: nobody is charged for it."""
    error = _ERROR.kept(f"the worker's job was sent SIGTERM; the program said: {verdict.error}")
    return replace(verdict, outcome=worker_pb2.EXIT_OUTCOME_LOST, error=error)


def on_failed_device(verdict: Verdict, defect: str) -> Verdict:
    """The verdict on a failed program whose device failed (empty: none did): nobody is charged for it."""
    if not defect:
        return verdict
    error = _ERROR.kept(f"its device failed: {defect}; the program said: {verdict.error}")
    return replace(verdict, outcome=worker_pb2.EXIT_OUTCOME_LOST, error=error)


def perhaps_of_device(verdict: Verdict, words: str, failures: int) -> Verdict:
    """The verdict on a failed program whose device may be the cause (empty: nothing indicates that)."""
    return replace(verdict, device_words=words, device_failures=failures) if words else verdict


def not_started(error: str, *, by_machine: bool) -> Verdict:
    """The verdict on a program that could not be started: by its own fault, or by its machine's."""
    outcome = worker_pb2.EXIT_OUTCOME_UNREACHED if by_machine else worker_pb2.EXIT_OUTCOME_FAILED
    return Verdict(outcome=outcome, error=_ERROR.kept(error))


def without_folder(verdict: Verdict) -> Verdict:
    """The verdict on a failed program whose folder on the worker was deleted: nobody is charged for it."""
    if verdict.outcome != worker_pb2.EXIT_OUTCOME_FAILED:
        return verdict
    error = _ERROR.kept(f"its folder on the worker was deleted; the program said: {verdict.error}")
    return replace(verdict, outcome=worker_pb2.EXIT_OUTCOME_LOST, error=error)


def for_all(verdict: Verdict, *, members: int, out_of_memory: bool) -> Verdict:
    """The verdict on each member when the bundle's process ends: success is theirs, a failure nobody's."""
    if verdict.outcome in _OF_ALL:
        return verdict
    trials = "1 trial" if members == 1 else f"{members} trials"
    what = f"its bundle of {trials} {'ran out of memory' if out_of_memory else 'ended'}"
    error = _ERROR.kept(f"{what}: {verdict.error}" if verdict.error else what)
    return replace(
        verdict,
        outcome=worker_pb2.EXIT_OUTCOME_LOST,
        error=error,
        out_of_memory=members if out_of_memory else 0,
    )


def signal_name(number: int) -> str:
    """Names a signal, including a real-time one."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
