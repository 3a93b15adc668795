"""The truth with which `headrace check` must agree: a script, undisturbed and paused after each step, with no
observer."""

import os
import runpy
import sys
import traceback as tracebacks
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from headrace.trial.runtime import TOLD, Action, Assignment, Decision, OwnEnd, Report, Runtime
from headrace.trial.script import Defaults, finish_with, install

Curve = list[tuple[int, dict[str, str]]]


@dataclass
class Part:
    """One process of a run: the reports so far, and where it pauses."""

    folder: Path
    pauses: bool
    step: int = 0
    restore: str = ""
    curve: Curve = field(default_factory=list)
    ended: str = "by itself"
    budget: int = 0

    def runtime(self, defaults: Defaults) -> tuple[Runtime, None]:
        self.defaults, self.budget = defaults, defaults.steps
        return self, None

    def attach(self) -> Assignment:
        return Assignment(
            trial="studies/check/trials/0",
            params=self.defaults.params,
            max_steps=self.budget,
            next_milestone=min(self.step + 1, self.budget) if self.pauses else self.budget,
            seed=0,
            restore_dir=Path(self.restore) if self.restore else None,
            resume_step=self.step,
            checkpoint_dir=self.folder if self.pauses else None,
            slots=(0,),
            rank=0,
            ranks=1,
        )

    def restored(self, *, read_time_s: float) -> None:
        pass

    def report(self, report: Report) -> Decision:
        self.curve.append((report.step, {name: value.hex() for name, value in report.metrics.items()}))
        if report.step >= self.budget:
            self.ended = "budget"
            return Decision(action=Action.STOP)
        if self.pauses:
            assert report.checkpoint_dir is not None
            self.step, self.restore = report.step, str(report.checkpoint_dir)
            self.ended = "paused"
            return Decision(action=Action.PAUSE)
        return Decision(action=Action.CONTINUE)

    def finish(self, *, error: str, traceback: str, own: OwnEnd = TOLD) -> None:  # noqa: ARG002  (its runtime's signature)
        if error:
            self.ended = error


def run(script: Path, folder: Path, *, pauses: bool) -> tuple[Curve, str]:
    """The curve and the end. With `pauses`, a process of its own trains each step."""
    part = Part(folder=folder, pauses=pauses)
    while True:
        done = _forked(script, part)
        part.curve, part.ended, step, restore = done
        if part.ended != "paused" or step == part.step:
            return part.curve, part.ended
        part.step, part.restore, part.ended = step, restore, "by itself"


def same(script: Path, folder: Path) -> bool:
    """Whether pauses leave the curve and the end unchanged."""
    straight = run(script, folder / "straight", pauses=False)
    return straight == run(script, folder / "paused", pauses=True)


def _forked(script: Path, part: Part) -> tuple[Curve, str, int, str]:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        with suppress(BaseException):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2)
            os.chdir(script.parent)
            sys.path.insert(0, str(script.parent))
            sys.argv = [str(script)]
            install(part)
            try:
                runpy.run_path(str(script), run_name="__main__")
            except SystemExit:
                pass
            except BaseException as error:  # noqa: BLE001 - it is how the run ends
                finish_with(part, error)
                part.ended += tracebacks.format_exc()
            with os.fdopen(writing, "w") as file:
                file.write(repr((part.curve, part.ended, part.step, part.restore)))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        said = file.read()
    os.waitpid(pid, 0)
    found: tuple[Curve, str, int, str] = eval(said)  # our own process wrote it
    return found
