"""One process of a bundle, from its first member to its last: calls the function, and reports how it ended.

An exception that names a member ends only that member. The function is then called again, in this process, with
the others where they were, so it builds its model and data again. If the exception occurred in the middle of a
step, the others cannot continue from memory; the process ends, and they continue from their checkpoints.
"""

import os
import time
import traceback
from collections.abc import Callable

from headrace.trial import memory, raised, rng
from headrace.trial.bundle import Bundle
from headrace.trial.bundle_crew import Crew
from headrace.trial.bundle_rehearsal import each_fails
from headrace.trial.bundle_runtime import Attached, BundleRuntime, Ended
from headrace.trial.runtime import DaemonGone, TrialRuntimeError

_UNFUSABLE = (
    "If the model must stay as it is, leave out fuse, and train it in a function that takes a trial.Trial"
)


def run_bundle(function: Callable[[Bundle], object], runtime: BundleRuntime, attached: Attached) -> None:
    """Seeds, calls `function` with the bundle, and finishes it; an exception of the whole bundle is raised again."""
    crew, began, process = Crew(runtime, attached), time.monotonic(), os.getpid()
    try:
        while _present(crew):
            began = time.monotonic()
            rng.seed_all(crew.live[0].seed)
            memory.apply_budget()
            if _runs_through(function, crew):
                break
            crew.build_anew()
        crew.end_by_itself()
        crew.tell_finished()
    except (TrialRuntimeError, DaemonGone):
        raise  # there is nobody to tell
    except BaseException as error:
        if os.getpid() != process:
            raise  # a fork of it is not the bundle
        if isinstance(error, SystemExit) and error.code in (None, 0):
            runtime.finish(Ended())
            raise
        line, trace = raised.words(error)
        short, of_each = raised.out_of_memory(error), False
        if isinstance(error, Exception) and not short and not crew.has_reported:
            if raised.unfusable(error):
                line, of_each = f"{line}. {_UNFUSABLE}", True
            elif raised.of_use(error):
                of_each = True
            else:
                of_each = each_fails(function, crew, error, elapsed_s=time.monotonic() - began)
        runtime.finish(Ended(error=line, traceback=trace, out_of_memory=short, of_each=of_each))
        raise
    if os.getpid() == process:
        runtime.finish(Ended())


def _present(crew: Crew) -> bool:
    """Waits for a member; False if no more will come."""
    while not crew.over and not crew.live:
        crew.talk(waits=True)
    return not crew.over


def _runs_through(function: Callable[[Bundle], object], crew: Crew) -> bool:
    """Calls the function; False if a member failed, and the function must be called again for the others."""
    try:
        function(Bundle(crew))
    except Exception as error:
        culprit = crew.blamed(error)
        if culprit is None:
            raise
        goes_on = crew.go_on_without(culprit, error)
        crew.talk()
        if not goes_on:
            raise RuntimeError(
                f"{culprit.name} failed in the middle of a step; the others in its bundle resume from their checkpoints"
            ) from None
        traceback.clear_frames(error.__traceback__)  # they hold the group's memory
        return False
    return True
