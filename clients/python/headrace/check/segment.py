"""One process of a check: `python -m headrace.check.segment CONTROL`.

Runs the script as its author would, but takes the place of the host behind `headrace.trial`: it hands out the
parameters, says where to continue, receives the reports, and captures the state at each moment that matters. A
segment ends where it is asked to pause, as a trial does at a rung, at the script's own end, or when the check
has seen enough. The straight run saves nothing.
"""

import functools
import os
import runpy
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from pydantic import TypeAdapter

from headrace.check import digest, fingerprint
from headrace.check.discover import Heap, script_frames
from headrace.check.folder_reads import FolderReads
from headrace.check.phases import Phases
from headrace.check.settings import Gradients
from headrace.check.snapshot import (
    LEAST,
    Control,
    End,
    Moment,
    Reported,
    SegmentResult,
    Snapshot,
    result_of,
)
from headrace.check.source import unknown_parameters
from headrace.grants import RANK
from headrace.trial import Trial, rng
from headrace.trial.bundle import takes_bundle
from headrace.trial.bundle_run import run_bundle
from headrace.trial.bundle_solo import SoloBundle
from headrace.trial.gang import die_with_parent
from headrace.trial.imported import once_imported
from headrace.trial.runtime import TOLD, Action, Assignment, Decision, OwnEnd, Report, Runtime, Value
from headrace.trial.script import Defaults, finish_with, install, run
from headrace.trial.session import Observer
from headrace.trial.target import import_target

_PHOTOGRAPHED = 16
"""The state is captured in this many first steps. After that, it is captured where the process pauses or ends,
and at steps that become ever rarer.
"""
_LOOKS_S = 1.0
_LOOKS_SHARE = 0.05
"""How long inspecting the variables may take: the larger of a time in seconds and a share of the training time.
Inspecting the other state may take as long again.
"""
_SEEDING = {"random": ("seed",), "numpy.random": ("seed",), "torch": ("manual_seed", "seed")}


class CheckFaultError(RuntimeError):
    """The check itself failed while it inspected the script's state."""


class Segment:
    """Runtime, observer and host of the one trial in this process."""

    def __init__(
        self, control: Control, rank: int = 0, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._control = control
        self._rank = rank
        self._clock = clock
        self._began = clock()
        self._defaults = Defaults(params={}, steps=LEAST, seed=control.seed)
        self._names_steps = control.max_steps is not None
        self._end = End.RETURNED
        self._trial: Trial | None = None
        self._reported_in = 0
        self._heap = Heap()
        self._phases = Phases()
        self._files = FolderReads(control, rank)
        self._gradients = Gradients()
        self._looked_s = self._beside_s = 0.0
        self._beside: dict[str, int] = {}
        self._params: dict[str, Value] = {}
        self._unknown: tuple[str, ...] = ()
        self.attached = False
        """Whether the script has asked for its trial."""
        self._reports: list[Reported] = []
        self._steps: list[int] = []
        self._snapshots: list[Snapshot] = []
        self._checkpoint: tuple[str, int] = ("", 0)
        self._seeded: dict[str, None] = {}
        self._error = self._traceback = ""

    def runtime(self, defaults: Defaults) -> tuple[Runtime, Observer]:
        """Called by the trial API when the script's defaults are known."""
        self._defaults = defaults
        self._names_steps = True
        control = self._control
        if control.max_steps is None:  # a study file has its own space
            self._unknown = unknown_parameters(Path(control.script), control.params, defaults.params)
        if self._unknown:
            raise ValueError(f"no parameters of this script: {', '.join(self._unknown)}")
        return self, self

    def watch_files(self) -> None:
        """Start watching files; modules imported earlier are not the script's."""
        self._files.begin()

    def attach(self) -> Assignment:
        """The configuration, and the checkpoint of the previous segment."""
        control = self._control
        self.attached = True
        self._began = self._clock()
        if control.resume_step:
            _watch_seeding(self.seeding)
        self._heap.settle(fingerprint.heap_classes())
        self._params = {**self._defaults.params, **control.params}
        return Assignment(
            trial=f"studies/check/trials/{control.number}",
            id=control.id,
            params=self._params,
            max_steps=self._budget,
            next_milestone=control.pause_at or self._budget,
            seed=control.seed,
            restore_dir=Path(control.restore_dir) if control.restore_dir else None,
            resume_step=control.resume_step,
            checkpoint_dir=Path(control.checkpoint_dir) if control.checkpoint_dir else None,
            slots=tuple(range(control.ranks)),
            rank=self._rank,
            ranks=control.ranks,
        )

    def restored(self, *, read_time_s: float) -> None:
        """Does nothing: nobody waits for this here."""

    def tracked(self, t: Trial) -> None:
        """Capture the state as `t.track(...)` left it; the script may still change it before its loop."""
        self._seeded.clear()  # the restore undoes earlier seeding
        self._capture(t, Moment.TRACKED, t.step)
        if self._control.watched:
            self._phases.begin(self._glance(t, sys._getframe(1)))

    def begun(self, t: Trial) -> None:
        """Capture the state as the first step will find it."""
        self._trial = t
        self._seeded.clear()
        self._capture(t, Moment.BEGUN, t.step)
        self._files.begun()
        if self._control.watched:
            self._phases.begin(self._glance(t, sys._getframe(1)))

    def reporting(self, t: Trial, step: int) -> None:
        """Capture the state at a report: everything that the checkpoint should hold is in memory now."""
        self._trial, self._reported_in = t, t.step
        if self._is_photographed(step):
            self._capture(t, Moment.REPORTED, step)
            if self._control.watched and self._control.ranks == 1:  # sharded gradients work differently
                self._gradients.watch(fingerprint.tracked_modules(t), step)
        if self._is_looked_at(step):
            began, beside_s = self._clock(), self._beside_s
            self._phases.saw(step, self._glance(t, sys._getframe(1)))
            self._looked_s += self._clock() - began - (self._beside_s - beside_s)

    def body_ended(self, t: Trial) -> None:
        """Capture the state again: changes after the report are in no checkpoint."""
        if self._snapshots and self._snapshots[-1].moment is Moment.REPORTED:
            self._capture(t, Moment.BODY_ENDED, t.step)

    def report(self, report: Report) -> Decision:
        """Continue to the budget, or until the check has seen enough; or leave at the pause."""
        self._files.reported()
        self._reports.append(
            Reported(step=report.step, metrics={name: value.hex() for name, value in report.metrics.items()})
        )
        if not self._steps or report.step > self._steps[-1]:
            self._steps.append(report.step)
        if report.checkpoint_dir is not None:
            self._checkpoint = (str(report.checkpoint_dir), report.step)
        if report.step >= self._budget:
            self._end = End.BUDGET
            return Decision(action=Action.STOP)
        if self._has_seen_enough(report.step, len(self._steps)):
            self._end = End.CUT
            return Decision(action=Action.STOP)
        if self._pauses(report.step):
            self._end = End.PAUSED
            return Decision(action=Action.PAUSE)
        return Decision(action=Action.CONTINUE)

    def finish(self, *, error: str, traceback: str, own: OwnEnd = TOLD) -> None:  # noqa: ARG002  (its runtime's signature)
        """Record how the script ended."""
        self._error, self._traceback = error, traceback
        if not error and self._end is End.RETURNED and self._trial is not None:
            self._capture(self._trial, Moment.RETURNED, self._trial.step)

    def seeding(self, name: str, frame: FrameType | None) -> None:
        """Record that a global generator is seeded, which undoes the restore if it happens afterwards."""
        if not self._snapshots or self._control.resume_step == 0:
            return
        if frame is not None and frame.f_globals.get("__name__") == rng.__name__:
            return  # the trial API seeds a library that the script imports late
        own = script_frames(frame)
        if own:
            self._seeded[f"{name} ({Path(own[-1].f_code.co_filename).name}:{own[-1].f_lineno})"] = None

    def result(self) -> SegmentResult:
        """Everything that happened."""
        left_in = 0 if self._trial is None else self._trial._left_in()
        return SegmentResult(
            attached=self.attached,
            resume_step=self._control.resume_step,
            reports=tuple(self._reports),
            steps=tuple(self._steps),
            snapshots=tuple(self._snapshots),
            checkpoint_dir=self._checkpoint[0],
            checkpoint_step=self._checkpoint[1],
            end=self._end,
            left=left_in > 0,
            left_after_report=left_in > 0 and left_in == self._reported_in,
            max_steps=self._budget,
            train_s=self._clock() - self._began,
            params=self._params,
            known_params=tuple(self._defaults.params) if self._unknown else (),
            phases=self._phases.found(),
            carried=self._gradients.carried,
            checkpoint_every=self._trial._checkpoint_every if self._trial else None,
            seeded=tuple(self._seeded),
            framework=fingerprint.framework_of(self._trial.tracked_objects()) if self._trial else None,
            rank=self._rank if self._control.ranks > 1 else None,
            files=self._files.found(),
            error=self._error,
            traceback=self._traceback,
            names_steps=self._names_steps,
        )

    @property
    def _budget(self) -> int:
        return self._control.max_steps or max(self._defaults.steps, self._control.most or LEAST)

    def _pauses(self, step: int) -> bool:
        return 0 < self._control.pause_at <= step

    def _has_seen_enough(self, step: int, count: int) -> bool:
        control = self._control
        if 0 < control.until <= step or (control.most is not None and count >= control.most):
            return True
        limit_s = control.limit_s
        return limit_s is not None and count >= LEAST and self._clock() - self._began >= limit_s

    def _is_photographed(self, step: int) -> bool:
        """Whether to capture the state at the coming report of this step, which takes time."""
        count = len(self._steps) + 1
        due = step >= self._budget or self._has_seen_enough(step, count) or self._pauses(step)
        due = due or step in self._control.photographed
        return due or count <= _PHOTOGRAPHED or count & (count - 1) == 0

    def _is_looked_at(self, step: int) -> bool:
        """Whether to inspect the variables: at the reports of new steps, within a time limit in total."""
        if not self._control.watched or (self._steps and step <= self._steps[-1]):
            return False
        return self._is_in_time(self._looked_s)

    def _is_in_time(self, looked_s: float) -> bool:
        return looked_s <= max(_LOOKS_S, _LOOKS_SHARE * (self._clock() - self._began))

    def _glance(self, t: Trial, frame: FrameType | None) -> dict[str, int]:
        """The variables, and the files that a pause loses like variables."""
        files = {f"file {name}": changed_ns for name, changed_ns in self._files.written().items()}
        variables, beside = fingerprint.glance(t, frame)
        if self._is_in_time(
            self._beside_s
        ):  # a large model takes longer than the variables, so it has its own time limit
            began = self._clock()
            self._beside = beside()
            self._beside_s += self._clock() - began
        return variables | self._beside | files

    def _capture(self, t: Trial, moment: Moment, step: int) -> None:
        try:
            self._snapshots.append(fingerprint.capture(t, sys._getframe(1), self._heap, moment, step))
        except Exception as error:
            if Path(traceback.extract_tb(error.__traceback__)[-1].filename).parent == Path(__file__).parent:
                raise CheckFaultError(repr(error)) from error
            raise  # raised by the script's code, such as a state_dict()


def run_segment(control: Control, rank: int = 0) -> SegmentResult:
    """Runs the script in this process, to the end of its segment."""
    os.environ.update(control.env)
    segment = Segment(control, rank)
    install(segment)
    script = Path(control.script)
    os.chdir(control.folder)
    if control.is_copy:
        digest.alike(control.folder.rstrip("0123456789"))
    segment.watch_files()
    try:
        if control.target:
            function = import_target(control.target, str(script.parent))
            if takes_bundle(function):  # one member, whose reports are compared
                solo = SoloBundle(segment)
                run_bundle(function, solo, solo.attach())
            elif not segment.attached:  # otherwise it asked when it was imported, and has run
                run(function, segment, segment.attach(), segment)
        else:
            sys.argv = [str(script), *control.arguments]
            if control.module:
                sys.path.insert(0, control.folder)
                runpy.run_module(control.module, run_name="__main__", alter_sys=True)
            else:
                sys.path.insert(0, str(script.parent))
                runpy.run_path(str(script), run_name="__main__")
    except SystemExit as error:
        if error.code not in (None, 0):
            finish_with(segment, error)
    except BaseException as error:  # noqa: BLE001 - it is the result
        traceback.print_exc()
        finish_with(segment, error)
    return segment.result()


def _watch_seeding(notify: Callable[[str, FrameType | None], None]) -> None:
    """Report every later call that seeds a global generator, including those of libraries that are imported
    later.
    """
    for module_name, names in _SEEDING.items():

        def watch(module: ModuleType, names: tuple[str, ...] = names) -> None:
            for name in names:
                setattr(module, name, _noticed(getattr(module, name), f"{module.__name__}.{name}", notify))

        once_imported(module_name, watch, purpose="check")


def _noticed(
    function: Callable[..., Any], name: str, notify: Callable[[str, FrameType | None], None]
) -> Callable[..., Any]:
    @functools.wraps(function)
    def noticed(*args: Any, **kwargs: Any) -> Any:
        notify(name, sys._getframe(1))
        return function(*args, **kwargs)

    return noticed


def main(control_file: str) -> int:
    """Read the control file, run, write the result atomically, and return the exit status.

    A rank that fails ends with status 1, so that its gang ends with it.
    """
    control = TypeAdapter(Control).validate_json(Path(control_file).read_bytes())
    rank = 0
    if control.ranks > 1:
        rank = int(os.environ[RANK])
        die_with_parent()
    if control.reuse is None:
        result = run_segment(control, rank)
    else:
        from headrace.check.reuse_process import run_reused  # which imports this module

        result = run_reused(control, control.reuse)
    final = result_of(control.result_file, rank)
    partial = final.with_name(f"{final.name}.partial")
    partial.write_bytes(TypeAdapter(SegmentResult).dump_json(result))
    partial.rename(final)
    return 1 if result.error and control.ranks > 1 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
