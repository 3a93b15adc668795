"""Where checkpoints live: a protocol, a store in a directory, and a store on S3. Workers write to it. The SDK
and the command line read from it, and clean it, wherever they can reach it.

A checkpoint is a folder of files plus `manifest.json`, which is written last and holds the SHA-256 and size of
every file. A folder without a manifest is not a checkpoint: it is an unfinished upload, which may never finish.
The reference that travels through the scheduler holds the manifest's own SHA-256. So a reader that starts from
the reference can tell a valid checkpoint from a corrupted one without trusting the store.

`put` returns only when the checkpoint is durable, may be repeated under the same name, and leaves nothing
visible if it fails. `delete` removes the manifest first, so that the checkpoint is no longer visible. Names sort
by age.

A store is identified by its marker (`marker`). If the marker is not found, the store is unavailable: every
method then raises `StoreUnavailableError`. It neither writes there, nor treats missing files as deleted.

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
        """The store's URL, as the user gave it."""
        ...

    @property
    def folder(self) -> Path | None:
        """The store's folder, on this machine or another; None if it is not a folder."""
        ...

    expected: str
    """The id that the store's marker must have; empty if any id is accepted."""

    def identity(self) -> str:
        """The id in the store's marker; empty if there is none. Raises `StoreUnavailableError`."""
        ...

    def require(self) -> None:
        """Raises `StoreUnavailableError` unless the store's marker exists and has the expected id."""
        ...

    def set_up(self, identity: str, *, used: bool) -> None:
        """Writes the marker, unless there is one. `used` says that checkpoints were stored at this address, so
        they must exist. Raises `StoreUnavailableError`, `OSError`.
        """
        ...

    def uri(self, trial: str, name: str) -> str:
        """The URI of the checkpoint `name` of `trial`, whether or not it exists."""
        ...

    def put(self, local_dir: Path, meta: CheckpointMeta) -> trial_pb2.CheckpointRef:
        """Stores the files below `local_dir` durably, the manifest last.

        The store may hard-link the files, so they must not be written afterwards. Raises
        `CheckpointInvalidError` for a folder that cannot be a checkpoint (empty, or contains a link) and
        `OSError` if the store is full or cannot be reached.
        """
        ...

    def fetch(self, ref: trial_pb2.CheckpointRef, local_dir: Path) -> Manifest:
        """Copies the checkpoint into `local_dir`, a folder that does not exist yet, verifying every byte.

        Raises `CheckpointMissingError` (a `CheckpointGoneError` if the store is available),
        `CheckpointUnreadableError` (a `CheckpointCorruptError` if the bytes differ), `StoreUnavailableError`, or
        another `OSError` if `local_dir` cannot be written.
        """
        ...

    def studies(self) -> list[str]:
        """Lists the folders of studies below `studies/`, such as `digits-1a2b`. Empty if there are none."""
        ...

    def list(self, trial: str) -> list[str]:
        """Lists the trial's complete checkpoints, oldest first."""
        ...

    def delete(self, uri: str) -> None:
        """Removes a checkpoint, or the remains of one after a crash. A missing one is not an error."""
        ...

    def sizes(self, study: str) -> dict[str, int]:
        """The bytes in each trial's folder of a study, such as `studies/digits-1a2b`, including unfinished
        uploads. Empty if the study has nothing here.
        """
        ...

    def put_file(self, trial: str, name: str, data: bytes) -> None:
        """Stores a small file in a trial's folder, such as `logs/000001.log`, replacing any existing one.

        Raises `OSError` if the store is full or cannot be reached.
        """
        ...

    def read_file(self, trial: str, name: str, start: int, most: int) -> bytes | None:
        """Reads at most this many bytes of a small file: empty beyond its end, None if it does not exist.

        Raises `OSError` if the store cannot be reached.
        """
        ...

    def delete_file(self, trial: str, name: str) -> None:
        """Removes a small file. A missing one is not an error."""
        ...

    def clear(self, trial: str) -> None:
        """Removes a trial's folder and everything in it. A missing one is not an error."""
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
