"""The archive of a folder: written from the folder, and unpacked by whoever trusts its digest.

It is a tar whose first member is the manifest. The manifest's entries follow in order. The same folder always
gives the same bytes: times, owners and names of owners are left empty.

Unpacking also compares. It stops at a member that is not the manifest's next entry, and at a byte that its hash
does not cover. So a hostile archive can do nothing that its manifest does not declare, and what a manifest may
declare is bounded (`manifest`). The headers before a member are bounded too: `tarfile` keeps them in memory, and
calls itself for each.

The archive is unpacked next to its target and renamed, so a crash leaves nothing half done there. If two
processes unpack to the same target at once, one wins; both have the same files.
"""

import hashlib
import os
import posixpath
import shutil
import tarfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import IO, BinaryIO, Final, Protocol, cast

from headrace.code.folder import CHUNK_BYTES, Folder, changed, open_file
from headrace.code.manifest import (
    MANIFEST_BYTES,
    MOST_BYTES,
    MOST_ENTRIES,
    CodeCorruptError,
    Entry,
    Kind,
    Manifest,
    parse_manifest,
)

MANIFEST: Final = ".headrace-manifest.json"
"""The name of the first member. It is not unpacked, so a file of this name may be shipped."""
ARCHIVE_BYTES: Final = MOST_BYTES + MANIFEST_BYTES + 4096 * MOST_ENTRIES
"""The largest size of an archive."""
PARTIAL: Final = ".partial-"
_HEADERS_BYTES: Final = 16 << 10
"""An upper limit on the headers of a member in our archives: a path and a link's target, each in its own header."""


class _Reader(Protocol):
    def read(self, size: int = -1, /) -> bytes: ...


class _Guarded:
    """An archive file that raises `CodeCorruptError` if the headers of a member are too long."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._left: int | None = None

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        if self._left is not None:
            self._left -= len(data)
            if self._left < 0:
                raise CodeCorruptError(f"a member has headers of more than {_HEADERS_BYTES} bytes")
        return data

    @contextmanager
    def headers(self) -> Iterator[None]:
        """Everything read in this context counts as headers."""
        self._left = _HEADERS_BYTES + tarfile.RECORDSIZE  # the amount read at a time
        yield
        self._left = None


class _Hashed:
    """A file that is hashed while it is being read."""

    def __init__(self, file: _Reader) -> None:
        self._file = file
        self._hash = hashlib.sha256()

    def read(self, size: int = -1, /) -> bytes:
        data = self._file.read(size)
        self._hash.update(data)
        return data

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()


def write_archive(folder: Folder, out: BinaryIO) -> None:
    """Writes a folder as it was read. Raises `FolderChangedError` if a file has changed since."""
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        manifest = folder.manifest.to_bytes()
        first = tarfile.TarInfo(MANIFEST)
        first.size = len(manifest)
        tar.addfile(first, BytesIO(manifest))
        for entry in folder.manifest.entries:
            info = _member(entry)
            if entry.kind is not Kind.FILE:
                tar.addfile(info)
                continue
            try:
                with os.fdopen(open_file(folder.root, entry.path), "rb") as file:
                    hashed = _Hashed(file)
                    tar.addfile(info, hashed)  # it reads no more than this
                    is_longer = bool(file.read(1))
            except OSError:  # it has become shorter, or is gone
                raise changed(entry.path) from None
            if is_longer or hashed.digest != entry.sha256:
                raise changed(entry.path)


def unpack(archive: BinaryIO, digest: str, target: Path) -> Manifest:
    """Unpacks into `target`, a folder that does not exist yet. Raises `CodeCorruptError`, with nothing left behind, and
    `OSError`."""
    partial = target.with_name(f"{PARTIAL}{target.name}-{uuid.uuid4().hex[:8]}")
    partial.mkdir(parents=True)
    try:
        manifest = _each(archive, digest, partial)
        try:
            partial.rename(target)
        except OSError:
            if not target.is_dir():
                raise
            shutil.rmtree(partial, ignore_errors=True)  # another process was faster
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return manifest


def verify(archive: BinaryIO, digest: str) -> Manifest:
    """Reads a whole archive and compares it. Raises `CodeCorruptError`."""
    return _each(archive, digest, None)


def read_member(archive: BinaryIO, digest: str, path: str) -> bytes | None:
    """The content of one file in an archive; None if there is no file of this path. Raises `CodeCorruptError`."""
    with _opened(archive, digest) as members:
        for entry, body in members:
            if body is None:
                continue
            if entry.path == path:
                data = body.read()
                _require_same(entry, hashlib.sha256(data).hexdigest())
                return data
            _copy(_Hashed(body), None, executable=False)
    return None


def _each(archive: BinaryIO, digest: str, target: Path | None) -> Manifest:
    entries = []
    with _opened(archive, digest) as members:
        for entry, body in members:
            entries.append(entry)
            place = None if target is None else target / entry.path
            if place is not None:
                place.parent.mkdir(parents=True, exist_ok=True)
            match entry.kind:
                case Kind.FOLDER if place is not None:
                    place.mkdir()
                case Kind.LINK if place is not None and target is not None:
                    place.symlink_to(os.path.relpath(target / entry.to, place.parent))
                case Kind.FILE if body is not None:
                    hashed = _Hashed(body)
                    _copy(hashed, place, executable=entry.executable)
                    _require_same(entry, hashed.digest)
    return Manifest(entries=tuple(entries))


def _copy(source: _Hashed, place: Path | None, *, executable: bool) -> None:
    if place is None:
        while source.read(CHUNK_BYTES):
            pass
        return
    mode = 0o755 if executable else 0o644
    descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as file:
        while chunk := source.read(CHUNK_BYTES):
            file.write(chunk)


def _require_same(entry: Entry, found: str) -> None:
    if found != entry.sha256:
        raise CodeCorruptError(f"{entry.path!r} has SHA-256 {found}, and its manifest says {entry.sha256}")


@contextmanager
def _opened(archive: BinaryIO, digest: str) -> Iterator[Iterator[tuple[Entry, _Reader | None]]]:
    """The members of an archive, as a context: errors of a file that is not a tar become a `CodeCorruptError`."""
    guarded = _Guarded(archive)
    try:
        with guarded.headers():
            # A stream: `tarfile` does not seek, so every byte that it uses was compared.
            source = cast("IO[bytes]", guarded)  # it can only read
            tar = tarfile.open(fileobj=source, mode="r|", errorlevel=2)  # noqa: SIM115  # closed below
        with tar:
            yield _members(tar, guarded, digest)
    except CodeCorruptError:
        raise
    except (
        tarfile.TarError,
        EOFError,
        ValueError,
        ArithmeticError,
        LookupError,
    ) as error:  # anything that tarfile may raise
        raise CodeCorruptError(f"the archive cannot be read: {error}") from error


def _members(tar: tarfile.TarFile, guarded: _Guarded, digest: str) -> Iterator[tuple[Entry, _Reader | None]]:
    """Each entry, with the bytes of a file, which must be read before the next entry."""
    first = tar.next()  # it was read when the archive was opened
    if first is None or first.name != MANIFEST or first.type != tarfile.REGTYPE:
        raise CodeCorruptError("its first member is not the manifest")
    if first.size > MANIFEST_BYTES:
        raise CodeCorruptError(f"its manifest declares {first.size} bytes")
    body = tar.extractfile(first)
    manifest = parse_manifest(body.read() if body is not None else b"", digest)
    for entry in manifest.entries:
        with guarded.headers():
            info = tar.next()
        _require_member(entry, info)
        assert info is not None
        yield entry, tar.extractfile(info) if entry.kind is Kind.FILE else None
    with guarded.headers():
        further = tar.next()
    if further is not None:
        raise CodeCorruptError(f"its member {further.name!r} is not in its manifest")


def _require_member(entry: Entry, info: tarfile.TarInfo | None) -> None:
    if info is None:
        raise CodeCorruptError(f"{entry.path!r} is missing")
    wanted = _member(entry)
    found = (info.name, info.type, info.size, info.linkname)
    if found != (wanted.name, wanted.type, wanted.size, wanted.linkname) or info.issparse():
        raise CodeCorruptError(f"its member {info.name!r} is not what its manifest says of {entry.path!r}")


def _member(entry: Entry) -> tarfile.TarInfo:
    info = tarfile.TarInfo(entry.path)
    match entry.kind:
        case Kind.FILE:
            info.size = entry.size_bytes
            info.mode = 0o755 if entry.executable else 0o644
        case Kind.LINK:
            info.type, info.mode = tarfile.SYMTYPE, 0o777
            info.linkname = posixpath.relpath(f"/{entry.to}", posixpath.dirname(f"/{entry.path}"))
        case Kind.FOLDER:
            info.type, info.mode = tarfile.DIRTYPE, 0o755
    return info
