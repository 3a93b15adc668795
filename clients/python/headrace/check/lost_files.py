"""Files that the script writes into its copy of shipped code, and that a pause therefore loses. Pure functions.

`straight` is the run without a pause, `chain` the processes of the resumed run.
"""

import re
from collections.abc import Iterable, Sequence

from headrace.check.report import Missing, in_checkpoint
from headrace.check.snapshot import Kind, SegmentResult
from headrace.last_words import error_line
from headrace.trial.shared_files import listed

_NOT_THERE = re.compile(r"no such file|not found|does not exist|unable to open", re.IGNORECASE)


def named_by(
    error: SegmentResult, straight: SegmentResult, chain: Sequence[SegmentResult]
) -> tuple[Missing, ...]:
    """The finding for a resumed process that fails with an error that names a file of an earlier process."""
    if _NOT_THERE.search(error.error) is None:
        return ()
    written = _unique(result.files.written for result in (straight, *chain))
    names = [name for name in written if name.rpartition("/")[2] in error.error]
    return _lost(names, error.resume_step, f"the resumed process fails: {error_line(error.error)}")


def read_later(straight: SegmentResult, chain: Sequence[SegmentResult]) -> tuple[Missing, ...]:
    """The files written in one step and read in a later one."""
    return _lost(_unique(result.files.read for result in (straight, *chain)), _first_restore(chain))


def not_rebuilt(straight: SegmentResult, chain: Sequence[SegmentResult]) -> tuple[Missing, ...]:
    """The files of `read_later` that a resumed process does not itself write before its loop."""
    resumed = [set(result.files.rebuilt) for result in chain if result.resume_step]
    rebuilt = set.intersection(*resumed) if resumed else set()
    names = _unique(result.files.read for result in (straight, *chain))
    return _lost([name for name in names if name not in rebuilt], _first_restore(chain))


def all_written(straight: SegmentResult, chain: Sequence[SegmentResult]) -> tuple[Missing, ...]:
    """All written files. Used if nothing else explains a difference, as not every way of reading a file is
    detected.
    """
    return _lost(_unique(result.files.written for result in (straight, *chain)), _first_restore(chain))


def _lost(names: Sequence[str], step: int, *evidence: str) -> tuple[Missing, ...]:
    if not names or not step:
        return ()
    are = "is" if len(names) == 1 else "are"
    finding = (
        f"{listed(tuple(names))}, which the script writes into its folder, {are} lost in a pause: a resumed process "
        "gets a fresh copy of the shipped code"
    )
    return (
        Missing(kind=Kind.FILE, finding=finding, remedy=in_checkpoint(names), step=step, evidence=evidence),
    )


def _first_restore(chain: Sequence[SegmentResult]) -> int:
    return next((result.resume_step for result in chain if result.resume_step), 0)


def _unique(names: Iterable[Sequence[str]]) -> list[str]:
    return list(dict.fromkeys(name for some in names for name in some))
