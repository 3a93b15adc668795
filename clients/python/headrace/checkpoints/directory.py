"""Checkpoints in a directory: local, or a file system that all workers mount.

A checkpoint is built in a folder with a temporary name. Files are hard-linked if possible and otherwise copied,
and flushed. Then the manifest is written, and the folder is renamed to its final name (`durable.filled`). A
crash before that leaves a folder that no listing shows, and the next attempt under the same name removes it.
Deletion renames first, so a half-deleted checkpoint is not visible either.

The root is created once, with its marker (`marker`). Every write first requires the marker. A file that is not
found counts as absent only if the marker is found afterwards.
"""

import errno
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote, unquote, urlsplit

from headrace.checkpoints.errors import (
    CheckpointCorruptError,
    CheckpointError,
    CheckpointGoneError,
    CheckpointMissingError,
    CheckpointUnreadableError,
    StoreUnavailableError,
)
from headrace.checkpoints.manifest import (
    MANIFEST,
    CheckpointMeta,
    Manifest,
    chunks,
    entry_of,
    local_files,
    parse_manifest,
    write_verified,
)
from headrace.checkpoints.marker import MARKER, Marked
from headrace.durable import DELETED, filled, flush, flush_below, remove, replace
from headrace.v1 import trial_pb2

_PARTIAL = ".partial-"


class DirectoryStore(Marked):
    """A `CheckpointStore` below one directory."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()

    @property
    def url(self) -> str:
        """The root as a `file:` URL."""
        return "file://" + quote(str(self._root))

    @property
    def folder(self) -> Path:
        """The root."""
        return self._root

    def uri(self, trial: str, name: str) -> str:
        """The URI of a checkpoint."""
        return f"{self.url}/{quote(trial)}/{quote(name)}/"

    def put(self, local_dir: Path, meta: CheckpointMeta) -> trial_pb2.CheckpointRef:
        """Stores a folder; see `CheckpointStore.put`."""
        began = time.monotonic()
        files = local_files(local_dir)
        parent = self._root / meta.trial
        final = parent / meta.name
        self.require()
        _mkdir_durably(parent, self._root)
        with filled(final, parent / (_PARTIAL + meta.name)) as partial:
            entries = []
            for relative, source in files:
                target = partial / relative
                target.parent.mkdir(parents=True, exist_ok=True)
                _link_or_copy(source, target)
                entries.append(entry_of(relative, target))
            flush_below(partial)
            write_time_s = meta.save_time_s + time.monotonic() - began
            manifest = Manifest.of(meta, tuple(entries), write_time_s)
            replace(partial / MANIFEST, manifest.to_bytes(), mode=0o666)
        try:
            self.require()  # else it was unmounted meanwhile, and this was written below the mount point
        except OSError:
            with suppress(OSError):
                remove(final)
            raise
        return manifest.to_ref(self.uri(meta.trial, meta.name))

    def fetch(self, ref: trial_pb2.CheckpointRef, local_dir: Path) -> Manifest:
        """Copies and verifies a checkpoint; see `CheckpointStore.fetch`."""
        folder = self._folder(ref.uri)
        # Deletion removes the whole folder, so a folder without a manifest was damaged.
        kind = CheckpointCorruptError if folder.is_dir() else CheckpointGoneError
        gone = kind(f"checkpoint {ref.uri} is not there: no {MANIFEST}")
        manifest = parse_manifest(b"".join(self._read(folder / MANIFEST, ref.uri, gone)), ref)
        local_dir.mkdir(parents=True)
        for entry in manifest.files:
            lacking = CheckpointCorruptError(f"checkpoint {ref.uri}: {entry.path} is missing")
            source = self._read(folder / entry.path, ref.uri, lacking)
            write_verified(source, local_dir / entry.path, entry, ref.uri)
        return manifest

    def _read(self, path: Path, uri: str, absent: CheckpointError) -> Iterator[bytes]:
        """Reads a file of a checkpoint; raises `absent` if it does not exist although the store is available."""
        try:
            with self._opened(path, absent) as file:
                yield from chunks(file)
        except StoreUnavailableError:
            raise
        except OSError as error:
            self.require()
            raise CheckpointUnreadableError(
                f"checkpoint {uri}: {path.name} cannot be read: {error.strerror or error}"
            ) from error

    def _opened(self, path: Path, absent: CheckpointError) -> BinaryIO:
        for _ in range(2):  # the store may come back between the checks for the file and for the marker
            try:
                return path.open("rb")
            except (FileNotFoundError, NotADirectoryError):
                self.require()
        raise absent

    def studies(self) -> list[str]:
        """The folders of studies; see `CheckpointStore.studies`."""
        if not (found := self._studies()):
            self.require()
        return found

    def _studies(self) -> list[str]:
        with suppress(FileNotFoundError, NotADirectoryError):
            folders = (self._root / "studies").iterdir()
            return sorted(folder.name for folder in folders if folder.is_dir() and not folder.is_symlink())
        return []

    def _has_studies(self) -> bool:
        return bool(self._studies())

    def _read_marker(self) -> bytes | None:
        try:
            return (self._root / MARKER).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _write_marker(self, content: bytes) -> None:
        self._root.mkdir(parents=True, exist_ok=True)
        replace(self._root / MARKER, content)

    def list(self, trial: str) -> list[str]:
        """Lists the complete checkpoints, oldest first."""
        parent = self._root / trial
        if not parent.is_dir():
            self.require()
            return []
        return sorted(
            p.name for p in parent.iterdir() if not p.name.startswith(".") and (p / MANIFEST).is_file()
        )

    def delete(self, uri: str) -> None:
        """Removes a checkpoint or a half-written one."""
        folder = self._folder(uri)
        self.require()
        shutil.rmtree(folder.parent / (_PARTIAL + folder.name), ignore_errors=True)
        remove(folder)

    def sizes(self, study: str) -> dict[str, int]:
        """The bytes by trial; see `CheckpointStore.sizes`."""
        found: dict[str, int] = {}
        with suppress(FileNotFoundError, NotADirectoryError):
            folders = self._inside(study) / "trials"
            if folders.is_symlink() or folders.parent.is_symlink():
                return {}  # a store never creates links, so their targets are not its own
            for folder in folders.iterdir():
                if folder.is_symlink():
                    continue
                trial = f"{study}/trials/{folder.name.removeprefix(DELETED)}"
                found[trial] = found.get(trial, 0) + _bytes_below(folder)
        if not found:
            self.require()
        return found

    def put_file(self, trial: str, name: str, data: bytes) -> None:
        """Stores a small file; see `CheckpointStore.put_file`."""
        target = self._inside(f"{trial}/{name}")
        self.require()
        _mkdir(target.parent, self._root)
        partial = target.with_name(_PARTIAL + target.name)
        try:
            partial.write_bytes(data)
            partial.rename(target)
        except OSError:
            partial.unlink(missing_ok=True)
            raise

    def read_file(self, trial: str, name: str, start: int, most: int) -> bytes | None:
        """Reads part of a small file; see `CheckpointStore.read_file`."""
        try:
            with self._inside(f"{trial}/{name}").open("rb") as file:
                file.seek(start)
                return file.read(most)
        except (FileNotFoundError, NotADirectoryError):
            self.require()
            return None

    def delete_file(self, trial: str, name: str) -> None:
        """Removes a small file."""
        self.require()
        self._inside(f"{trial}/{name}").unlink(missing_ok=True)

    def clear(self, trial: str) -> None:
        """Removes a trial's folder, and the folders above it that are then empty; see `CheckpointStore.clear`."""
        folder = self._inside(trial)
        self.require()
        remove(folder)
        for above in (folder.parent, folder.parent.parent):
            with suppress(OSError):  # it is not empty
                above.rmdir()

    def _inside(self, place: str) -> Path:
        if ".." in place.split("/"):
            raise CheckpointMissingError(f"{place} is not inside the store {self.url}")
        return self._root / place

    def _folder(self, uri: str) -> Path:
        parts = urlsplit(uri)
        folder = Path(unquote(parts.path))
        if parts.scheme != "file" or ".." in folder.parts or not folder.is_relative_to(self._root):
            raise CheckpointMissingError(f"checkpoint {uri} is not in the store {self.url}")
        return folder


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EACCES}:
            raise
        shutil.copyfile(source, target)


def _bytes_below(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):  # a worker has just deleted it
            total += path.stat(follow_symlinks=False).st_size if not path.is_dir() else 0
    return total


def _mkdir_durably(folder: Path, root: Path) -> None:
    if folder.is_dir():
        return
    _mkdir(folder, root)
    while folder.is_relative_to(root):
        flush(folder)
        folder = folder.parent


def _mkdir(folder: Path, root: Path) -> None:
    """Creates a folder below the root, but never the root itself. Raises `StoreUnavailableError` if the root is
    gone.
    """
    made = root
    try:
        for part in folder.relative_to(root).parts:
            made /= part
            made.mkdir(exist_ok=True)
    except FileNotFoundError as error:
        raise StoreUnavailableError(f"{root} went away while something was stored in it") from error
