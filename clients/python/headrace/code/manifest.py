"""The manifest: the contents of a folder, and its digest. Pure.

`parse_manifest` reads a manifest that anybody may have written. What it accepts can be unpacked into an empty
folder without a write outside of it, in any order: no path leads out of the folder or through a link, and none
occurs twice.

Its cost is proportional to the bytes. The text is read entry by entry, so no step takes long and other threads
run in between. Folders follow from the paths: they are counted, never listed.
"""

import hashlib
import json
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise, takewhile
from operator import eq
from typing import Any, Final

from headrace.spec.code import DIGEST

MOST_BYTES: Final = 100 << 20
"""The largest total size of a folder's files."""
MOST_ENTRIES: Final = 10_000
MOST_FOLDERS: Final = 10_000
MOST_DEPTH: Final = 64
"""The most names in a path."""
PATHS_BYTES: Final = 2 << 20
"""The largest total size of all paths."""
MANIFEST_BYTES: Final = 6 << 20
VERSION: Final = 1
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_PATH_BYTES: Final = 1024
_NAME_BYTES: Final = 255
_ENTRY_CHARACTERS: Final = 8192
"""An upper limit on the characters of an entry, with each character of its paths escaped."""
_HEAD: Final = '{\n"entries": [\n{'
_TAIL: Final = re.compile(r'\}\n\],\n"version": (\d{1,9})\n\}\n')
_TAIL_CHARACTERS: Final = 32


class CodeCorruptError(ValueError):
    """An archive does not match its digest, or contains something that no folder of a study has."""


class Kind(StrEnum):
    """The kind of an entry."""

    FILE = "file"
    LINK = "link"
    # A folder without any entry below it; all others follow from the paths.
    FOLDER = "folder"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One entry of a folder, with its path within the folder, separated by `/`."""

    path: str
    kind: Kind = Kind.FILE
    size_bytes: int = 0
    sha256: str = ""
    executable: bool = False
    # For a link: the path, within the folder, of its target.
    to: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The entries, sorted by path."""

    entries: tuple[Entry, ...]

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> "Manifest":
        """The manifest of these entries, sorted."""
        return cls(entries=tuple(sorted(entries, key=lambda entry: entry.path)))

    @property
    def size_bytes(self) -> int:
        """The total size of the files."""
        return sum(entry.size_bytes for entry in self.entries)

    @property
    def files(self) -> int:
        """The number of files and links."""
        return sum(entry.kind is not Kind.FOLDER for entry in self.entries)

    @property
    def digest(self) -> str:
        """The SHA-256 of `to_bytes`, in hex."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def to_bytes(self) -> bytes:
        """Encodes the manifest. The same manifest always gives the same bytes."""
        entries = [_written(entry) for entry in self.entries]
        document = {"version": VERSION, "entries": entries}
        return json.dumps(document, indent=0, sort_keys=True, ensure_ascii=False).encode() + b"\n"


def _written(entry: Entry) -> dict[str, Any]:
    match entry.kind:
        case Kind.FILE:
            mode = {"executable": True} if entry.executable else {}
            return {"path": entry.path, "size": entry.size_bytes, "sha256": entry.sha256, **mode}
        case Kind.LINK:
            return {"path": entry.path, "to": entry.to}
        case Kind.FOLDER:
            return {"path": entry.path, "folder": True}


def parse_manifest(data: bytes, digest: str) -> Manifest:
    """Reads a manifest that has this digest. Raises `CodeCorruptError`."""
    found = hashlib.sha256(data).hexdigest()
    if found != digest:
        raise CodeCorruptError(f"the manifest has SHA-256 {found}, and {digest} is asked for")
    try:
        manifest = Manifest(entries=tuple(map(_entry, _rows(data.decode()))))
    except (KeyError, TypeError, AttributeError, RecursionError, ValueError) as error:
        if isinstance(error, CodeCorruptError):
            raise
        raise CodeCorruptError(f"the manifest cannot be read: {error!r}") from error
    _require_sound(manifest)
    return manifest


def _rows(text: str) -> Iterator[str]:
    """The text of each entry, as written by `Manifest.to_bytes`: JSON strings contain no line breaks."""
    tail = _TAIL.search(text, max(len(_HEAD), len(text) - _TAIL_CHARACTERS))
    if not text.startswith(_HEAD) or tail is None or tail.end() != len(text):
        raise CodeCorruptError("the manifest is not written as manifests are")
    if int(tail[1]) != VERSION:
        raise CodeCorruptError(f"the manifest has version {tail[1]}, not {VERSION}")
    count, at = 0, len(_HEAD)
    while at < tail.start():
        count += 1
        if count > MOST_ENTRIES:
            raise CodeCorruptError(f"it has more than {MOST_ENTRIES} entries")
        end = text.find("},\n{", at, at + _ENTRY_CHARACTERS)
        if end < 0:
            end = tail.start()
        if end - at > _ENTRY_CHARACTERS:
            raise CodeCorruptError(f"entry {count} has more than {_ENTRY_CHARACTERS} characters")
        yield text[at - 1 : end + 1]
        at = end + len("},\n{")


def _entry(text: str) -> Entry:
    row: dict[str, Any] = json.loads(text)  # Any: JSON, checked field by field below
    path = str(row["path"])
    if "to" in row:
        return Entry(path=path, kind=Kind.LINK, to=str(row["to"]))
    if "folder" in row:
        return Entry(path=path, kind=Kind.FOLDER)
    size, sha256 = row["size"], str(row["sha256"])
    if not isinstance(size, int) or size < 0 or not DIGEST.fullmatch(sha256):
        raise CodeCorruptError(f"{path!r} has no size or no SHA-256")
    executable = row.get("executable", False) is True
    return Entry(path=path, size_bytes=size, sha256=sha256, executable=executable)


def _require_sound(manifest: Manifest) -> None:
    entries = manifest.entries
    if manifest.size_bytes > MOST_BYTES:
        raise CodeCorruptError(f"it declares {manifest.size_bytes} bytes, and {MOST_BYTES} are the most")
    paths = [entry.path for entry in entries]
    if any(before >= path for before, path in pairwise(paths)):
        raise CodeCorruptError("its paths are not sorted, or one is there twice")
    for path in paths:
        if problem := path_problem(path):
            raise CodeCorruptError(f"path {path[:80]!r} {problem}")
    if problem := paths_problem(paths):
        raise CodeCorruptError(f"it {problem}")
    kinds = {entry.path: entry.kind for entry in entries}
    for entry in entries:
        if _is_above(entry.path, paths):
            raise CodeCorruptError(f"{entry.path!r} is a folder and is there as an entry too")
        if entry.kind is Kind.LINK:
            known = kinds.get(entry.to, Kind.LINK) is not Kind.LINK or _is_above(entry.to, paths)
            if not known:
                raise CodeCorruptError(
                    f"link {entry.path!r} leads to {entry.to!r}, which is not in the folder"
                )


def paths_problem(paths: Sequence[str]) -> str:
    """What is wrong with a list of sorted paths, or nothing."""
    length = sum(len(path.encode()) for path in paths)
    if length > PATHS_BYTES:
        return f"has paths of {length} bytes together, and {PATHS_BYTES} are the most"
    folders = count_folders(paths)
    if folders > MOST_FOLDERS:
        return f"has {folders} folders, and {MOST_FOLDERS} are the most"
    return ""


def count_folders(paths: Iterable[str]) -> int:
    """How many folders are above sorted paths.

    All paths below a folder are consecutive, so a folder is new if the previous path is not below it."""
    count, before = 0, list[str]()
    for path in paths:
        above = path.split("/")[:-1]
        count += len(above) - sum(takewhile(bool, map(eq, above, before)))
        before = above
    return count


def _is_above(path: str, paths: Sequence[str]) -> bool:
    """Whether any of the sorted paths is below a path."""
    below = f"{path}/"
    at = bisect_left(paths, below)
    return at < len(paths) and paths[at].startswith(below)


def path_problem(path: str) -> str:
    """What is wrong with a path within a folder, or nothing."""
    parts = path.split("/")
    if not path or path.startswith("/") or not {"", ".", ".."}.isdisjoint(parts):
        return "is not in the folder"
    if len(parts) > MOST_DEPTH:
        return f"has {len(parts)} names, and {MOST_DEPTH} are the most"
    if _CONTROL.search(path):
        return "has a control character in it"
    try:
        encoded = path.encode()
    except UnicodeEncodeError:
        return "is not UTF-8"
    if len(encoded) > _PATH_BYTES or any(len(part.encode()) > _NAME_BYTES for part in parts):
        return f"is longer than {_PATH_BYTES} bytes, or one of its names than {_NAME_BYTES}"
    return ""
