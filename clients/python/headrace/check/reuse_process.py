"""One process of `headrace check --reuse`: runs a trial as a worker's process does, after another one or alone.

The process is driven by `headrace.trial.reused`, which drives the real one. Here it gets its trials from the check
in place of a daemon: perhaps a first one that nobody observes, then the one that is compared. Both are told to the
script as in any check (`segment`).
"""

import gc
import importlib
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from headrace.check import digest
from headrace.check.earlier_files import EarlierFiles
from headrace.check.main_call import main_call
from headrace.check.process_state import ProcessState
from headrace.check.reuse_record import FirstTrial, Reuse, Used, used_file
from headrace.check.segment import Segment
from headrace.check.snapshot import Control, SegmentResult
from headrace.grants import RANK
from headrace.trial import raised
from headrace.trial.bundle import takes_bundle
from headrace.trial.bundle_run import run_bundle
from headrace.trial.bundle_solo import SoloBundle
from headrace.trial.handover import Handover
from headrace.trial.leaving import remember_files
from headrace.trial.reused import Ran, run_several
from headrace.trial.runtime import Runtime
from headrace.trial.script import Defaults, finish_with, install, run
from headrace.trial.session import Observer
from headrace.trial.target import import_target


def run_reused(control: Control, reuse: Reuse) -> SegmentResult:
    """Runs the trials, writes what there is to say of the process, and returns what the compared trial did."""
    os.environ.update(control.env)
    os.environ.pop(RANK, None)  # it is no gang
    os.chdir(control.folder)
    if control.is_copy:
        digest.alike(control.folder.rstrip("0123456789"))
    process = _Process(control, reuse)
    install(process)
    with suppress(_NoMoreTrials):
        run_several(process.run_one, process)
    used_file(control.result_file).write_bytes(TypeAdapter(Used).dump_json(process.used()))
    return process.result


class _NoMoreTrials(Exception):  # noqa: N818 - not an error
    """The process offers itself for another trial, and there is none."""


class _Process(Handover):
    """The trials of this process, what it says to its daemon, and the host of each trial."""

    def __init__(self, control: Control, reuse: Reuse) -> None:
        self._control, self._first, self._looks = control, reuse.first, reuse.reads > 0
        self._state, self._imports = ProcessState(reuse.reads, reuse.imports), reuse.imports
        self._looked = False
        self._files = EarlierFiles(reuse.since_ns, Path(control.result_file))
        self._function: Callable[..., Any] | None = None
        self._defaults: Defaults | None = None
        self._segment = Segment(control if reuse.first is None else _control_of(control, reuse.first))
        self._used = Used()
        self._over = False
        self.variables, self.folders = {}, ()
        self.result = self._segment.result()

    def used(self) -> Used:
        """What there is to say of this process."""
        return replace(
            self._used, files=self._files.found(), late=self._state.late, unread=self._state.unread
        )

    def runtime(self, defaults: Defaults) -> tuple[Runtime, Observer]:
        """Called by a script that asks for its trial itself."""
        return self._segment.runtime(defaults)

    def run_one(self, imported: Callable[[str], object]) -> Ran:
        """Runs the next trial. What the check knows of the first one does not outlive it."""
        first, self._first = self._first, None
        ran = self._ran(imported, observed=first is None)
        result = self._segment.result()
        if first is None:
            self.result, self._over = result, True
            return ran
        self._segment = Segment(self._control)
        self._used = replace(
            self._used,
            error="" if ran.infeasible else result.error,
            traceback=result.traceback,
            first_steps=len(result.steps),
            written=result.files.written,
        )
        return ran

    def close(self) -> None:
        """The process gets no other trial."""

    def end(self, left_behind: str, kind: str = "") -> None:  # noqa: ARG002 - a handover's
        """The process would run no further trial."""
        self._note(left_behind)

    def offer(self, expected: Sequence[int] = ()) -> int:  # noqa: ARG002 - there is one
        """The process would run another trial, and gets it if there is one."""
        self._note("")
        if self._over:
            raise _NoMoreTrials
        return os.dup(1)

    def take_names(self) -> None:
        """There are none here."""

    def _note(self, left_behind: str) -> None:
        self._used = replace(self._used, left_behind=(*self._used.left_behind, left_behind))
        if self._over or left_behind:
            self._look()

    def _look(self) -> None:
        """Before each trial, and after the last: what has the one before changed?"""
        if not self._looks:
            return
        try:
            if self._looked:
                self._used = replace(self._used, changed=(*self._used.changed, self._state.changes()))
            else:
                self._looked = True
                for name in self._imports:
                    with suppress(Exception):
                        importlib.import_module(name)
                self._state.look()
        except Exception:  # noqa: BLE001 - without its names, the difference is known all the same
            traceback.print_exc()
            self._looks = False

    def _ran(self, imported: Callable[[str], object], *, observed: bool) -> Ran:
        try:
            function = self._imported()
            imported(self._control.folder)
            self._look()
            self._files.watch(observed)
            self._call(function, observed=observed)
        except SystemExit as error:
            finish_with(self._segment, error)
            return Ran(0 if error.code in (None, 0) else 1)
        except BaseException as error:  # noqa: BLE001 - it is the result
            traceback.print_exc()
            finish_with(self._segment, error)
            return Ran(1, infeasible=raised.infeasible(error) is not None)
        return Ran(0)

    def _imported(self) -> Callable[..., Any]:
        """The function, which is imported once."""
        script, module = Path(self._control.script), self._control.target.partition(":")[0]
        if self._function is None:
            place = script.parents[module.count(".")]
            self._function = import_target(self._control.target, str(place))
            call = main_call(script) if self._control.max_steps is None else None
            self._defaults = None if call is None else call.defaults(vars(sys.modules[module]))
            self._used = replace(self._used, import_s=time.process_time())
            remember_files()
            gc.freeze()
        if self._defaults is not None:
            self._segment.runtime(self._defaults)
        return self._function

    def _call(self, function: Callable[..., Any], *, observed: bool) -> None:
        segment = self._segment
        if takes_bundle(function):
            solo = SoloBundle(segment)
            run_bundle(function, solo, solo.attach())
        elif not segment.attached:  # otherwise it asked when it was imported, and has run
            if observed:
                segment.watch_files()
            run(function, segment, segment.attach(), segment if observed else None)


def _control_of(control: Control, first: FirstTrial) -> Control:
    """The first trial's: it trains its own configuration up to a pause, and saves there."""
    return replace(
        control,
        id=first.id,
        number=control.number + 1,
        params=first.params,
        seed=first.seed,
        pause_at=first.pause_at,
        until=0,
        most=None,
        limit_s=first.limit_s,
        checkpoint_dir=first.checkpoint_dir,
    )
