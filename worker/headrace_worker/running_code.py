"""What code runs on this worker: the source files of each process, as it reports them, and those that its study
names.

A process says which files it has imported from the study's folder (`headrace.sources`). For a program in another
language, or a script that does not use the SDK, the worker knows the file that its command names. It reads that
file, and the study's requirements, right before the start. Since the study chooses them, the worker reads only
regular files that the trial's user may read.

The scheduler learns of it with the attempt's first report, and with the next one if there is more. It learns at
once of a file that this worker has seen with another content, because an epoch may take an hour.
"""

import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from headrace import not_known, sources
from headrace.bounds.numbers import SOURCES
from headrace.sources import SourceFile
from headrace.v1 import event_pb2, spec_pb2
from headrace_worker.named_files import opened

_PROGRAMS = (".py", ".sh", ".bash", ".r", ".jl", ".js", ".mjs", ".ts", ".rb", ".pl", ".lua", ".m", ".scala")
"""The endings of programs that an interpreter runs."""
_STUDIES = 256


class RunningCode:
    """The code of one process, file by file, in the order of arrival."""

    def __init__(self, shipped: str = "") -> None:
        """`shipped` is the digest of the archive that the process has its code from, which never changes."""
        self._shipped = shipped
        self.files: list[SourceFile] = []

    def add(self, files: Iterable[SourceFile]) -> bool:
        """Adds files; says whether one of them is new. There are at most `SOURCES`."""
        if self._shipped:
            return False
        before = len(self.files)
        for file in files:
            if file not in self.files and len(self.files) < SOURCES:
                self.files.append(file)
        return len(self.files) > before

    def since(self, told: int | None) -> event_pb2.AttemptCode | None:
        """What to report after this many files were reported; None: nothing was reported yet. Returns None if
        there is nothing."""
        if self._shipped:
            return event_pb2.AttemptCode(digest=self._shipped) if told is None else None
        new = self.files[told or 0 :]
        if not new:
            return None
        return event_pb2.AttemptCode(
            files=[event_pb2.SourceFile(path=file.path, digest=file.digest) for file in new],
            digest=sources.digest_of(self.files),
        )


class ToldCode:
    """What has run on this worker, by study, so that it notices an edit as soon as a process runs it."""

    def __init__(self) -> None:
        self._studies: OrderedDict[str, dict[str, set[str]]] = OrderedDict()

    def record(self, study_uid: str, files: Sequence[SourceFile]) -> bool:
        """Records files of a study; says whether one of them has a content that it has never had here, or may
        have."""
        known = self._studies.setdefault(study_uid, {})
        self._studies.move_to_end(study_uid)
        if len(self._studies) > _STUDIES:
            self._studies.popitem(last=False)
        new = [file for file in files if file.digest not in known.get(file.path, ())]
        changed = any(file.path in known or not_known.is_digest(file.digest) for file in new)
        for file in new:
            known.setdefault(file.path, set()).add(file.digest)
        return changed


def may_name_files(template: spec_pb2.TrialTemplate) -> bool:
    """Whether a study may name files of its folder."""
    return template.WhichOneof("program") == "command" or bool(template.requirements)


def named_files(
    template: spec_pb2.TrialTemplate, args: Sequence[str], may_read: Callable[[int], bool] = lambda _: True
) -> list[SourceFile]:
    """The files in the study's folder that the study names: the program of a command, and the requirements.

    `may_read` says of an open file whether the trial's user may read it. Runs in a separate thread, since the
    folder may be on a slow disk.
    """
    folder = Path(template.working_dir)
    named = _program(folder, args) if template.WhichOneof("program") == "command" else None
    requirements = template.requirements if template.requirements else None
    found = [_read(folder / path, path, may_read) for path in (named, requirements) if path]
    return [file for file in found if file is not None]


def _program(folder: Path, args: Sequence[str]) -> str | None:
    """The first argument that is a program file in the folder, relative to it; None if there is none.

    `python -m package.module` names one too. A file that is not a program (an input, a result) may change freely.
    """
    for before, arg in zip(("", *args), args, strict=False):
        path = f"{arg.replace('.', '/')}.py" if before == "-m" else arg
        try:
            root = Path(os.path.realpath(folder))
            file = Path(
                os.path.realpath(folder / path)
            )  # unlike `resolve`, it accepts links that refer to themselves
            if not file.is_file() or not file.is_relative_to(root):
                continue
            if file.suffix.lower() in _PROGRAMS or file.stat().st_mode & 0o111:
                return str(file.relative_to(root))
        except (OSError, ValueError):  # too long for a path, or a NUL in it
            continue
    return None


def _read(file: Path, path: str, may_read: Callable[[int], bool]) -> SourceFile | None:
    with opened(file, may_read) as place:
        return None if place is None else sources.read(place, path)
