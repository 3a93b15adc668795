"""What a check found, and how it is presented.

A finding is one root cause: an object, what is wrong with it, and the line to write. Its consequences (a loss that
differs) are listed below it as evidence, never as findings of their own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from headrace.check.snapshot import End, Kind
from headrace.trial.shared_files import is_checkpoint, is_numbered, listed, told

UNTRACKED = "nothing is tracked: the script saves no checkpoint, so a trial starts again after a pause"
"""The finding for a script that leaves nothing to resume from."""
THE_END = "the end"
"""The name of the difference between two runs that end at a different step, or in a different way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """What a pause changes: one piece of state that it loses, or where the script ends."""

    kind: Kind
    # What happens, in one sentence.
    finding: str
    remedy: str
    # The step of the first checkpoint at which it appeared.
    step: int
    evidence: tuple[str, ...] = ()
    # The ranks of a gang that lose it; empty if all do.
    ranks: tuple[int, ...] = ()
    # The variable of the script that a restore resets; empty for other findings.
    variable: str = ""

    @property
    def name(self) -> str:
        """The piece's name, such as `optimizer moments`."""
        return self.kind.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Where two runs, or one of their metrics, first diverge."""

    step: int
    # The metric, or the piece of state.
    what: str
    straight: str
    other: str


class Verdict(StrEnum):
    """The outcome of a check. The value is its name in `--json`."""

    # Nothing differs, and everything that was asked for was covered.
    PASSED = "passed"
    # Nothing differs up to the end of the requested run. What was left out is part of a sample, or was not asked
    # for.
    PASSED_IN_PART = "passed in part"
    # Nothing differs, but there was no time for something that matters: the end was not reached, the study
    # pauses there,
    # or a variable may be lost that the script may read.
    UNDECIDED = "undecided"
    FAILED = "failed"


class Limit(StrEnum):
    """Why the steps after the last one were not run."""

    TIME = "time"
    STEPS = "steps"
    GANG = "gang"
    # The number of steps is unknown.
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """The outcome of `headrace check`."""

    script: str
    # The number of steps reported in the straight run.
    steps: int
    # How often the resumed run was saved, ended and restored in a new process.
    restores: int
    # The number of processes that train together.
    world_size: int = 1
    missing: tuple[Missing, ...] = ()
    # Where the resumed run diverges from the straight one; None if every bit is equal.
    trajectory: Difference | None = None
    # How the end of the resumed run differs; None if it ends at the same step, in the same way.
    end_difference: Difference | None = None
    # Variables of the script that a restore resets, besides those that are missing.
    warnings: tuple[Missing, ...] = ()
    # What the time limit left undecided, each as the rest of a sentence.
    undecided: tuple[str, ...] = ()
    # Where two straight runs diverge. If they do, a difference says nothing about checkpoints.
    nondeterminism: Difference | None = None
    metrics: tuple[str, ...] = ()
    # The last step of the straight run, the script's budget, and how the run ended.
    last_step: int = 0
    budget: int = 0
    end: End = End.BUDGET
    # Why the steps after the last one were not covered; None if the run ended by itself.
    limit: Limit | None = None
    # The steps after which it was restored.
    restored_after: tuple[int, ...] = ()
    # The steps after which it would have been restored with more time, and those of them with a specific reason.
    not_restored_after: tuple[int, ...] = ()
    pointed_at: tuple[int, ...] = ()
    # The time limit that would cover everything at the speed of this run, in seconds; a whole number of minutes.
    enough_s: int = 0
    # The steps after which the study pauses trials.
    pauses: tuple[int, ...] = ()
    # The one configuration that was trained.
    params: dict[str, bool | int | float | str] = field(default_factory=dict)
    # The metrics that differ between two straight runs although everything else is equal.
    noise: tuple[Difference, ...] = ()
    # The parts of the script's variables that are not inspected.
    unread: tuple[str, ...] = ()
    # Files in that folder that a process read as an earlier process of the resumed run had left them.
    kept_files: tuple[str, ...] = ()
    # Files in that folder that a resumed process emptied, and that ended up shorter than without a pause.
    emptied_files: tuple[str, ...] = ()
    # The files that the runs wrote into the folder that all trials share.
    left_files: tuple[str, ...] = ()
    # If two straight runs differ: the files that the second read as an earlier run had left them.
    read_files: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether pausing and resuming changes nothing that was covered, and nothing suggests a change
        elsewhere.
        """
        return self.verdict in (Verdict.PASSED, Verdict.PASSED_IN_PART)

    @property
    def verdict(self) -> Verdict:
        """The outcome in one word."""
        if self.missing or (self.trajectory or self.end_difference or self.nondeterminism) is not None:
            return Verdict.FAILED
        if self.undecided:
            return Verdict.UNDECIDED
        if self.limit in (Limit.TIME, Limit.GANG, Limit.UNKNOWN) or self.pointed_at:
            return Verdict.UNDECIDED
        if self.not_restored_after:
            return Verdict.UNDECIDED if self.warnings else Verdict.PASSED_IN_PART
        return Verdict.PASSED_IN_PART if self.pauses_left_out else Verdict.PASSED

    @property
    def pauses_left_out(self) -> tuple[int, ...]:
        """The study's pauses after the last step that was run."""
        return () if self.limit is None else tuple(step for step in self.pauses if step >= self.last_step)

    @property
    def own_checkpoints(self) -> tuple[str, ...]:
        """Checkpoints among the files that the runs left."""
        return tuple(filter(is_checkpoint, self.left_files))


def render(report: CheckReport) -> str:
    """The report as plain text, starting with the verdict."""
    return "\n".join([*_lines(report), *_warnings(report), *_left(report)])


def in_checkpoint(files: Sequence[str]) -> str:
    """How to keep the contents of these files in the checkpoint."""
    they_hold, them = ("it holds", "it") if len(files) == 1 else ("they hold", "them")
    return (
        f"keep what {they_hold} in t.state, or track an object whose save_files(folder) writes {them} into the "
        "checkpoint"
    )


def _warnings(report: CheckReport) -> Iterator[str]:
    for warning in report.warnings:
        where = f" on rank {', '.join(map(str, warning.ranks))}" if warning.ranks else ""
        yield f"  warning{where}: {warning.finding}. {_tested(report)}"
        yield f"     if a later step reads it, {warning.remedy}"
    for noise in report.noise if report.nondeterminism is None else ():
        yield (
            f"  warning: {noise.what} differs between two runs without a pause ({noise.straight} and {noise.other} at "
            f"step {noise.step}), so it was not compared: no study should have it as its objective"
        )


def _tested(report: CheckReport) -> str:
    """The text about a variable that a restore resets."""
    if report.undecided and report.verdict is Verdict.UNDECIDED:
        return "There was no time to confirm it"
    if report.verdict is Verdict.FAILED:
        return "Whether anything depends on it shows when the rest is fixed"
    if report.limit is None and _restored_everywhere(report):
        return "No metric and no end depends on it"
    part = f" up to step {report.last_step}" if report.limit is not None else ""
    return f"Pauses after {_steps(report.restored_after)} change nothing{part}; what others change was not tested"


def _steps(steps: tuple[int, ...]) -> str:
    return f"step{'s' * (len(steps) > 1)} {', '.join(map(str, steps))}"


def _restored_everywhere(report: CheckReport) -> bool:
    return report.restores >= report.steps - (report.end is not End.RETURNED)


def _coverage(report: CheckReport) -> Iterator[str]:
    if report.end is End.RETURNED:
        yield f"        both runs end by themselves after step {report.last_step} of {report.budget}"
    if report.params:
        values = " ".join(f"{name}={plain(value)}" for name, value in report.params.items())
        yield f"        one configuration was tried, {values}: another may take another way through the script"
    no_time = f"for lack of time: --time-limit {report.enough_s} covers all, at the speed of this run"
    if report.pointed_at:
        where = "where the study pauses, or a variable holds what a fresh start does not have"
        yield f"        NOT COVERED: pauses after {_steps(report.pointed_at)}, {where}, {no_time}"
    if sample := tuple(step for step in report.not_restored_after if step not in report.pointed_at):
        yield f"        NOT COVERED: pauses after {_steps(sample)}, {no_time}"
    if report.limit is None:
        return
    if report.limit is Limit.UNKNOWN:
        yield (
            f"        NOT COVERED: the steps after step {report.last_step}, as the script names no budget: say "
            "--steps N, or check a study file"
        )
        return
    why = {
        Limit.TIME: no_time,
        Limit.STEPS: "as --steps says",
        Limit.GANG: "as several ranks run 3 steps: --steps N runs more",
    }[report.limit]
    left = report.pauses_left_out
    paused = f", where the study pauses after {_steps(left)}" if left else ""
    yield f"        NOT COVERED: the steps after step {report.last_step} of {report.budget}{paused}, {why}"


def _left(report: CheckReport) -> Iterator[str]:
    if report.kept_files:
        it, has = ("it", "it has") if len(report.kept_files) == 1 else ("them", "they have")
        yield (
            "  NOT COVERED: a kill (kill -9, out of memory, a lost machine). The script reads "
            f"{listed(report.kept_files)} after a pause as the last process left {it}. A killed trial resumes from its "
            f"last checkpoint, and by then {has} been written by later steps"
        )
        yield f"     remedy: {in_checkpoint(report.kept_files)}"
    for name in report.emptied_files:
        yield (
            f'  warning: {name}: a resumed process empties it, as open(..., "w") does, so what was written before a '
            "pause is lost"
        )
        yield (
            '     remedy: open it with mode "a" if t.step else "w", and put t.id into its name, as all trials share '
            "the folder"
        )
    own = report.own_checkpoints
    shared = tuple(name for name in own if not is_numbered(name))
    if shared and report.nondeterminism is None:
        yield f"  warning: {told(shared)}"
    if own and any(missing.finding == UNTRACKED for missing in report.missing):
        yield (
            f"  a trial that loads {listed(own)} after a pause continues with its weights, but its steps are "
            "counted from 1 again: t.track(...) keeps both"
        )
    if report.left_files:
        them = "it" if len(report.left_files) == 1 else "them"
        yield (
            f"  {listed(report.left_files)} changed in the folder of the runs while they ran. If the script wrote "
            f"{them}, delete {them}, or the next run may continue from {them}"
        )


def _lines(report: CheckReport) -> Iterator[str]:
    if report.undecided and report.verdict is Verdict.UNDECIDED:
        yield f"UNDECIDED  {report.script}: the time limit ended the check before its result was certain"
        yield f"        {report.steps} steps straight, and again with {report.restores} restores"
        for what in report.undecided:
            yield f"        NOT COVERED: {what}"
        yield from _coverage(report)
        return
    if report.verdict is not Verdict.FAILED:
        yield f"{report.verdict.value.upper()}  {report.script}: {_in_what_was_covered(report)}"
        process = (
            "a new process"
            if report.world_size == 1
            else f"new processes of a gang of {report.world_size} ranks"
        )
        yield (
            f"        {report.steps} steps straight, and again with {report.restores} restores, each in {process}: "
            f"{', '.join(report.metrics)} and all state found are equal bit by bit"
        )
        yield from _coverage(report)
        return
    yield f"FAILED  {report.script}: {_verdict(report)}"
    for number, missing in enumerate(report.missing, start=1):
        yield ""
        where = f" on rank {', '.join(map(str, missing.ranks))}" if missing.ranks else ""
        yield f"  {number}. {missing.name}{where}: {missing.finding}"
        yield f"     remedy: {missing.remedy}"
        for line in missing.evidence:
            yield f"     - {line}"
    if report.nondeterminism is not None:
        yield ""
        yield f"  two straight runs, no pause involved: {_parting(report.nondeterminism, 'second run')}"
        if report.noise and len(report.noise) < len(report.metrics):
            names = [noise.what for noise in report.noise]
            yield (
                f"  all else is equal, so the rest can be judged without {listed(tuple(names))}, unless a study asks "
                f"for it: {' '.join(f'--ignore-metric {name}' for name in names)}"
            )
        yield from _left_by_an_earlier_run(report)
    partings = [one for one in (report.trajectory, report.end_difference) if one is not None]
    if partings and report.nondeterminism is None:
        yield ""
        for parting in partings:
            yield f"  {'what follows' if report.missing else 'but'}: {_parting(parting, 'resumed')}"
        if not report.missing:
            unread = (
                f" beside {listed(report.unread)}, too large or too deep to inspect completely"
                if report.unread
                else ""
            )
            yield (
                "  look for what a step reads from outside the script's variables: files, caches, processes"
                f"{unread}; and for what is drawn between t.track() and the loop, which a resumed run draws again"
            )


def _left_by_an_earlier_run(report: CheckReport) -> Iterator[str]:
    """The text on why two straight runs may differ, and what to do."""
    files = report.read_files or report.own_checkpoints
    if not files:
        return
    one = len(files) == 1
    they_hold, them, their_names = (
        ("it holds", "it", "its name") if one else ("they hold", "them", "their names")
    )
    what = f"the second one read {them} as an earlier one had left {them}"
    if not report.read_files:
        what = f"one that loads {them} resumes from the one before"
    yield f"  the runs wrote {listed(files)} into the working folder: {what}"
    keep = f"t.track(...) what {they_hold}" if all(map(is_checkpoint, files)) else in_checkpoint(files)
    name = "" if all(map(is_numbered, files)) else f", or put t.id into {their_names}"
    yield f"  remedy: {keep}{name}; delete {them} before the next run"


def _in_what_was_covered(report: CheckReport) -> str:
    part = "" if report.limit is None else f" up to step {report.last_step}"
    if _restored_everywhere(report):
        nothing = f"pausing changes nothing{part}"
    else:
        nothing = f"a pause after {_steps(report.restored_after)} changes nothing{part}"
    if report.verdict is not Verdict.UNDECIDED:
        return nothing
    if report.warnings:
        files = all(warning.kind is Kind.FILE for warning in report.warnings)
        what = "files" if files else "variables"
        return f"{nothing}, but loses {what}, and there was no time to test all that may read them"
    if report.limit is not None:
        return f"{nothing}, and the end was not reached"
    return f"{nothing}, and there was no time for all pauses that matter"


def _verdict(report: CheckReport) -> str:
    if report.nondeterminism is not None:
        verdict = (
            "this script is not deterministic by itself, so its checkpoints cannot be judged by its curve"
        )
        return f"{verdict}; but this is lost for certain" if report.missing else verdict
    if not report.missing:
        return "a resumed run differs, and nothing that can be inspected explains it"
    if all(missing.kind is Kind.PARAMETER for missing in report.missing):
        return "a member of the population that mutates does not train with its new parameters"
    count = sum(missing.kind is not Kind.END for missing in report.missing)
    lost = f"a pause loses {'one piece' if count == 1 else f'{count} pieces'} of state"
    if count == len(report.missing):
        return lost
    return f"{lost}, and moves the script's end" if count else "a pause moves the script's end"


def plain(value: bool | int | float | str) -> str:
    """A parameter's value for people."""
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _parting(difference: Difference, other: str) -> str:
    if difference.what.startswith(THE_END):
        return f"{difference.what}: the straight run {difference.straight}, the {other} {difference.other}"
    return f"{difference.what} at step {difference.step} is {difference.straight} straight, {difference.other} {other}"
