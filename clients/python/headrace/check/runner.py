"""Runs the processes of a check, and draws the conclusion.

A straight run; then the same steps with a save, an end and a restore in a new process at every report. If
they differ, a second straight run tells a script that is not deterministic by itself from one that a pause
changes. Every process is really new: with its own hash seed, its own import order and its own memory, as on
another machine. A script that trains on several ranks runs as a gang of them, and each rank is judged by itself.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from pydantic import TypeAdapter

from headrace.check.compare import first_difference, losses, suspects
from headrace.check.gangs import Ranks, by_rank, chain_of, failed, first_of
from headrace.check.populations import unused_parameter
from headrace.check.report import UNTRACKED, CheckReport, Missing
from headrace.check.snapshot import Control, Kind, Moment, SegmentResult, result_of
from headrace.check.source import parameters_read, training_function
from headrace.grants import WORLD_SIZE
from headrace.trial.configuration import NO_PARAMETER
from headrace.trial.runtime import Value
from headrace.trial.shared_files import times

STEPS = 3

Params = Mapping[str, Value]
Progress = Callable[[str, int, int], None]
Launch = Callable[[Path, Path, int], None]


class CheckError(RuntimeError):
    """The script does not run, so there is nothing to compare."""

    def __init__(
        self, message: str, *, remedy: str = "Run the script by hand first; it has to work without a pause."
    ) -> None:
        super().__init__(message)
        self.remedy = remedy


def run_check(
    script: Path,
    *,
    steps: int | None = None,
    params: Params | None = None,
    callable: str | None = None,  # noqa: A002 - the word of the study file
    max_steps: int | None = None,
    ranks: int = 1,
    mutations: Mapping[str, Params] | None = None,
    folder: Path | None = None,
    progress: Progress | None = None,
    launch: Launch | None = None,
) -> CheckReport:
    """Proves that pausing `script` changes nothing, or names what a pause loses.

    `steps` (3) are reported in each run, of a budget of `max_steps` (the script's own). `params` override
    the script's defaults. `callable` is `function` or `module:function` where the script does not call
    `trial.main` itself; left out, it is the function that takes a trial. `ranks` processes train together, as those of
    a study with `processes: per_slot` do. `mutations` are, by parameter, configurations in which a population has
    changed it: each must have an effect. The script runs in `folder` (the current one), as a trial runs in its study's
    `working_dir`: what it writes there stays. `progress(what, done, total)` is told before each process. Raises
    `CheckError` where the script fails without any pause.
    """
    script = script.resolve()
    if not script.is_file():
        raise CheckError(
            f"there is no script {script}", remedy="Give the path of a script, or of a study file."
        )
    count = STEPS if steps is None else steps
    if count < 2:
        raise CheckError(
            f"steps={count}: at least 2 are needed, one before a restore and one after",
            remedy="Give at least 2 steps.",
        )
    target = callable or training_function(script) or ""
    if target and ":" not in target:
        target = f"{script.stem}:{target}"
    folder = Path.cwd() if folder is None else folder.resolve()
    with tempfile.TemporaryDirectory(prefix="headrace-check-") as scratch:
        control = Control(
            script=str(script),
            target=target,
            folder=str(folder),
            params=dict(params or {}),
            steps=count,
            until=None,
            max_steps=max_steps,
            seed=0,
            resume_step=0,
            restore_dir="",
            checkpoint_dir="",
            result_file="",
            ranks=ranks,
        )
        check = _Check(control, mutations or {}, Path(scratch), progress or _silent, launch or _launch)
        places = {folder, script.parent}
        before = _times(places)
        report = check.run()
    return replace(report, left_files=tuple(sorted(_changed(before, _times(places)))))


def _times(places: set[Path]) -> dict[Path, float]:
    return {place / name: written for place in places for name, written in times(place).items()}


def _changed(before: dict[Path, float], after: dict[Path, float]) -> set[str]:
    return {path.name for path, written in after.items() if before.get(path) != written}


class _Check:
    """One check: its folder, and the processes started so far."""

    def __init__(
        self,
        control: Control,
        mutations: Mapping[str, Params],
        folder: Path,
        progress: Progress,
        launch: Launch,
    ) -> None:
        self._control = control
        self._mutations = mutations
        self._folder = folder
        self._progress = progress
        self._launch = launch
        self._started = 0

    def run(self) -> CheckReport:
        steps = self._control.steps
        world = self._control.ranks
        straight = self._process("straight run", self._control)
        first = failed(straight) or straight[0]
        self._require_sound(first)
        report = CheckReport(
            script=Path(self._control.script).name,
            steps=steps,
            restores=0,
            world_size=world,
            metrics=tuple(sorted({name for reported in first.reports for name in reported.metrics})),
        )
        chain, broken = self._resumed_run(max(reported.step for reported in first.reports))
        missing = (*by_rank(world, lambda rank: losses(chain_of(chain, rank))), *broken)
        trajectory = (
            None
            if broken
            else first_of(world, lambda rank: first_difference(straight[rank], chain_of(chain, rank)))
        )
        if missing or trajectory is not None:
            again = self._process("second straight run", self._control)
            parting = first_of(world, lambda rank: first_difference(straight[rank], [again[rank]]))
            if parting is not None:
                return replace(report, missing=missing, nondeterminism=parting)
            missing = missing or by_rank(world, lambda rank: suspects(straight[rank], chain_of(chain, rank)))
        unused = tuple(self._unused(chain))
        return replace(report, restores=len(chain) - 1, missing=(*missing, *unused), trajectory=trajectory)

    def _unused(self, chain: list[Ranks]) -> Iterator[Missing]:
        """The parameters whose change between two steps, as in a population, has no effect or fails."""
        for name, params in self._mutations.items() if len(chain) > 1 else ():
            control = replace(
                self._control,
                params=dict(params),
                checkpoint_dir=str(self._folder / f"mutated-{name}"),
                until=chain[1][0].reports[-1].step,
                resume_step=chain[0][0].checkpoint_step,
                restore_dir=chain[0][0].checkpoint_dir,
            )
            results = self._process(f"resumed with another {name}", control)
            changed = failed(results) or results[0]
            missing = unused_parameter(name, self._control.params, params, chain[1][0], changed)
            if missing is not None:
                yield missing

    def _resumed_run(self, until: int) -> tuple[list[Ranks], tuple[Missing, ...]]:
        """The processes, each resumed from the one before up to a step, and why there are no more of them."""
        chain: list[Ranks] = []
        control = replace(self._control, checkpoint_dir=str(self._folder / "checkpoints"), until=until)
        while True:
            number = len(chain) + 1
            results = self._process(f"resumed run, process {number}", control)
            if (broken := failed(results)) is not None:
                return chain, (_restore_failed(broken, chain),)
            chain.append(results)
            result = results[0]
            reached = result.reports[-1].step if result.reports else control.resume_step
            if reached >= until:
                return chain, ()
            if not result.checkpoint_dir or result.checkpoint_step <= control.resume_step:
                return chain, (_nothing_saved(result),)
            control = replace(control, resume_step=result.checkpoint_step, restore_dir=result.checkpoint_dir)

    def _process(self, what: str, control: Control) -> Ranks:
        self._progress(what, self._started, control.steps + 1 + len(self._mutations))
        self._started += 1
        control_file = self._folder / f"control-{self._started}.json"
        result_file = self._folder / f"result-{self._started}.json"
        log_file = self._folder / f"log-{self._started}.txt"
        control_file.write_bytes(
            TypeAdapter(Control).dump_json(replace(control, result_file=str(result_file)))
        )
        self._launch(control_file, log_file, control.ranks)
        files = [result_of(str(result_file), rank) for rank in range(control.ranks)]
        results = tuple(
            TypeAdapter(SegmentResult).validate_json(file.read_bytes()) for file in files if file.exists()
        )
        if len(results) < len(files) and failed(results) is None:
            tail = log_file.read_text(errors="replace")[-2000:] if log_file.exists() else ""
            raise CheckError(f"the {what} ended without a word (killed?); its output ends:\n{tail}")
        return results

    def _require_sound(self, result: SegmentResult) -> None:
        name = Path(self._control.script).name
        if NO_PARAMETER in result.error:
            raise self._parameters_missing(name)
        if result.error:
            raise CheckError(
                f"{name} fails by itself, without any pause: {result.error}\n{result.traceback}",
                remedy=f"Mend it; it has to work without a pause.{self._or_its_study}",
            )
        if not result.attached:
            raise CheckError(
                f"{name} never asks for a trial, and no function of it clearly takes one",
                remedy="End it with trial.main(train, defaults={...}, steps=...), call trial.current(), "
                "or name its function with --callable.",
            )
        if len(result.reports) < 2:
            raise CheckError(
                f"{name} reported {len(result.reports)} {'time' if len(result.reports) == 1 else 'times'} "
                "in its budget; a check needs two",
                remedy="Call t.report(...) in the loop, and give the script a budget in which it reports twice "
                f"or more{'' if self._control.max_steps is not None else '; a study file has one'}.",
            )

    @property
    def _or_its_study(self) -> str:
        """What else to check, where a script is checked by itself."""
        if self._control.max_steps is not None:  # as a study file says
            return ""
        return (
            " Where it works as a study's trial, check the study file, which gives it parameters and steps: "
            "`headrace check STUDY.yaml`."
        )

    def _parameters_missing(self, name: str) -> CheckError:
        read = parameters_read(Path(self._control.script))
        missing = [parameter for parameter in read if parameter not in self._control.params]
        options = " ".join(f"--param {parameter}=..." for parameter in missing) or "--param NAME=..."
        return CheckError(
            f"{name} reads parameters that have no value here: {', '.join(missing) or 'see its t.params'}",
            remedy=f"Give them, as in `headrace check {name} {options}`, or check the study file instead, "
            "which has them: `headrace check STUDY.yaml`.",
        )


def _restore_failed(result: SegmentResult, chain: list[Ranks]) -> Missing:
    step = chain[-1][0].checkpoint_step if chain else 0
    return Missing(
        kind=Kind.VALUE,
        finding=f"{'the resumed process' if chain else 'saving'} fails: {result.error}",
        remedy="track the same objects, of the same shapes, in every process",
        step=step,
        evidence=tuple(line for line in result.traceback.splitlines()[-6:-1] if line.strip()),
    )


def _nothing_saved(result: SegmentResult) -> Missing:
    saved = result.last(Moment.REPORTED)
    untracked = {piece.subject: None for piece in saved.pieces if not piece.saved_as} if saved else {}
    return Missing(
        kind=Kind.VALUE,
        finding=UNTRACKED,
        remedy="call t.track(model=..., optimizer=..., lr_scheduler=..., batches=...) before the loop, or keep what "
        "has no state_dict() in t.state, as bytes: t.state['model'] = pickle.dumps(model)",
        step=saved.step if saved else 0,
        evidence=tuple(f"not tracked: {subject}" for subject in untracked),
    )


def _launch(control_file: Path, log_file: Path, ranks: int) -> None:
    segment = [sys.executable, "-m", "headrace.check.segment", str(control_file)]
    gang = [sys.executable, "-m", "headrace.trial.gang"] if ranks > 1 else []
    with log_file.open("wb") as log:
        subprocess.run(
            [*gang, *segment],
            env={**os.environ, WORLD_SIZE: str(ranks)},
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            check=False,
        )


def _silent(what: str, done: int, total: int) -> None:
    """Nobody is looking."""
