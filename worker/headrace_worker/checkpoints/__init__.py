"""Where checkpoints live: a protocol, a store on a directory, a store on S3.

A checkpoint is a folder of files plus `manifest.json`, which is written last and holds every file's
SHA-256 and size. A folder without a manifest is not a checkpoint: it is an upload that has not ended,
or never will. The reference that travels through the scheduler holds the manifest's own SHA-256, so a
reader that starts from the reference can tell a right checkpoint from a corrupted one without trusting
the store.

`put` returns only when the checkpoint is durable, may be repeated under the same name, and leaves
nothing visible when it fails. `delete` removes the manifest's visibility first. Names sort by age.

Implementations block; the daemon calls them through `asyncio.to_thread`.
"""

from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from headrace.v1 import trial_pb2
from headrace_worker.checkpoints.errors import (
    CheckpointCorruptError,
    CheckpointError,
    CheckpointInvalidError,
    CheckpointMissingError,
    StoreUnavailableError,
)
from headrace_worker.checkpoints.manifest import CheckpointMeta, Manifest

__all__ = [
    "CheckpointCorruptError",
    "CheckpointError",
    "CheckpointInvalidError",
    "CheckpointMeta",
    "CheckpointMissingError",
    "CheckpointStore",
    "Manifest",
    "StoreUnavailableError",
    "store_from_url",
]


class CheckpointStore(Protocol):
    """Durable checkpoints by trial and name. Every method blocks and is safe to repeat."""

    @property
    def url(self) -> str:
        """Where the store lies, as the user gave it."""
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

        Raises `CheckpointMissingError`, `CheckpointCorruptError`, or `OSError` where the store cannot be reached.
        """
        ...

    def list(self, trial: str) -> list[str]:
        """Names the trial's complete checkpoints, oldest first."""
        ...

    def delete(self, uri: str) -> None:
        """Removes a checkpoint, or what a crash left of one; a missing one is no error."""
        ...


def store_from_url(url: str) -> CheckpointStore:
    """Opens `file:///…` (or a plain absolute path) or `s3://bucket/prefix`.

    S3 takes its credentials, region and endpoint from the usual `AWS_*` variables.
    Raises `ValueError` for any other URL.
    """
    parts = urlsplit(url)
    match parts.scheme:
        case "file" if parts.netloc in {"", "localhost"} and parts.path.startswith("/"):
            from headrace_worker.checkpoints.directory import DirectoryStore

            return DirectoryStore(Path(unquote(parts.path)))
        case "" if url.startswith("/"):
            from headrace_worker.checkpoints.directory import DirectoryStore

            return DirectoryStore(Path(url))
        case "s3" if parts.netloc:
            from headrace_worker.checkpoints.s3 import S3Store

            return S3Store(parts.netloc, unquote(parts.path).strip("/"))
        case _:
            raise ValueError(
                f"store {url!r} is not a checkpoint store; give file:///DIR or s3://BUCKET/PREFIX"
            )
