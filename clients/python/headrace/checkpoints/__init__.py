"""Where checkpoints live: a protocol, a store on a directory, a store on S3. Workers write to it; the SDK and the
command line read from it, and clean it, wherever they can reach it.

A checkpoint is a folder of files plus `manifest.json`, which is written last and holds every file's
SHA-256 and size. A folder without a manifest is not a checkpoint: it is an upload that has not ended,
or never will. The reference that travels through the scheduler holds the manifest's own SHA-256, so a
reader that starts from the reference can tell a right checkpoint from a corrupted one without trusting
the store.

`put` returns only when the checkpoint is durable, may be repeated under the same name, and leaves
nothing visible when it fails. `delete` removes the manifest's visibility first. Names sort by age.

A store knows itself by its marker (`marker`). Where the marker is not seen the store is away: every method then raises
`StoreUnavailableError`, rather than write there or take what it does not find for deleted.

Implementations block; the daemon calls them through `asyncio.to_thread`.
"""

from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from headrace.checkpoints.errors import (
    CheckpointCorruptError,
    CheckpointError,
    CheckpointGoneError,
    CheckpointInvalidError,
    CheckpointMissingError,
    CheckpointUnreadableError,
    StoreUnavailableError,
)
from headrace.checkpoints.manifest import CheckpointMeta, Manifest
from headrace.folders import Place
from headrace.hidden import without_credentials
from headrace.v1 import trial_pb2

__all__ = [
    "CheckpointCorruptError",
    "CheckpointError",
    "CheckpointGoneError",
    "CheckpointInvalidError",
    "CheckpointMeta",
    "CheckpointMissingError",
    "CheckpointStore",
    "CheckpointUnreadableError",
    "Manifest",
    "Place",
    "StoreUnavailableError",
    "store_from_url",
]


class CheckpointStore(Protocol):
    """Durable checkpoints by trial and name. Every method blocks and is safe to repeat."""

    @property
    def url(self) -> str:
        """Where the store lies, as the user gave it."""
        ...

    @property
    def folder(self) -> Path | None:
        """The folder that it is, on this machine or another; None for one that is no folder."""
        ...

    expected: str
    """The id that the store's marker must have; empty where any will do."""

    def identity(self) -> str:
        """The id in the store's marker; empty where there is none. Raises `StoreUnavailableError`."""
        ...

    def require(self) -> None:
        """Raises `StoreUnavailableError` unless the store is there: its marker is, with the expected id."""
        ...

    def set_up(self, identity: str, *, used: bool) -> None:
        """Writes the marker, unless there is one. `used`: checkpoints were stored at this address, and must be
        there. Raises `StoreUnavailableError`, `OSError`."""
        ...

    def uri(self, trial: str, name: str) -> str:
        """Says where the checkpoint `name` of `trial` lies, or would lie."""
        ...

    def put(self, local_dir: Path, meta: CheckpointMeta) -> trial_pb2.CheckpointRef:
        """Stores the files below `local_dir`, durably, and the manifest last.

        The store may take the files over by hard link, so nobody writes to them afterwards.
        Raises `CheckpointInvalidError` for a folder that cannot be a checkpoint (empty, holds a link) and
        `OSError` where the store is full or cannot be reached.
        """
        ...

    def fetch(self, ref: trial_pb2.CheckpointRef, local_dir: Path) -> Manifest:
        """Copies the checkpoint into `local_dir`, a folder that does not exist yet, verifying every byte.

        Raises `CheckpointMissingError` (a `CheckpointGoneError` where the store is there), `CheckpointUnreadableError`
        (a `CheckpointCorruptError` where the bytes differ), `StoreUnavailableError`, or another `OSError` where
        `local_dir` cannot be written.
        """
        ...

    def studies(self) -> list[str]:
        """Names what lies below `studies/`: the folders of studies, such as `digits-1a2b`. Empty where nothing does."""
        ...

    def list(self, trial: str) -> list[str]:
        """Names the trial's complete checkpoints, oldest first."""
        ...

    def delete(self, uri: str) -> None:
        """Removes a checkpoint, or what a crash left of one; a missing one is no error."""
        ...

    def sizes(self, study: str) -> dict[str, int]:
        """The bytes of all that lies in each trial's place below a study's, such as `studies/digits-1a2b`, unfinished
        uploads included. Empty where the study has nothing here."""
        ...

    def put_file(self, trial: str, name: str, data: bytes) -> None:
        """Stores a small file below a trial's place, such as `logs/000001.log`, in place of what lies there.

        Raises `OSError` where the store is full or cannot be reached.
        """
        ...

    def read_file(self, trial: str, name: str, start: int, most: int) -> bytes | None:
        """Reads at most this many bytes of a small file; empty behind its end, None where there is none.

        Raises `OSError` where the store cannot be reached.
        """
        ...

    def delete_file(self, trial: str, name: str) -> None:
        """Removes a small file; a missing one is no error."""
        ...

    def clear(self, trial: str) -> None:
        """Removes all that lies in a trial's place; a missing one is no error."""
        ...


def store_from_url(url: str) -> CheckpointStore:
    """Opens `file:///…` (or a plain absolute path) or `s3://bucket/prefix`.

    S3 takes its credentials, region and endpoint from the usual `AWS_*` variables.
    Raises `ValueError` for any other URL.
    """
    parts = urlsplit(url)
    match parts.scheme:
        case "file" if parts.netloc in {"", "localhost"} and parts.path.startswith("/"):
            from headrace.checkpoints.directory import DirectoryStore

            return DirectoryStore(Path(unquote(parts.path)))
        case "" if url.startswith("/"):
            from headrace.checkpoints.directory import DirectoryStore

            return DirectoryStore(Path(url))
        case "s3" if "@" in parts.netloc or ":" in parts.netloc:
            raise ValueError(
                "the store s3://… holds credentials, which everybody would see: give s3://BUCKET/PREFIX, and them in "
                "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            )
        case "s3" if parts.netloc:
            from headrace.checkpoints.s3 import S3Store

            return S3Store(parts.netloc, unquote(parts.path).strip("/"))
        case _:
            raise ValueError(
                f"store {without_credentials(url)!r} is not a checkpoint store; give file:///DIR or "
                "s3://BUCKET/PREFIX"
            )
