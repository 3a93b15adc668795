"""`python -m headrace.trial.process`: what a worker daemon starts for a study whose trial is a `module:function`.

Attach, import, seed, call, finish. An error from the import on is the configuration's or the script's: it is
reported with its last line and its traceback, printed to the trial's log, and ends the process with status 1. If
the daemon is gone, that is not the script's fault: status 75. A process that dies without a report (a signal,
the machine) has not finished, and the daemon decides by its exit status.

With `--standby` it is started before its trial is known, and imports what it needs in advance (`standby`). With
`--reuse` it runs several trials, one after another (`reused`).
"""

import gc
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from headrace.grants import BUNDLE
from headrace.trial import job_signals, raised
from headrace.trial.bundle import takes_bundle
from headrace.trial.bundle_cluster import ClusterBundle
from headrace.trial.bundle_run import run_bundle
from headrace.trial.bundle_runtime import Attached, Ended, Said
from headrace.trial.bundle_solo import SoloBundle
from headrace.trial.cluster import ClusterRuntime
from headrace.trial.leaving import leave, remember_files
from headrace.trial.output import print_patiently
from headrace.trial.reused import Ran, run_several
from headrace.trial.runtime import Assignment, DaemonGone, TrialRuntimeError
from headrace.trial.script import finish_with, run
from headrace.trial.standby import Ready, arrive
from headrace.trial.target import import_target


def main() -> int:
    """Runs the trial that `HEADRACE_RUNTIME` and `HEADRACE_LEASE_ID` name, and with reuse further ones; returns the
    exit status."""
    print_patiently()
    job_signals.hold()
    ready, handover = arrive(sys.argv)
    program = _Program(ready)
    if handover is None:
        return program.run().status
    return run_several(program.run, handover)


class _Program:
    """The function that this process runs, once it is imported."""

    def __init__(self, ready: Ready | None) -> None:
        self._ready = ready
        self._function: Callable[..., Any] | None = None if ready is None else ready.function
        self._source = ("", "") if ready is None else (ready.target, ready.working_dir)
        self._begun = False

    def run(self, imported: Callable[[str], object] = lambda _: None) -> Ran:
        """Runs one trial or bundle. Calls `imported` with the program's folder before the function is called."""
        try:
            started = _start()
        except TrialRuntimeError as error:
            print(f"headrace: {error}", file=sys.stderr)
            return Ran(1)
        if started is None:
            return Ran(0)  # a bundle whose members were gone before they started
        assignment = started.assignment
        configuration = " ".join(f"{name}={value}" for name, value in assignment.params.items())
        print(
            f"headrace: {assignment.trial} from step {assignment.resume_step} of {assignment.max_steps}: "
            f"{configuration}"
        )
        try:
            function = self._imported(assignment)
        except Exception as error:  # noqa: BLE001 - it goes into the report and the log
            traceback.print_exc()
            _fail(started, error)
            return Ran(1)
        imported(assignment.working_dir)
        try:
            started.runtime.imported()
            _call(function, started)
        except DaemonGone:
            raise
        except SystemExit as error:
            if error.code in (None, 0):
                return Ran(0)
            traceback.print_exc()
            return Ran(1)
        except Exception as error:  # noqa: BLE001 - reported by run(); the log gets the traceback
            traceback.print_exc()
            return Ran(1, infeasible=raised.infeasible(error) is not None)
        return Ran(0)

    def _imported(self, assignment: Assignment) -> Callable[..., Any]:
        """The trial's function. It is imported once, and what was printed ahead of the first trial goes to its log."""
        ready, self._ready = self._ready, None
        if self._function is None or self._source != (assignment.target, assignment.working_dir):
            self._function = import_target(assignment.target, assignment.working_dir)
            self._source = (assignment.target, assignment.working_dir)
            remember_files()
        elif ready is not None:
            ready.show_what_was_printed()
        if not self._begun:
            self._begun = True
            gc.freeze()  # imported objects stay until the end, so the collector need not visit them
        return self._function


@dataclass(frozen=True, slots=True, kw_only=True)
class _Started:
    """The runtime behind this process, and the trial that it starts with."""

    runtime: ClusterRuntime | ClusterBundle
    assignment: Assignment
    # For a bundle: its members.
    attached: Attached | None = None


def _start() -> _Started | None:
    """Attaches; None for a bundle that ended before it had a member."""
    if not os.environ.get(BUNDLE):
        alone = ClusterRuntime.from_environment()
        return _Started(runtime=alone, assignment=alone.attach())
    runtime = ClusterBundle.from_environment()
    attached = runtime.attach()
    while not attached.members:
        answer = runtime.turn(Said(waits=True))
        if answer.over:
            runtime.finish(Ended())
            return None
        attached = replace(attached, members=answer.joined)
    return _Started(runtime=runtime, assignment=attached.members[0].assignment, attached=attached)


def _call(function: Callable[..., Any], started: _Started) -> None:
    """Runs the function as a bundle's or as a trial's, by what it takes."""
    if isinstance(started.runtime, ClusterBundle):
        assert started.attached is not None
        if not takes_bundle(function):
            error = TypeError(
                f"{started.assignment.target} takes a trial, and the study fuses: give it a first parameter "
                "bundle: trial.Bundle, or leave fuse out of the study"
            )
            _fail(started, error)
            raise error
        run_bundle(function, started.runtime, started.attached)
    elif takes_bundle(function):
        solo = SoloBundle(started.runtime, started.assignment)
        run_bundle(function, solo, solo.attach())
    else:
        run(function, started.runtime, started.assignment)


def _fail(started: _Started, error: BaseException) -> None:
    """Reports that the program failed before its function was called."""
    if isinstance(started.runtime, ClusterBundle):
        line, trace = raised.words(error)
        short = raised.out_of_memory(error)
        started.runtime.finish(Ended(error=line, traceback=trace, out_of_memory=short, of_each=not short))
    else:
        finish_with(started.runtime, error)


if __name__ == "__main__":
    try:
        ended = main()
    except DaemonGone as gone:
        ended = gone.STATUS
    leave(ended)
