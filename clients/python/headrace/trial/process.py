"""`python -m headrace.trial.process`: what a worker daemon starts for a study whose trial is a `module:function`.

Attach, import, seed, call, finish. Whatever goes wrong from the import on is the configuration's or the
script's: it is reported with its last line and its traceback, printed to the trial's log, and ends the
process with status 1. A daemon that is gone is not the script's fault: status 75. A process that dies without a
word (a signal, the machine) has not finished, and the daemon draws its own conclusion.

With `--standby` it is started before its trial is known, and has imported what it needs by then (`standby`).
"""

import gc
import sys
import traceback

from headrace.trial.cluster import ClusterRuntime
from headrace.trial.leaving import leave, remember_files
from headrace.trial.output import print_patiently
from headrace.trial.runtime import DaemonGone, TrialRuntimeError
from headrace.trial.script import finish_with, run
from headrace.trial.standby import stand_by
from headrace.trial.target import import_target


def main() -> int:
    """Runs the trial that `HEADRACE_RUNTIME` and `HEADRACE_LEASE_ID` name; returns the exit status."""
    print_patiently()
    ready = stand_by(sys.argv)
    try:
        runtime = ClusterRuntime.from_environment()
        assignment = runtime.attach()
    except TrialRuntimeError as error:
        print(f"headrace: {error}", file=sys.stderr)
        return 1
    configuration = " ".join(f"{name}={value}" for name, value in assignment.params.items())
    print(
        f"headrace: {assignment.trial} from step {assignment.resume_step} of {assignment.max_steps}: {configuration}"
    )
    try:
        if ready is not None and (ready.target, ready.working_dir) == (
            assignment.target,
            assignment.working_dir,
        ):
            ready.show_what_was_printed()
            function = ready.function
        else:
            function = import_target(assignment.target, assignment.working_dir)
    except Exception as error:  # noqa: BLE001 - it goes into the report and the log
        traceback.print_exc()
        finish_with(runtime, error)
        return 1
    if ready is None:
        remember_files()
    gc.freeze()  # what was imported stays to the end: the collector need not visit it
    try:
        run(function, runtime, assignment)
    except DaemonGone:
        raise
    except SystemExit as error:
        if error.code in (None, 0):
            return 0
        traceback.print_exc()
        return 1
    except Exception:  # noqa: BLE001 - reported by run(); the log gets the traceback
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    try:
        ended = main()
    except DaemonGone as gone:
        ended = gone.STATUS
    leave(ended)
