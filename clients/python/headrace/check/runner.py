"""Runs the processes of a check, and draws the conclusion.

A straight run comes first. Then the same steps run with a save, an end and a restore in a new process after some
or all of the reports. Both continue until the script ends, by itself or with its budget, so that the ends are
compared too: the resumed run may continue past the end of the straight one. If they differ, a second straight
run shows whether the script itself is not deterministic or a pause changes it. Every process is really new: with
its own hash seed, import order and memory, as on another machine. A script that trains on several ranks runs as
a gang of them, and each rank is judged separately.

A budget may be long. So without a number of steps, the straight run is cut after a third of the time limit, and
the resumed run is restored as often as the remaining time allows, but at least where it is most informative
(`plan.py`): where the study pauses, and while the script's variables hold something that a restore may lose
(`phases.py`). The report says which steps and restores were not covered. A metric that differs between two
straight runs while all else is equal, such as a time, is left out.
"""

import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from math import ceil
from pathlib import Path

from pydantic import TypeAdapter

from headrace.check import lost_files
from headrace.check.compare import ends_elsewhere, nothing_saved
from headrace.check.copies import Copies, in_its_folder
from headrace.check.folder_reads import sizes_bytes, stamp
from headrace.check.gangs import Ranks, by_rank, chain_of, failed
from headrace.check.judge import Judged, files_read, is_measured, metrics_of, noise_of, without
from headrace.check.launch import OutOfTimeError
from headrace.check.launch import launch as _launch
from headrace.check.own_files import OwnFolders, new_id
from headrace.check.plan import STRAIGHT_SHARE, Plan, affordable, limit_for_all, planned, possible, saved_at
from headrace.check.populations import unused_parameter
from headrace.check.report import CheckReport, Difference, Limit, Missing
from headrace.check.resumed import ResumedRun
from headrace.check.snapshot import LEAST, Control, End, SegmentResult, result_of
from headrace.check.sound import CheckError, refuse_own_fault, require_sound
from headrace.check.source import stop_of, training_function
from headrace.trial.runtime import Value

LIMIT_S = 60.0
"""The time limit if no number of steps is given."""

Params = Mapping[str, Value]
Progress = Callable[[str, int, int], None]
Launch = Callable[..., None]
At = Callable[[Control], AbstractContextManager[Control]]


def run_check(
    script: Path,
    *,
    steps: int | None = None,
    params: Params | None = None,
    callable: str | None = None,  # noqa: A002 - the word of the study file
    max_steps: int | None = None,
    rungs: Sequence[int] = (),
    pauses: bool = False,
    ranks: int = 1,
    mutations: Mapping[str, Params] | None = None,
    objectives: Collection[str] = (),
    ignored: Collection[str] = (),
    folder: Path | None = None,
    ships: bool = False,
    arguments: Sequence[str] | None = None,
    module: str = "",
    env: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    launch: Launch | None = None,
    limit_s: float = LIMIT_S,
    stop_s: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> CheckReport:
    """Proves that pausing `script` changes nothing, or names what a pause loses.

    Each run reports `steps` steps, of a budget of `max_steps` (by default the script's own), and each step is
    followed by a restore. Without `steps` the whole budget is run, as far as `limit_s` allows: at least 3 steps,
    and 3 in a gang, no matter how long they take. After `stop_s` seconds the process that runs is killed, and the
    report says what was not covered; `CheckError` if no restore was tried by then. `params` override the
    script's defaults. `callable` is
    `function` or `module:function`, for a script that does not call `trial.main` itself; by default, it is the
    function that takes a trial. At its `rungs` a study saves a trial; if it also `pauses` trials there, each
    rung is tried. `ranks` processes train together, as in a study with `processes: per_slot`. `mutations` are,
    by parameter, configurations in which a population has changed that parameter: each change must have an
    effect. `ignored` metrics are not compared, nor are metrics other than the `objectives` that differ without a
    pause.

    The script runs in `folder` (by default the current one), as a trial runs in its study's `working_dir`: files
    that it writes there persist, except those named by `t.id`. If the study `ships` that folder, each process
    runs in a fresh copy of the shipped files, as on a worker. With `arguments` the script runs like `python
    SCRIPT ARGUMENTS` or, with a `module`, like `python -m MODULE ARGUMENTS`, and asks for its trial itself;
    `env` is the study's. `progress(what, done, total)` is called before each process; the total is 0 while it is
    not known. Raises `CheckError` if the script fails without any pause.
    """
    script = script.resolve()
    if not script.is_file():
        raise CheckError(
            f"there is no script {script}", remedy="Give the path of a script, or of a study file."
        )
    if steps is not None and steps < 2:
        raise CheckError(
            f"steps={steps}: at least 2 are needed, one before a restore and one after",
            remedy="Give at least 2 steps.",
        )
    target = callable or (training_function(script) if arguments is None else "") or ""
    if target and ":" not in target:
        target = f"{script.stem}:{target}"
    folder = Path.cwd() if folder is None else folder.resolve()
    with tempfile.TemporaryDirectory(prefix="headrace-check-") as scratch:
        at = Copies(script, folder, Path(scratch)).fresh if ships else in_its_folder
        control = Control(
            id=new_id(),
            script=str(script),
            target=target,
            folder=str(folder),
            is_copy=ships,
            params=dict(params or {}),
            max_steps=max_steps,
            seed=0,
            resume_step=0,
            restore_dir="",
            checkpoint_dir="",
            result_file="",
            # The clocks of a gang's ranks differ, but the ranks must end at the same report.
            most=LEAST if steps is None and ranks > 1 else steps,
            limit_s=limit_s / STRAIGHT_SHARE if steps is None and ranks == 1 else None,
            ranks=ranks,
            arguments=tuple(arguments or ()),
            module=module,
            env=dict(env or {}),
        )
        own = OwnFolders(set() if ships else {folder, script.parent}, control.id)
        check = Check(
            control,
            mutations or {},
            Path(scratch),
            progress or silent,
            launch or _launch,
            at,
            own,
            rungs=rungs,
            pauses=pauses,
            objectives=objectives,
            ignored=ignored,
            deadline_s=None if steps is not None else limit_s,
            stop_s=stop_s,
            clock=clock,
        )
        try:
            report = check.run()
        finally:
            own.clear()
        return replace(report, left_files=own.changed())


class Check:
    """One check: its folder, and the processes started so far."""

    def __init__(
        self,
        control: Control,
        mutations: Mapping[str, Params],
        folder: Path,
        progress: Progress,
        launch: Launch,
        at: At,
        own: OwnFolders,
        *,
        rungs: Sequence[int],
        pauses: bool,
        objectives: Collection[str],
        ignored: Collection[str],
        deadline_s: float | None,
        stop_s: float | None,
        clock: Callable[[], float],
    ) -> None:
        """`deadline_s` is the time limit; None if each of a given number of steps is followed by a restore."""
        self._rungs = rungs
        self._pauses = pauses
        self._objectives = frozenset(objectives)
        self._left_out = frozenset(ignored)
        self._reported: set[str] = set()
        self._deadline_s = deadline_s
        self._stop_s = stop_s
        self._clock = clock
        self._began = clock()
        self._total = 0 if control.most is None else control.most + 1 + len(mutations)
        self._control = control
        self._mutations = mutations
        self._folder = folder
        self._progress = progress
        self._launch = launch
        self._at = at
        self._own = own
        self._began_ns = stamp(folder / "check")
        self._started = 0

    def run(self) -> CheckReport:
        world = self._control.ranks
        try:
            straight = self._process("straight run", replace(self._control, watched=True))
        except OutOfTimeError:
            raise self._nothing_compared("the run without a pause") from None
        first = failed(straight) or straight[0]
        require_sound(first, self._control, self._reported, self._left_out)
        report = CheckReport(
            script=Path(self._control.script).name,
            steps=len(first.steps),
            restores=0,
            world_size=world,
            metrics=metrics_of(straight),
            last_step=first.steps[-1],
            budget=first.max_steps,
            end=first.end,
            limit=self._limit(first),
            params=first.params,
            unread=tuple({name: None for at in first.snapshots for name in at.unread}),
        )
        sizes = {} if self._control.is_copy else sizes_bytes(self._control.folder)
        plan = self._plan(first)
        straight_s = self._clock() - self._began
        # All later runs have the same budget, and only as many extra steps as show that a run continues.
        bounded = replace(
            self._control, max_steps=first.max_steps, most=len(first.steps) + LEAST, limit_s=None
        )
        self._control = replace(bounded, until=first.steps[-1] if first.end is End.CUT else 0)
        resumed = self._resumed_run(first, plan)
        if resumed.out_of_time and len(resumed.chain) < 2:
            raise self._nothing_compared("the first restore")
        judged = (
            Judged() if resumed.broken else Judged.of(straight, resumed.chain, whole=not resumed.out_of_time)
        )
        made = resumed.resumed_at
        report = replace(
            report,
            restores=max(0, len(resumed.chain) - 1),
            restored_after=made,
            not_restored_after=tuple(step for step in sorted(plan.order) if step not in made),
            pointed_at=tuple(sorted(plan.pointed_at.difference(made))),
            enough_s=self._enough_s(first, len(plan.order), straight_s, len(resumed.chain)),
            pauses=tuple(rung for rung in self._rungs if self._pauses),
            kept_files=() if self._control.is_copy else files_read(resumed.chain),
            emptied_files=() if self._control.is_copy else self._shortened(resumed.chain, sizes),
        )
        if resumed.out_of_time:
            reached = resumed.chain[-1][0].steps
            report = replace(
                report,
                end=End.CUT,
                limit=Limit.TIME,
                last_step=reached[-1] if reached else resumed.chain[-1][0].resume_step,
            )
        missing = resumed.lost(straight)
        if missing or judged.first is not None:
            try:
                again = self._straight_again(first, resumed)
            except OutOfTimeError:
                return replace(
                    report,
                    warnings=missing or resumed.resets(straight),
                    undecided=(unconfirmed(judged.first),),
                )
            parting = Judged.of(straight, [again]).first
            if parting is not None:
                noise = noise_of(straight, again)
                names = frozenset(difference.what for difference in noise)
                report = replace(report, noise=noise)
                if not names or not self._may_leave_out(names, report.metrics):
                    read = () if self._control.is_copy else files_read([again])
                    report = replace(report, nondeterminism=parting, read_files=read)
                    return replace(report, missing=missing, warnings=resumed.resets(straight))
                self._left_out |= names
                straight, resumed = without(straight, names), resumed.without(names)
                judged = Judged() if resumed.broken else Judged.of(straight, resumed.chain)
                report = replace(report, metrics=metrics_of(straight))
            missing = resumed.lost(straight, again)
            if not missing and judged.first is not None:
                missing = resumed.suspects(straight, again)
                if judged.end is not None and (not missing or first.decides_after_report):
                    stop = stop_of(Path(self._control.script))
                    missing += by_rank(
                        world,
                        lambda rank: ends_elsewhere(straight[rank], chain_of(resumed.chain, rank), stop),
                    )
        unused, untried = self._unused(resumed.chain)
        missing += unused
        if untried:
            said = f"whether a change of {', '.join(untried)} has an effect"
            report = replace(report, undecided=(said,))
        known = {found.remedy for found in missing}
        reset = resumed.resets(straight)
        return replace(
            report,
            missing=missing,
            trajectory=judged.trajectory,
            end_difference=judged.end,
            warnings=tuple(found for found in reset if found.remedy not in known),
        )

    def _shortened(self, chain: Sequence[Ranks], sizes: Mapping[str, int]) -> tuple[str, ...]:
        """The files that a resumed process emptied, and that are now shorter than the straight run left them."""
        emptied = {name for results in chain for result in results for name in result.files.emptied}
        now = sizes_bytes(self._control.folder) if emptied else {}
        return tuple(sorted(name for name in emptied if now.get(name, 0) < sizes.get(name, 0)))

    def _straight_again(self, first: SegmentResult, resumed: ResumedRun) -> Ranks:
        """A second straight run, which captures the state after each restore."""
        failed_from = () if resumed.failure is None else (resumed.failure.resume_step,)
        after = (
            next((step for step in first.steps if step > at), 0) for at in (*resumed.resumed_at, *failed_from)
        )
        self._own.clear()
        control = replace(self._control, photographed=tuple(after), older_from_ns=self._began_ns)
        return self._process("second straight run", control)

    def _limit(self, first: SegmentResult) -> Limit | None:
        """What cut the straight run short of the script's own end."""
        if first.end is End.BUDGET and not first.names_steps and self._deadline_s is not None:
            return Limit.UNKNOWN
        if first.end is not End.CUT:
            return None
        if self._control.limit_s is not None:
            return Limit.TIME
        return Limit.STEPS if self._deadline_s is None else Limit.GANG

    def _may_leave_out(self, names: frozenset[str], reported: Collection[str]) -> bool:
        """Whether the other metrics suffice for the comparison: by the study's objectives, or by these metrics'
        names.
        """
        if self._objectives:
            return names.isdisjoint(self._objectives)
        return len(names) < len(reported) and all(map(is_measured, names))

    def _unused(self, chain: Sequence[Ranks]) -> tuple[tuple[Missing, ...], list[str]]:
        """The parameters whose change between two steps, as in a population, has no effect or fails; and those that
        the time limit left untried."""
        unused: list[Missing] = []
        untried = [*self._mutations] if len(chain) > 1 and chain[1][0].steps else []
        while untried:
            name = untried[0]
            params = self._mutations[name]
            control = replace(
                self._control,
                params=dict(params),
                checkpoint_dir=str(self._folder / f"mutated-{name}"),
                until=chain[1][0].steps[-1],
                resume_step=chain[0][0].checkpoint_step,
                restore_dir=chain[0][0].checkpoint_dir,
            )
            try:
                results = self._process(f"resumed with another {name}", control)
            except OutOfTimeError:
                break
            untried = untried[1:]
            changed = failed(results) or results[0]
            missing = unused_parameter(name, self._control.params, params, chain[1][0], changed)
            if missing is not None:
                unused.append(missing)
        return tuple(unused), untried

    def _resumed_run(self, first: SegmentResult, plan: Plan) -> ResumedRun:
        """Runs the processes, each resumed from the previous one, to the end."""
        chain: list[Ranks] = []
        resumed = ResumedRun(chain=chain, is_copy=self._control.is_copy)
        self._own.clear()
        control = replace(
            self._control,
            checkpoint_dir=str(self._folder / "checkpoints"),
            older_from_ns=stamp(self._folder / "resumed-run"),
        )
        ahead = plan.first(self._restores(first, len(plan.order)))
        self._total = len(ahead) + 2 + len(self._mutations)
        while True:
            number = len(chain) + 1
            ahead = tuple(step for step in ahead if step > control.resume_step)
            if chain and self._is_late():
                ahead = tuple(step for step in ahead if step in plan.always)
            control = replace(control, pause_at=ahead[0] if ahead else 0)
            try:
                results = self._process(f"resumed run, process {number}", control)
            except OutOfTimeError:
                return replace(resumed, out_of_time=True)
            if (broken := failed(results)) is not None:
                lost = lost_files.named_by(broken, first, chain_of(chain, broken.rank or 0))
                return replace(resumed, failure=None if lost else broken, stopped=lost)
            chain.append(results)
            result = results[0]
            if result.end is not End.PAUSED or (result.left and result.steps[-1] < first.steps[-1]):
                return resumed
            if result.checkpoint_step <= control.resume_step:
                return replace(resumed, stopped=(nothing_saved(result),))
            control = replace(control, resume_step=result.checkpoint_step, restore_dir=result.checkpoint_dir)

    def _plan(self, first: SegmentResult) -> Plan:
        """Where to restore: after each of a number of steps, or where it is most informative."""
        by_itself = first.end is End.RETURNED
        if self._deadline_s is None:
            return Plan(order=possible(first.steps, ends_by_itself=by_itself))
        return planned(
            first.steps,
            ends_by_itself=by_itself,
            pauses=self._rungs if self._pauses else (),
            saves=saved_at(first.steps, first.checkpoint_every, self._rungs),
            phases=first.phases,
        )

    def _restores(self, first: SegmentResult, wanted: int) -> int:
        """How many of the `wanted` restores there is time for."""
        if self._deadline_s is None:
            return wanted
        spent_s = self._clock() - self._began
        return affordable(wanted, limit_s=self._deadline_s, spent_s=spent_s, train_s=first.train_s)

    def _enough_s(self, first: SegmentResult, restores: int, straight_s: float, processes: int) -> int:
        """The time limit that would cover everything."""
        return limit_for_all(
            restores,
            tried_s=self._deadline_s or 0.0,
            straight_s=straight_s,
            train_s=first.train_s,
            share=first.steps[-1] / first.max_steps if first.end is End.CUT else 1.0,
            process_s=(self._clock() - self._began - straight_s) / max(processes, 1),
        )

    def _is_late(self) -> bool:
        return self._deadline_s is not None and self._clock() - self._began > self._deadline_s

    def _nothing_compared(self, what: str) -> CheckError:
        stop_s = self._stop_s or 0.0
        return CheckError(
            f"the time limit of {stop_s:g} s ended {what}, so nothing was compared",
            remedy=f"Allow more time: --time-limit {2 * max(30, ceil(stop_s))}.",
        )

    def _run_process(self, control_file: Path, log_file: Path, ranks: int) -> None:
        if self._stop_s is None:
            self._launch(control_file, log_file, ranks)
            return
        left_s = self._stop_s - (self._clock() - self._began)
        if left_s <= 0:
            raise OutOfTimeError
        self._launch(control_file, log_file, ranks, timeout_s=left_s)

    def _process(self, what: str, control: Control) -> Ranks:
        self._progress(what, self._started, max(self._total, self._started) if self._total else 0)
        self._started += 1
        control_file = self._folder / f"control-{self._started}.json"
        result_file = self._folder / f"result-{self._started}.json"
        log_file = self._folder / f"log-{self._started}.txt"
        with self._at(replace(control, result_file=str(result_file))) as placed:
            control_file.write_bytes(TypeAdapter(Control).dump_json(placed))
            self._run_process(control_file, log_file, control.ranks)
        files = [result_of(str(result_file), rank) for rank in range(control.ranks)]
        results = tuple(
            TypeAdapter(SegmentResult).validate_json(file.read_bytes()) for file in files if file.exists()
        )
        if len(results) < len(files) and failed(results) is None:
            tail = log_file.read_text(errors="replace")[-2000:] if log_file.exists() else ""
            raise CheckError(f"the {what} ended without a message (killed?); the end of its output:\n{tail}")
        if (broken := failed(results)) is not None:
            refuse_own_fault(broken, Path(control.script).name)
        self._reported.update(metrics_of(results))
        return without(results, self._left_out)


def unconfirmed(found: Difference | None) -> str:
    """What a difference that no second straight run confirms leaves open."""
    differs = f" ({found.what} at step {found.step}: {found.straight} and {found.other})" if found else ""
    return f"a second run without a pause, which shows whether a pause makes the runs differ{differs}"


def silent(what: str, done: int, total: int) -> None:
    """Ignores the progress."""
