"""Reads a study's folder: its contents, and which of them are shipped.

Links are kept as links. A link that leads out of the folder is rejected, because its target would be missing on
a worker; so is a link to something that is left out. Folders that links lead to are not walked a second time.
"""

import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from headrace.code.ignore import OWN, Ignored
from headrace.code.manifest import (
    MOST_BYTES,
    MOST_ENTRIES,
    Entry,
    Kind,
    Manifest,
    path_problem,
    paths_problem,
)
from headrace.code.sizes import largest, size
from headrace.errors import InvalidFieldError, Violation
from headrace.home import home_dir

FIELD: Final = "trial.working_dir"
CHUNK_BYTES: Final = 1 << 20
_ATTEMPTS: Final = 3
"""How often a file is read if it changes meanwhile."""
_MOST_SEEN: Final = 200_000
"""The most entries that are counted to say which are the largest."""
_LISTED: Final = 10
_LEAVE_OUT: Final = f"Leave it out with a line in {OWN}"
_SHARE: Final = (
    "or have workers read a folder that all machines share: `trial: {code: folder}`, or --no-ship."
)


class FolderError(InvalidFieldError):
    """A folder cannot be shipped in its current state."""


class FolderChangedError(FolderError):
    """A file changed each time it was read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """A folder as it was read."""

    root: Path
    manifest: Manifest
    # The topmost entries that are not shipped, sorted.
    left_out: tuple[str, ...]


@dataclass(slots=True)
class _Found:
    files: dict[str, os.stat_result]
    links: dict[str, str]
    folders: set[str]
    empty: set[str]
    left_out: list[str]


def read_folder(root: Path) -> Folder:
    """Reads and hashes the files to ship. Raises `FolderError`."""
    root = root.resolve()
    found = _walk(root)
    _require_small(root, found)
    entries = [_file(root, path, before) for path, before in found.files.items()]
    entries += [Entry(path=path, kind=Kind.LINK, to=to) for path, to in _links(root, found)]
    entries += [Entry(path=path, kind=Kind.FOLDER) for path in found.empty]
    if not entries:
        _refuse(f"{root} has nothing to ship", f"Name the folder of the program, or correct {OWN}.")
    return Folder(root=root, manifest=Manifest.of(entries), left_out=tuple(sorted(found.left_out)))


def open_file(root: Path, path: str) -> int:
    """A descriptor of a regular file in the folder, never of the target of a link. Raises `OSError`."""
    descriptor = os.open(root / path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(0, "is not a file any more")
    return descriptor


def changed(path: str) -> FolderChangedError:
    """The error for a file that changes while it is being read."""
    return FolderChangedError(
        [
            Violation(
                field=FIELD,
                message=f"{path} changes while it is read",
                remedy=f"Wait until nothing writes to it. {_LEAVE_OUT} if trials do not need it.",
            )
        ]
    )


def _walk(root: Path) -> _Found:
    ignored = Ignored(root)
    home = home_dir()
    found = _Found({}, {}, set(), set(), [])
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        ignored.entered(folder)
        kept = 0
        for entry in _listed(root, folder):
            path = f"{folder}/{entry.name}" if folder else entry.name
            is_folder = entry.is_dir(follow_symlinks=False)
            if ignored.leaves_out(path, is_folder=is_folder) or (is_folder and root / path == home):
                found.left_out.append(f"{path}/" if is_folder else path)
                continue
            kept += 1
            if problem := path_problem(path):
                _refuse(f"the name {path!r} {problem}", "Rename it.")
            _note(found, path, entry, is_folder=is_folder)
            if is_folder:
                waiting.append(path)
            if len(found.files) + len(found.links) + len(found.folders) > _MOST_SEEN:
                return found
        if folder and not kept:
            found.empty.add(folder)
    return found


def _listed(root: Path, folder: str) -> Iterator["os.DirEntry[str]"]:
    try:
        with os.scandir(root / folder) as entries:
            yield from sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        _refuse(
            f"folder {folder or root} cannot be read: {error.strerror}", f"Make it readable. {_LEAVE_OUT}."
        )


def _note(found: _Found, path: str, entry: "os.DirEntry[str]", *, is_folder: bool) -> None:
    if is_folder:
        found.folders.add(path)
    elif entry.is_symlink():
        found.links[path] = entry.path
    elif entry.is_file(follow_symlinks=False):
        found.files[path] = entry.stat(follow_symlinks=False)
    else:
        _refuse(f"{path} is neither a file nor a folder", f"{_LEAVE_OUT}.")


def _require_small(root: Path, found: _Found) -> None:
    sizes = {path: before.st_size for path, before in found.files.items()}
    total, count = sum(sizes.values()), len(found.files) + len(found.links) + len(found.empty)
    if total <= MOST_BYTES and count <= MOST_ENTRIES:
        if problem := paths_problem(sorted({*found.files, *found.links, *found.empty})):
            _refuse(f"{root} {problem}", f"Leave out what trials do not read with a file {OWN}, {_SHARE}")
        return
    rows = "".join(f"\n    {size(bytes_):>10}  {path}" for path, bytes_ in largest(sizes, _LISTED))
    least = "at least " if count + len(found.folders) > _MOST_SEEN else ""
    _refuse(
        f"{root} has {least}{size(total)} in {count} files, and at most {size(MOST_BYTES)} in {MOST_ENTRIES} files "
        f"are shipped. The largest:{rows}\n ",
        f"Leave out what trials do not read with a file {OWN} (as .gitignore), {_SHARE}",
    )


def _file(root: Path, path: str, before: os.stat_result) -> Entry:
    for _ in range(_ATTEMPTS):
        try:
            descriptor = open_file(root, path)
        except OSError as error:
            _refuse(f"{path} cannot be read: {error.strerror}", f"Make it readable. {_LEAVE_OUT}.")
        with os.fdopen(descriptor, "rb") as file:
            before = os.fstat(descriptor)
            digest, read = hashlib.sha256(), 0
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
                read += len(chunk)
            after = os.fstat(descriptor)
        if read == before.st_size and _stamp(before) == _stamp(after):
            return Entry(
                path=path,
                size_bytes=read,
                sha256=digest.hexdigest(),
                executable=bool(before.st_mode & stat.S_IXUSR),
            )
    raise changed(path)


def _stamp(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _links(root: Path, found: _Found) -> Iterator[tuple[str, str]]:
    for path, where in found.links.items():
        written = str(Path(where).readlink())
        target = Path(os.path.realpath(where))
        if not target.is_relative_to(root):
            _refuse(
                f"link {path} leads out of the folder, to {written}",
                f"Workers do not have what is there. {_LEAVE_OUT}, put a copy in its place, {_SHARE}",
            )
        to = target.relative_to(root).as_posix()
        if to not in found.files and to not in found.folders:
            why = "leads to what is left out" if os.path.lexists(target) else "leads nowhere"
            _refuse(f"link {path} {why}: {written}", f"{_LEAVE_OUT} too.")
        yield path, to


def _refuse(message: str, remedy: str) -> NoReturn:
    raise FolderError([Violation(field=FIELD, message=message, remedy=remedy)])
