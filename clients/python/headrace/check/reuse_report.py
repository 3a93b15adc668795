"""What `headrace check --reuse` found, and how it is presented."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from headrace.check.report import Difference, Limit, plain
from headrace.check.reuse_record import Changed
from headrace.check.snapshot import End
from headrace.trial.shared_files import listed

_MOST_NAMED = 5
_REUSE = "`trial: {reuse: true}`"
_NO_OTHER_WAY = "leave reuse out of the study"


class ReuseVerdict(StrEnum):
    """The outcome. The value is its name in `--json`."""

    # Everything that was compared is equal, and the process takes further trials.
    PASSED = "passed"
    # The same, for part of the budget.
    PASSED_IN_PART = "passed in part"
    # The process ends after each trial: nothing is computed wrongly, and nothing is saved.
    NO_GAIN = "no gain"
    # The script computes something else in each run, so nothing can be said.
    UNDECIDED = "undecided"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReuseReport:
    """The outcome of `headrace check --reuse`: trial B alone in a process, and after trial A in another."""

    script: str
    # What B reported alone: how many steps, the last of them, its budget, how it ended, and what cut it short.
    steps: int
    last_step: int
    budget: int
    end: End
    limit: Limit | None = None
    # The time limit that would cover the whole budget at the speed of this run, in seconds.
    enough_s: int = 0
    metrics: tuple[str, ...] = ()
    # The configurations of B and of A.
    params: dict[str, bool | int | float | str] = field(default_factory=dict)
    first_params: dict[str, bool | int | float | str] = field(default_factory=dict)
    # How many steps A reported.
    first_steps: int = 0
    # The processor time of a process until it calls the function, in seconds: its start and its imports.
    import_s: float = 0.0
    # Why the process would run no further trial; empty if it would.
    left_behind: str = ""
    # Where B parts from B alone; None if every bit is equal.
    difference: Difference | None = None
    # Where two runs of B alone part.
    nondeterminism: Difference | None = None
    # The metrics that differ between two runs of B alone although everything else is equal.
    noise: tuple[Difference, ...] = ()
    # What A changed and B may have read, the most suspicious first; what else A changed, such as caches of libraries;
    # and the libraries that were not searched.
    changed: tuple[Changed, ...] = ()
    also_changed: tuple[Changed, ...] = ()
    unread: tuple[str, ...] = ()
    # The files that B read as an earlier trial had left them, those that A wrote into the copy of shipped code that
    # a process has, and those left in the folder that all trials share.
    files: tuple[str, ...] = ()
    written: tuple[str, ...] = ()
    left_files: tuple[str, ...] = ()

    @property
    def verdict(self) -> ReuseVerdict:
        """The outcome in one word."""
        if self.difference is not None:
            known = self.nondeterminism is None or self.files
            return ReuseVerdict.FAILED if known else ReuseVerdict.UNDECIDED
        if self.left_behind:
            return ReuseVerdict.NO_GAIN
        return ReuseVerdict.PASSED if self.limit in (None, Limit.STEPS) else ReuseVerdict.PASSED_IN_PART

    @property
    def passed(self) -> bool:
        """Whether reuse saves something, and changes nothing that was compared."""
        return self.verdict in (ReuseVerdict.PASSED, ReuseVerdict.PASSED_IN_PART)


def render_reuse(report: ReuseReport) -> str:
    """The report as plain text, starting with the verdict."""
    match report.verdict:
        case ReuseVerdict.NO_GAIN:
            lines = _ended(report)
        case ReuseVerdict.FAILED:
            lines = _failed(report)
        case ReuseVerdict.UNDECIDED:
            lines = _undecided(report)
        case ReuseVerdict.PASSED | ReuseVerdict.PASSED_IN_PART:
            lines = _passed(report)
    return "\n".join(
        [f"{report.verdict.value.upper()}  {report.script}: {next(lines)}", *lines, *_left(report)]
    )


def finding_and_remedy(left_behind: str) -> tuple[str, str]:
    """Why a process ends, and what to do about it; the reasons of `headrace.trial.reuse` hold both."""
    finding, _, remedy = left_behind.rpartition(": ")
    if finding:
        return finding, remedy
    edited = left_behind.endswith("was written after the process had imported it")
    return left_behind, "check again, and leave the code as it is meanwhile" if edited else _NO_OTHER_WAY


def _passed(report: ReuseReport) -> Iterator[str]:
    part = "" if report.limit is None else f" up to step {report.last_step}"
    yield f"{_REUSE} is safe, as far as these runs show: after another trial, it computes the same{part}"
    yield (
        f"        trial B in a process of its own, and in one that ran trial A: {', '.join(report.metrics)} and all "
        f"state found are equal bit by bit over {_counted(report.steps, 'step')}"
    )
    yield from _configurations(report)
    yield from _not_covered(report)
    yield _saved(report)
    for noise in report.noise:
        yield (
            f"  warning: {noise.what} differs between two runs of B alone ({noise.straight} and {noise.other} at step "
            f"{noise.step}), so it was not compared: no study should have it as its objective"
        )


def _ended(report: ReuseReport) -> Iterator[str]:
    finding, remedy = finding_and_remedy(report.left_behind)
    yield f"the process would end after its trial, so {_REUSE} saves nothing"
    yield f"  1. the trial would be the last of its process: {finding}"
    yield f"     remedy: {remedy}"
    yield "        Nothing is computed wrongly: the next trial gets a new process, as without reuse."
    yield _saved(report)


def _failed(report: ReuseReport) -> Iterator[str]:
    assert report.difference is not None
    yield "after another trial in its process, a trial computes something else"
    number = 0
    for number, name in enumerate(report.files, start=1):
        yield f"  {number}. file: the trial reads {name} as an earlier trial left it, in whichever process"
        yield "     remedy: put t.id into its name, or write it anew before it is read"
    for place, changed in enumerate(report.changed[:_MOST_NAMED], start=number + 1):
        yield f"  {place}. state that trial A left, and trial B may have read: {changed.finding}"
        yield f"     remedy: {changed.remedy}; or {_NO_OTHER_WAY}"
    if more := len(report.changed[_MOST_NAMED:]) + len(report.also_changed):
        yield f"     {_counted(more, 'more variable')} changed, less suspicious: --json lists them"
    yield f"  {'what follows' if report.changed or report.files else 'but'}: {_parting(report.difference)}"
    if report.written and not report.files:
        yield (
            f"  trial A left {listed(report.written)} in the copy of the shipped code that its process has: if B looks "
            "for such a file, put t.id into its name"
        )
    elif not (report.changed or report.files):
        yield (
            "  nothing that can be inspected explains it: look for state of libraries written in C, other processes "
            f"and caches that the script reads; or {_NO_OTHER_WAY}"
        )
    if report.unread:
        yield f"  not searched, as there is too much: {listed(report.unread)}"
    yield from _configurations(report)


def _undecided(report: ReuseReport) -> Iterator[str]:
    assert report.difference is not None
    assert report.nondeterminism is not None
    one = report.nondeterminism
    yield "this script is not deterministic by itself, so what reuse changes cannot be told"
    yield (
        f"  two runs that should be equal: {one.what} at step {one.step} is {one.straight} in one, {one.other} in the "
        "other"
    )
    yield f"  after another trial: {_parting(report.difference)}"
    names = [noise.what for noise in report.noise]
    if names and len(names) < len(report.metrics):
        ignored = " ".join(f"--ignore-metric {name}" for name in names)
        yield f"  all else is equal, so the rest can be judged without {listed(tuple(names))}: {ignored}"
    elif report.left_files:
        yield (
            f"  the runs left {listed(report.left_files)} in their folder, and one that looks for such a file finds "
            "that of the run before"
        )
        yield "  remedy: put t.id into its name, or write it anew before it is read"
    else:
        yield "  remedy: seed every generator from t.seed, and ask PyTorch for deterministic algorithms"


def _configurations(report: ReuseReport) -> Iterator[str]:
    if report.first_params == report.params:
        told = f"both with {_told(report.params)}" if report.params else "both without parameters"
        yield f"        {told}, and with different seeds"
    else:
        yield f"        A with {_told(report.first_params)}, B with {_told(report.params)}"


def _not_covered(report: ReuseReport) -> Iterator[str]:
    if report.first_steps < report.steps:
        yield (
            f"        NOT COVERED: a trial A that trains as long: it ended after {_counted(report.first_steps, 'step')}"
        )
    if report.limit is None:
        yield f"        the trial ran to its end, after step {report.last_step}"
        return
    why = {
        Limit.TIME: f"for lack of time: --time-limit {report.enough_s} covers all, at the speed of this run",
        Limit.STEPS: "as --steps says",
        Limit.GANG: "as a gang runs few",
        Limit.UNKNOWN: "as the script names no budget: say --steps N, or check a study file",
    }[report.limit]
    of = "" if report.limit is Limit.UNKNOWN else f" of {report.budget}"
    yield f"        NOT COVERED: the steps after step {report.last_step}{of}, {why}"


def _saved(report: ReuseReport) -> str:
    saves = "saves" if report.passed else "would save"
    return (
        f"        Reuse {saves} {report.import_s:.2g} s of processor time per attempt after a process's first: its "
        "start and imports"
    )


def _left(report: ReuseReport) -> Iterator[str]:
    if report.left_files:
        them = "it" if len(report.left_files) == 1 else "them"
        yield (
            f"  {listed(report.left_files)} changed in the folder of the runs while they ran. If the script wrote "
            f"{them}, delete {them}, or the next run may continue from {them}"
        )


def _parting(one: Difference) -> str:
    return f"{one.what} at step {one.step} is {one.straight} alone, {one.other} after another trial"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _told(params: dict[str, bool | int | float | str]) -> str:
    return " ".join(f"{name}={plain(value)}" for name, value in params.items())
