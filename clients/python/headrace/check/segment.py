"""One process of a check: `python -m headrace.check.segment CONTROL`.

Runs the script as its author would, but stands behind `headrace.trial` itself: hands out the parameters,
says where to continue, takes the reports, and photographs the state at each instant that matters. A segment
ends at the first report past the step it resumed from, as a trial does that is paused at every rung; the
straight run goes on to the last step and saves nothing.
"""

import functools
import os
import runpy
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from pydantic import TypeAdapter

from headrace.check import fingerprint
from headrace.check.discover import Heap, script_frames
from headrace.check.snapshot import Control, Moment, Reported, SegmentResult, Snapshot, result_of
from headrace.grants import RANK
from headrace.trial import Trial
from headrace.trial.bundle import takes_bundle
from headrace.trial.bundle_run import run_bundle
from headrace.trial.bundle_solo import SoloBundle
from headrace.trial.gang import die_with_parent
from headrace.trial.runtime import Action, Assignment, Decision, Report, Runtime
from headrace.trial.script import Defaults, finish_with, install, run
from headrace.trial.session import Observer
from headrace.trial.target import import_target

_SEEDING = {"random": ("seed",), "numpy.random": ("seed",), "torch": ("manual_seed", "seed")}


class Segment:
    """Runtime, observer and host of the one trial in this process."""

    def __init__(self, control: Control, rank: int = 0) -> None:
        self._control = control
        self._rank = rank
        self._defaults = Defaults(params={}, steps=control.steps, seed=control.seed)
        self._heap = Heap()
        self.attached = False
        """Whether the script has its trial."""
        self._reports: list[Reported] = []
        self._snapshots: list[Snapshot] = []
        self._checkpoint: tuple[str, int] = ("", 0)
        self._seeded: dict[str, None] = {}
        self._error = self._traceback = ""

    def runtime(self, defaults: Defaults) -> tuple[Runtime, Observer]:
        """The host's part: the script's defaults are known now."""
        self._defaults = defaults
        return self, self

    def attach(self) -> Assignment:
        """The configuration, and the checkpoint of the segment before."""
        control = self._control
        self.attached = True
        _watch_seeding(self.seeding)
        self._heap.settle(fingerprint.nameless_classes())
        return Assignment(
            trial="studies/check/trials/0",
            params={**self._defaults.params, **control.params},
            max_steps=control.max_steps or max(self._defaults.steps, control.steps),
            next_milestone=control.resume_step + 1,
            seed=control.seed,
            restore_dir=Path(control.restore_dir) if control.restore_dir else None,
            resume_step=control.resume_step,
            checkpoint_dir=Path(control.checkpoint_dir) if control.checkpoint_dir else None,
            slots=tuple(range(control.ranks)),
            rank=self._rank,
            ranks=control.ranks,
        )

    def restored(self, *, read_time_s: float) -> None:
        """Nobody waits for it here."""

    def tracked(self, t: Trial) -> None:
        """As `t.track(...)` left it; a script may still change it before its loop."""
        self._take(t, Moment.TRACKED, t.step)

    def begun(self, t: Trial) -> None:
        """As the first step will find it."""
        self._take(t, Moment.BEGUN, t.step)

    def reporting(self, t: Trial, step: int) -> None:
        """Everything the checkpoint should hold is in memory now."""
        self._take(t, Moment.REPORTED, step)

    def body_ended(self, t: Trial) -> None:
        """What the body did after its report is in no checkpoint."""
        self._take(t, Moment.BODY_ENDED, t.step)

    def report(self, report: Report) -> Decision:
        """Goes on to the last step in the straight run, else leaves at the first new step."""
        self._reports.append(
            Reported(step=report.step, metrics={name: value.hex() for name, value in report.metrics.items()})
        )
        if report.checkpoint_dir is not None:
            self._checkpoint = (str(report.checkpoint_dir), report.step)
        until = self._control.until
        if report.step >= until if until is not None else self._count() >= self._control.steps:
            return Decision(action=Action.STOP)
        if self._control.checkpoint_dir and report.step > self._control.resume_step:
            return Decision(action=Action.PAUSE)
        return Decision(
            action=Action.CONTINUE, next_milestone=max(report.step, self._control.resume_step) + 1
        )

    def finish(self, *, error: str, traceback: str) -> None:
        """Keeps how the script ended."""
        self._error, self._traceback = error, traceback

    def seeding(self, name: str, frame: FrameType | None) -> None:
        """A global generator is being seeded: after the restore, that undoes it."""
        if not self._snapshots or self._control.resume_step == 0:
            return
        own = script_frames(frame)
        if own:
            self._seeded[f"{name} ({Path(own[-1].f_code.co_filename).name}:{own[-1].f_lineno})"] = None

    def result(self) -> SegmentResult:
        """All that happened."""
        return SegmentResult(
            attached=self.attached,
            resume_step=self._control.resume_step,
            reports=tuple(self._reports),
            snapshots=tuple(self._snapshots),
            checkpoint_dir=self._checkpoint[0],
            checkpoint_step=self._checkpoint[1],
            seeded=tuple(self._seeded),
            rank=self._rank if self._control.ranks > 1 else None,
            error=self._error,
            traceback=self._traceback,
        )

    def _count(self) -> int:
        """How many steps were reported; one that is reported twice, or after a later one, is the same step."""
        furthest, count = 0, 0
        for reported in self._reports:
            if reported.step > furthest:
                furthest, count = reported.step, count + 1
        return count

    def _take(self, t: Trial, moment: Moment, step: int) -> None:
        self._snapshots.append(fingerprint.take(t, sys._getframe(1), self._heap, moment, step))


def run_segment(control: Control, rank: int = 0) -> SegmentResult:
    """Runs the script in this process, to the end of its segment."""
    segment = Segment(control, rank)
    install(segment)
    script = Path(control.script)
    os.chdir(control.folder)
    try:
        if control.target:
            function = import_target(control.target, str(script.parent))
            if takes_bundle(function):  # one member, of which the reports are compared
                solo = SoloBundle(segment)
                run_bundle(function, solo, solo.attach())
            elif not segment.attached:  # else it asked when it was imported, and has run
                run(function, segment, segment.attach(), segment)
        else:
            sys.path.insert(0, str(script.parent))
            sys.argv = [str(script)]
            runpy.run_path(str(script), run_name="__main__")
    except SystemExit as error:
        if error.code not in (None, 0):
            finish_with(segment, error)
    except BaseException as error:  # noqa: BLE001 - it is the result
        traceback.print_exc()
        finish_with(segment, error)
    return segment.result()


def _watch_seeding(notify: Callable[[str, FrameType | None], None]) -> None:
    """Tells of every later call that seeds a global generator; the script has imported its libraries by now."""
    for module_name, names in _SEEDING.items():
        module = sys.modules.get(module_name)
        for name in names:
            if module is not None:
                setattr(module, name, _noticed(getattr(module, name), f"{module_name}.{name}", notify))


def _noticed(
    function: Callable[..., Any], name: str, notify: Callable[[str, FrameType | None], None]
) -> Callable[..., Any]:
    @functools.wraps(function)
    def noticed(*args: Any, **kwargs: Any) -> Any:
        notify(name, sys._getframe(1))
        return function(*args, **kwargs)

    return noticed


def main(control_file: str) -> int:
    """Reads the control, runs, and writes the result, completely or not at all; returns the exit status.

    A rank that fails ends with status 1, so that its gang ends with it.
    """
    control = TypeAdapter(Control).validate_json(Path(control_file).read_bytes())
    rank = 0
    if control.ranks > 1:
        rank = int(os.environ[RANK])
        die_with_parent()
    result = run_segment(control, rank)
    final = result_of(control.result_file, rank)
    partial = final.with_name(f"{final.name}.partial")
    partial.write_bytes(TypeAdapter(SegmentResult).dump_json(result))
    partial.rename(final)
    return 1 if result.error and control.ranks > 1 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
