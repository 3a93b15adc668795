"""The findings for a process that fails after a restore. Pure functions.

If the restore has lost or reset something, that explains the error, which then becomes its evidence. The error
is a finding of its own only if no such loss is known, or if the error comes from loading the checkpoint.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePath

from headrace.check.discover import is_own
from headrace.check.report import Missing
from headrace.check.snapshot import Kind, SegmentResult

_FRAME = re.compile(
    r'^ *File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>.+)\n +(?P<code>.+)$', re.MULTILINE
)
_LOADS = ("load_state_dict", "load_state")
_RESTORE = ("headrace", "trial", "restore.py")
_MISFIT = "size mismatch"
_NAME = re.compile(r"[^\W\d]\w*")


def explained(
    failure: SegmentResult, lost: Sequence[Missing], reset: Sequence[Missing]
) -> tuple[Missing, ...]:
    """The causes of a failure: what is `lost`, and what the restores have `reset` if the failing lines read it;
    if there are none, everything `reset`.
    """
    error = _failed(failure)
    if not failure.resume_step or _comes_from_a_load(failure):
        return (*lost, error)
    own = "\n".join(frame["code"] for frame in _own_frames(failure))
    names = set(_NAME.findall(own))
    read = [missing for missing in reset if names.intersection(_NAME.findall(missing.variable)[-1:])]
    causes = (*read, *lost) or tuple(reset)
    if not causes:
        return (error,)
    first, *others = causes
    return (replace(first, evidence=(*first.evidence, error.finding, *error.evidence)), *others)


def _failed(failure: SegmentResult) -> Missing:
    """The error as a finding."""
    return Missing(
        kind=Kind.VALUE,
        finding=f"{'the resumed process' if failure.resume_step else 'saving'} fails: {failure.error}",
        remedy=_remedy(failure),
        step=failure.resume_step,
        evidence=tuple(line for line in failure.traceback.splitlines()[-6:-1] if line.strip()),
    )


def _remedy(failure: SegmentResult) -> str:
    if _comes_from_a_load(failure):
        return "track the same objects, of the same shapes, in every process"
    frames = _own_frames(failure)
    if not frames:
        return "see what the error says: without a pause the script runs"
    file, line, code = (frames[-1][part] for part in ("file", "line", "code"))
    where = f"line {line} of {PurePath(file).name}, `{code}`"
    if not failure.resume_step:
        return f"see {where}: without a save the script runs"
    return f"see {where}: what it reads must be in t.state or tracked, or be created again before the loop"


def _comes_from_a_load(failure: SegmentResult) -> bool:
    """Whether the contents of the checkpoint did not fit."""
    return _MISFIT in failure.error or any(
        frame["function"] in _LOADS or PurePath(frame["file"]).parts[-3:] == _RESTORE
        for frame in _FRAME.finditer(failure.traceback)
    )


def _own_frames(failure: SegmentResult) -> list[re.Match[str]]:
    """The script's own part of the traceback, outermost first."""
    return [frame for frame in _FRAME.finditer(failure.traceback) if is_own(frame["file"])]
