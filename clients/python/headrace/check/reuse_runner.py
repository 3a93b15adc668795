"""Runs the processes of `headrace check --reuse`, and draws the conclusion.

    B alone → A, then B in one process: equal, or the process would end → done
      → different → B alone again, looking at all modules: different from the first → not deterministic
        → A, then B once more, looking at all modules: equal to B alone → not deterministic
          → different → what A changed and B may have read

B is the trial that is compared, and A the one before it: another configuration, another seed. Both are bounded
alike. The two looks at the modules take seconds, so they are made only to explain a difference.
"""

import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import TypeAdapter

from headrace.check import runner
from headrace.check.copies import Copies, in_its_folder
from headrace.check.folder_reads import stamp
from headrace.check.gangs import Ranks
from headrace.check.judge import Judged, metrics_of, noise_of, without
from headrace.check.launch import launch as _launch
from headrace.check.main_call import main_call
from headrace.check.own_files import OwnFolders, new_id
from headrace.check.plan import STRAIGHT_SHARE
from headrace.check.process_state import MOST_OBJECTS
from headrace.check.report import THE_END, Difference, plain
from headrace.check.reuse_record import Changed, FirstTrial, Reuse, Used, used_file
from headrace.check.reuse_report import ReuseReport
from headrace.check.snapshot import LEAST, Control, End, SegmentResult
from headrace.check.sound import CheckError, require_sound
from headrace.check.source import training_function

_SEED_OF_FIRST = 1
READS = MOST_OBJECTS
"""How many objects each look reads."""


def run_reuse_check(
    script: Path,
    *,
    first_params: runner.Params | None = None,
    steps: int | None = None,
    params: runner.Params | None = None,
    callable: str | None = None,  # noqa: A002 - the word of the study file
    max_steps: int | None = None,
    objectives: Collection[str] = (),
    ignored: Collection[str] = (),
    folder: Path | None = None,
    ships: bool = False,
    env: Mapping[str, str] | None = None,
    progress: runner.Progress | None = None,
    launch: runner.Launch | None = None,
    limit_s: float = runner.LIMIT_S,
    clock: Callable[[], float] = time.monotonic,
) -> ReuseReport:
    """Proves that a trial computes the same after another one in its process, or names what it met there.

    `first_params` is the configuration of the trial before; by default the same, with another seed. The other
    arguments are those of `run_check`. Raises `CheckError` if the script fails, or has no function to call.
    """
    script = script.resolve()
    if not script.is_file():
        raise CheckError(
            f"there is no script {script}", remedy="Give the path of a script, or of a study file."
        )
    folder = Path.cwd() if folder is None else folder.resolve()
    with tempfile.TemporaryDirectory(prefix="headrace-check-") as scratch:
        control = Control(
            id=new_id(),
            script=str(script),
            target=_target(script, callable),
            folder=str(folder),
            is_copy=ships,
            params=dict(params or {}),
            max_steps=max_steps,
            seed=0,
            resume_step=0,
            restore_dir="",
            checkpoint_dir="",
            result_file="",
            most=steps,
            limit_s=None if steps is not None else limit_s / STRAIGHT_SHARE,
            env=dict(env or {}),
            reuse=Reuse(first=None, since_ns=stamp(Path(scratch, "check"))),
        )
        own = OwnFolders(set() if ships else {folder, script.parent}, control.id)
        check = _ReuseCheck(
            control,
            {},
            Path(scratch),
            progress or runner.silent,
            launch or _launch,
            Copies(script, folder, Path(scratch)).fresh if ships else in_its_folder,
            own,
            rungs=(),
            pauses=False,
            objectives=objectives,
            ignored=ignored,
            deadline_s=None if steps is not None else limit_s,
            stop_s=None,
            clock=clock,
        )
        try:
            report = check.compared(first_params)
        finally:
            own.clear()
        return replace(report, left_files=own.changed())


class _ReuseCheck(runner.Check):
    """One check with its processes. Each has one rank."""

    def compared(self, first_params: runner.Params | None) -> ReuseReport:
        """Runs them, and compares."""
        self._total = 2
        limit_s = self._control.limit_s
        alone, used = self._run("trial B alone")
        mine = alone[0]
        require_sound(mine, self._control, self._reported, self._left_out, least=1)
        report = ReuseReport(
            enough_s=self._enough_s(mine, restores=0, straight_s=self._clock() - self._began, processes=1),
            script=Path(self._control.script).name,
            steps=len(mine.steps),
            last_step=mine.steps[-1],
            budget=mine.max_steps,
            end=mine.end,
            limit=self._limit(mine),
            metrics=metrics_of(alone),
            params=mine.params,
            first_params=dict(first_params) if first_params is not None else mine.params,
            import_s=used.import_s,
        )
        self._control = replace(
            self._control,
            params=mine.params,
            max_steps=mine.max_steps,
            most=len(mine.steps) + LEAST,
            limit_s=None,
            until=mine.steps[-1] if mine.end is End.CUT else 0,
        )
        first = FirstTrial(
            id=f"before-{self._control.id}",
            params=report.first_params,
            seed=_SEED_OF_FIRST,
            pause_at=mine.steps[-1],
            limit_s=limit_s,
            checkpoint_dir=str(self._folder / "checkpoint"),
        )
        after, used = self._run("trial B after trial A", first)
        self._require_sound_first(used, report)
        left_behind = next(filter(None, used.left_behind), "")
        report = replace(report, left_behind=left_behind, first_steps=used.first_steps)
        if left_behind and not after[0].attached:
            return report
        report = replace(report, difference=_difference(alone, after))
        return report if report.difference is None else self._explained(report, alone, after, used, first)

    def _explained(
        self, report: ReuseReport, alone: Ranks, after: Ranks, used: Used, first: FirstTrial
    ) -> ReuseReport:
        """What is behind the difference."""
        again, used_alone = self._run("trial B alone, again", looks=True)
        report = replace(report, files=used.files, written=used.written)
        parting = _difference(alone, again)
        if parting is not None:
            noise = noise_of(alone, again)
            names = frozenset(one.what for one in noise)
            report = replace(report, noise=noise)
            if not names or not self._may_leave_out(names, report.metrics):
                return replace(report, nondeterminism=parting)
            self._left_out |= names
            alone, after = without(alone, names), without(after, names)
            difference = _difference(alone, after)
            report = replace(report, metrics=metrics_of(alone), difference=difference)
            if difference is None:
                return replace(report, files=())
        once_more, used_after = self._run(
            "trial B after trial A, again", first, looks=True, imports=used_alone.late
        )
        if _difference(alone, once_more) is None:
            return replace(report, nondeterminism=_difference(after, once_more))
        changed, others = suspects(used_after.changed, used_alone.changed)
        return replace(report, changed=changed, also_changed=others, unread=used_after.unread)

    def _run(
        self,
        what: str,
        first: FirstTrial | None = None,
        *,
        looks: bool = False,
        imports: tuple[str, ...] = (),
    ) -> tuple[Ranks, Used]:
        """Runs a process; returns what B did in it, and what else there is to say."""
        self._own.clear()
        assert self._control.reuse is not None
        reads = READS if looks else 0
        reuse = replace(self._control.reuse, first=first, reads=reads, imports=imports)
        results = self._process(what, replace(self._control, reuse=reuse))
        file = used_file(str(self._folder / f"result-{self._started}.json"))
        return results, TypeAdapter(Used).validate_json(file.read_bytes())

    def _require_sound_first(self, used: Used, report: ReuseReport) -> None:
        if used.error:
            told = " ".join(f"{name}={plain(value)}" for name, value in report.first_params.items())
            raise CheckError(
                f"{report.script} fails as trial A, with {told or 'no parameters'} and seed {_SEED_OF_FIRST}: "
                f"{used.error}\n{used.traceback}",
                remedy="Fix it: the process of a trial that fails runs no other one, so there is nothing to compare.",
            )


def suspects(
    after: Sequence[Sequence[Changed]], alone: Sequence[Sequence[Changed]]
) -> tuple[tuple[Changed, ...], tuple[Changed, ...]]:
    """What A changed and B may have met: the suspicious part, and the rest.

    `after` are the changes of A and of B, `alone` those of B alone. What the user's code mentions or has put there is
    suspicious. What B changes alone, but not after A, is as a rule filled once and for all, such as a cache: it is
    suspicious only if nothing else is.
    """
    by_second = {one.name for one in after[1]} if len(after) > 1 else set()
    by_alone = {one.name for one in alone[0]} if alone else set()

    def tier(one: Changed) -> tuple[bool, bool]:
        return not one.users, one.name in by_alone and one.name not in by_second

    by_first = sorted(after[0] if after else (), key=tier)
    count = sum(tier(one) == tier(by_first[0]) for one in by_first)
    return tuple(by_first[:count]), tuple(by_first[count:])


def _target(script: Path, function: str | None) -> str:
    """The function, as a study's `callable` names it."""
    if not function:
        call = main_call(script)
        function = call.function if call is not None else training_function(script)
    if not function:
        raise CheckError(
            f"{script.name} names no function that trains, and a process can run several trials only by calling one",
            remedy="Name it with --callable FUNCTION, or end the script with trial.main(train, ...).",
        )
    return function if ":" in function else f"{script.stem}:{function}"


def _difference(one: Ranks, other: Ranks) -> Difference | None:
    """Where B in another process parts from B in one; None if it does not."""
    mine, theirs = one[0], other[0]
    found = Judged.of(one, [other]).first
    if _kind(mine) == _kind(theirs) or (found is not None and found.what != THE_END):
        return found
    step = max(theirs.steps, default=0)
    return Difference(step=step, what=THE_END, straight=_ended(mine), other=_ended(theirs))


def _kind(result: SegmentResult) -> str:
    """The class of its exception: the message may hold an address."""
    return result.error.partition(":")[0]


def _ended(result: SegmentResult) -> str:
    if result.error:
        return f"an error: {result.error}"
    return f"without an error, after step {max(result.steps, default=0)}"
