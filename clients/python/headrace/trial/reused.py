"""A process that runs several trials of a study, one after another (`trial: {reuse: true}`).

    a trial ends → what it left behind is looked for, what it changed is put back → the process offers itself
      → the daemon's next message: another trial

It ends instead, and says why, if the next trial would meet something that a fresh process would not have: what it
left behind (`reuse`), or code that has changed. It ends without a word if the trial failed, which the trial has
reported.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from headrace.trial import ends, script
from headrace.trial.handover import Handover, turn_to
from headrace.trial.standby import Code, start_anew

if TYPE_CHECKING:
    from headrace.trial.reuse.between import Baseline

MOST_TRIALS = 1000
"""After so many trials a process ends. What none of the checks can see, such as fragmented memory, then has an end
too, at the price of one import in a thousand."""


@dataclass(frozen=True, slots=True)
class Ran:
    """How a trial or a bundle ended."""

    status: int
    infeasible: bool = False


class RunOne(Protocol):
    """Runs one trial or bundle; calls `imported` with the program's folder before its function is called."""

    def __call__(self, imported: Callable[[str], object]) -> Ran:
        """Returns how it ended."""


def run_several(run_one: RunOne, handover: Handover) -> int:
    """Runs trials as long as the daemon has some and each left the process as it was; returns the exit status."""
    # 30 ms, which a process for one trial saves
    from headrace.trial.reuse.between import Baseline
    from headrace.trial.reuse.children import trackers

    code, baseline, folder, has_begun = Code(), Baseline(handover.folders), "", False

    def imported(working_dir: str) -> None:
        nonlocal folder, has_begun
        folder, has_begun = working_dir, True
        code.look()
        baseline.take()

    for trials in range(1, MOST_TRIALS + 1):
        ran = run_one(imported)
        if ran.status and not ran.infeasible:
            handover.close()
            return ran.status
        kind, left_behind = _left_behind(baseline, code, trials) if has_begun else ("", "")
        if left_behind:
            handover.end(left_behind, kind)
            return 0
        os.close(turn_to(handover.offer(trackers())))
        handover.take_names()
        if code.touched(quickly=True):
            handover.close()
            ends.keep_line()
            start_anew(os.environ, folder)
    raise AssertionError("the last trial always leaves something behind")


def _left_behind(baseline: "Baseline", code: Code, trials: int) -> tuple[str, str]:
    """Why the process runs no other trial, and the kind of that; empty if it may."""
    if script.has_current():
        return "left", "it called trial.current(), which finishes its trial at the end of the process"
    if found := baseline.after_trial():
        return baseline.kind, found
    code.look()
    if changed := code.touched(quickly=True):
        return "code", f"{Path(changed).name} was written after the process had imported it"
    return "many", f"it ran {trials} trials" if trials == MOST_TRIALS else ""
