"""The manifest: the contents of a checkpoint, and how to verify that it is complete."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast

from headrace.checkpoints.errors import CheckpointCorruptError, CheckpointInvalidError
from headrace.userfile import parse_json
from headrace.v1 import trial_pb2

MANIFEST = "manifest.json"
VERSION = 1
CHUNK_BYTES = 1 << 20
MAX_FILES = 10_000
"""Files of one checkpoint, including folders: each is written and made durable separately."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointMeta:
    """What the daemon knows about a checkpoint and its files do not contain."""

    # The trial's folder in the store, such as `studies/{study}-{uid}/trials/{number}`.
    trial: str
    # Unique within the trial; sorts by age.
    name: str
    step: int
    milestone: int
    attempt: int
    # How long the trial took to write the folder, before the store saw it.
    save_time_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """One file of a checkpoint, by its path within the folder."""

    path: str
    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The content of `manifest.json`."""

    trial: str
    name: str
    step: int
    milestone: int
    attempt: int
    files: tuple[FileEntry, ...]
    write_time_s: float

    @classmethod
    def of(cls, meta: CheckpointMeta, files: tuple[FileEntry, ...], write_time_s: float) -> "Manifest":
        """Describes files that are already in the store."""
        return cls(
            trial=meta.trial,
            name=meta.name,
            step=meta.step,
            milestone=meta.milestone,
            attempt=meta.attempt,
            files=files,
            write_time_s=write_time_s,
        )

    def to_bytes(self) -> bytes:
        """Encodes the manifest. The same manifest always gives the same bytes."""
        document = {
            "version": VERSION,
            "trial": self.trial,
            "name": self.name,
            "step": self.step,
            "milestone": self.milestone,
            "attempt": self.attempt,
            "files": {f.path: {"sha256": f.sha256, "size": f.size_bytes} for f in self.files},
            "write_time_s": round(self.write_time_s, 6),
        }
        return json.dumps(document, indent=1, sort_keys=True).encode() + b"\n"

    def to_ref(self, uri: str) -> trial_pb2.CheckpointRef:
        """Builds the reference that travels through the scheduler."""
        ref = trial_pb2.CheckpointRef(
            uri=uri,
            step=self.step,
            size_bytes=sum(f.size_bytes for f in self.files),
            manifest_sha256=hashlib.sha256(self.to_bytes()).hexdigest(),
        )
        ref.write_time.FromNanoseconds(int(self.write_time_s * 1e9))
        return ref


def parse_manifest(data: bytes, ref: trial_pb2.CheckpointRef) -> Manifest:
    """Decodes a manifest after checking it against the reference.

    Raises `CheckpointCorruptError` if the bytes differ from what was stored, or if a path would lead out of the
    checkpoint's folder.
    """
    found = hashlib.sha256(data).hexdigest()
    if found != ref.manifest_sha256:
        raise CheckpointCorruptError(
            f"checkpoint {ref.uri}: {MANIFEST} has SHA-256 {found}, the reference says {ref.manifest_sha256}"
        )
    return _parsed(data, ref.uri)


def _parsed(data: bytes, uri: str) -> Manifest:
    try:
        document = cast("dict[str, Any]", parse_json(data))  # Any: JSON, checked field by field below
        if document["version"] != VERSION:
            raise CheckpointCorruptError(
                f"checkpoint {uri}: version {document['version']} is not {VERSION}; update the worker"
            )
        files = tuple(
            FileEntry(path=_inside(path), sha256=str(entry["sha256"]), size_bytes=int(entry["size"]))
            for path, entry in document["files"].items()
        )
        return Manifest(
            trial=str(document["trial"]),
            name=str(document["name"]),
            step=int(document["step"]),
            milestone=int(document["milestone"]),
            attempt=int(document["attempt"]),
            files=files,
            write_time_s=float(document["write_time_s"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointCorruptError(f"checkpoint {uri}: {MANIFEST} cannot be read: {error!r}") from error


def _inside(path: str) -> str:
    pure = PurePosixPath(path)
    if not path or pure.is_absolute() or ".." in pure.parts or path == MANIFEST:
        raise ValueError(f"path {path!r} does not name a file of the checkpoint")
    return path


def local_files(local_dir: Path) -> list[tuple[str, Path]]:
    """Lists the regular files below a folder as (path within the folder, path), sorted.

    Raises `CheckpointInvalidError` for a folder that is missing or empty, or that contains anything other than
    files and folders, or more than `MAX_FILES` of them.
    """
    if local_dir.is_symlink() or not local_dir.is_dir():
        raise CheckpointInvalidError(f"checkpoint folder {local_dir} is not a folder")
    paths = sorted(islice(local_dir.rglob("*"), MAX_FILES + 1))
    if len(paths) > MAX_FILES:
        raise CheckpointInvalidError(
            f"checkpoint folder {local_dir} holds more than {MAX_FILES} files and folders; pack them into fewer"
        )
    found: list[tuple[str, Path]] = []
    for path in paths:
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise CheckpointInvalidError(f"checkpoint folder {local_dir}: {path.name} is not a regular file")
        if path.is_file():
            relative = path.relative_to(local_dir).as_posix()
            if relative == MANIFEST:
                raise CheckpointInvalidError(
                    f"checkpoint folder {local_dir}: {MANIFEST} is the store's own name; rename the file"
                )
            found.append((relative, path))
    if not found:
        raise CheckpointInvalidError(f"checkpoint folder {local_dir} holds no file")
    return found


def chunks(file: BinaryIO) -> Iterator[bytes]:
    """Reads a file in chunks."""
    while chunk := file.read(CHUNK_BYTES):
        yield chunk


def entry_of(path: str, file: Path) -> FileEntry:
    """Hashes a local file."""
    digest = hashlib.sha256()
    size = 0
    with file.open("rb") as stream:
        for chunk in chunks(stream):
            digest.update(chunk)
            size += len(chunk)
    return FileEntry(path=path, sha256=digest.hexdigest(), size_bytes=size)


def write_verified(source: Iterator[bytes], target: Path, entry: FileEntry, uri: str) -> None:
    """Writes a stream to a file and verifies its SHA-256 and size.

    Raises `CheckpointCorruptError` on a difference; the file is then unusable.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as out:
        for chunk in verified(source, entry, uri):
            out.write(chunk)


def verified(source: Iterable[bytes], entry: FileEntry, uri: str) -> Iterator[bytes]:
    """The chunks of a file; raises `CheckpointCorruptError` after the last one if its SHA-256 or size differs."""
    digest = hashlib.sha256()
    size = 0
    for chunk in source:
        digest.update(chunk)
        size += len(chunk)
        yield chunk
    if size != entry.size_bytes:
        raise CheckpointCorruptError(
            f"checkpoint {uri}: {entry.path} has {size} bytes, its manifest says {entry.size_bytes}"
        )
    if digest.hexdigest() != entry.sha256:
        raise CheckpointCorruptError(
            f"checkpoint {uri}: {entry.path} has SHA-256 {digest.hexdigest()}, its manifest says {entry.sha256}"
        )


def verify(folder: Path, ref: trial_pb2.CheckpointRef | None = None) -> None:
    """Verifies the checkpoint in a store's folder: its files against its manifest, and that against the reference.

    Raises `CheckpointCorruptError`, `FileNotFoundError` if there is no checkpoint, and another `OSError` if it cannot
    be read.
    """
    uri = folder.as_uri() if ref is None else ref.uri
    try:
        data = (folder / MANIFEST).read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        if not folder.is_dir():
            raise FileNotFoundError(f"{folder} holds no checkpoint") from error
        raise CheckpointCorruptError(f"checkpoint {uri}: {MANIFEST} is missing") from error
    for entry in (_parsed(data, uri) if ref is None else parse_manifest(data, ref)).files:
        try:
            with (folder / entry.path).open("rb") as file:
                for _ in verified(chunks(file), entry, uri):
                    pass
        except FileNotFoundError as error:
            raise CheckpointCorruptError(f"checkpoint {uri}: {entry.path} is missing") from error
