"""The manifest: what a folder consists of, and its digest. Pure.

`parse_manifest` reads one that anybody may have written. What it accepts can be unpacked into an empty folder without
a write outside of it, whatever the order: no path leads out or through a link, and none is there twice.
"""

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Any, Final, cast

from headrace.spec.code import DIGEST

MOST_BYTES: Final = 100 << 20
"""What all files of a folder may have together."""
MOST_ENTRIES: Final = 10_000
MANIFEST_BYTES: Final = 8 << 20
VERSION: Final = 1
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_PATH_BYTES: Final = 1024
_NAME_BYTES: Final = 255


class CodeCorruptError(ValueError):
    """An archive is not what its digest says, or asks for what no folder of a study has."""


class Kind(StrEnum):
    """What an entry is."""

    FILE = "file"
    LINK = "link"
    # A folder without any entry below it; all others follow from the paths.
    FOLDER = "folder"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One entry of a folder, by its path within it, parted by `/`."""

    path: str
    kind: Kind = Kind.FILE
    size_bytes: int = 0
    sha256: str = ""
    executable: bool = False
    # Of a link: the path, within the folder, of the file or folder that it leads to.
    to: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The entries, sorted by path."""

    entries: tuple[Entry, ...]

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> "Manifest":
        """Sorts them."""
        return cls(entries=tuple(sorted(entries, key=lambda entry: entry.path)))

    @property
    def size_bytes(self) -> int:
        """What the files have together."""
        return sum(entry.size_bytes for entry in self.entries)

    @property
    def files(self) -> int:
        """How many files and links there are."""
        return sum(entry.kind is not Kind.FOLDER for entry in self.entries)

    @property
    def digest(self) -> str:
        """The SHA-256 of `to_bytes`, in hex."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def to_bytes(self) -> bytes:
        """Encodes it; the same manifest gives the same bytes."""
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
        document = cast("dict[str, Any]", json.loads(data))  # Any: JSON, checked field by field below
        if document["version"] != VERSION:
            raise CodeCorruptError(f"the manifest has version {document['version']}, not {VERSION}")
        manifest = Manifest(entries=tuple(_entry(row) for row in document["entries"]))
    except (KeyError, TypeError, AttributeError, RecursionError, ValueError) as error:
        if isinstance(error, CodeCorruptError):
            raise
        raise CodeCorruptError(f"the manifest cannot be read: {error!r}") from error
    _require_sound(manifest)
    return manifest


def _entry(row: dict[str, Any]) -> Entry:
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
    if len(entries) > MOST_ENTRIES:
        raise CodeCorruptError(f"it has {len(entries)} entries, and {MOST_ENTRIES} are the most")
    if manifest.size_bytes > MOST_BYTES:
        raise CodeCorruptError(f"it declares {manifest.size_bytes} bytes, and {MOST_BYTES} are the most")
    paths = [entry.path for entry in entries]
    if paths != sorted(set(paths)):
        raise CodeCorruptError("its paths are not sorted, or one is there twice")
    for path in paths:
        if problem := path_problem(path):
            raise CodeCorruptError(f"path {path!r} {problem}")
    folders = {str(above) for path in paths for above in PurePosixPath(path).parents}
    leads_to = {entry.path: entry for entry in entries}
    for entry in entries:
        if entry.path in folders:
            raise CodeCorruptError(f"{entry.path!r} is a folder and is there as an entry too")
        if entry.kind is Kind.LINK:
            found = leads_to.get(entry.to)
            if entry.to not in folders and (found is None or found.kind is Kind.LINK):
                raise CodeCorruptError(
                    f"link {entry.path!r} leads to {entry.to!r}, which is not in the folder"
                )


def path_problem(path: str) -> str:
    """What is wrong with a path within a folder, or nothing."""
    parts = path.split("/")
    if not path or path.startswith("/") or not {"", ".", ".."}.isdisjoint(parts):
        return "does not lie in the folder"
    if _CONTROL.search(path):
        return "has a control character in it"
    try:
        encoded = path.encode()
    except UnicodeEncodeError:
        return "is not UTF-8"
    if len(encoded) > _PATH_BYTES or any(len(part.encode()) > _NAME_BYTES for part in parts):
        return f"is longer than {_PATH_BYTES} bytes, or one of its names than {_NAME_BYTES}"
    return ""
