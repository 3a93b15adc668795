"""Checkpoints in S3, or in any store with the same protocol.

S3 has no rename, so only the manifest makes a checkpoint visible: the files are uploaded first, large ones in
parts, and the manifest only when all of them are there. Deletion removes the manifest first. An upload that a
crash cut short is not visible; the daemon remembers its own unfinished uploads and deletes them when it
restarts. (Parts of an unfinished multipart upload are left to the bucket to expire: set the usual lifecycle
rule.)
"""

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

import obstore
from obstore.exceptions import BaseError, NotFoundError
from obstore.store import S3Store as ObjectStore

from headrace.checkpoints.errors import (
    CheckpointCorruptError,
    CheckpointError,
    CheckpointGoneError,
    CheckpointMissingError,
    StoreUnavailableError,
)
from headrace.checkpoints.manifest import (
    CHUNK_BYTES,
    MANIFEST,
    CheckpointMeta,
    Manifest,
    entry_of,
    local_files,
    parse_manifest,
    write_verified,
)
from headrace.checkpoints.marker import MARKER, Marked
from headrace.errors import InvalidFieldError, Violation
from headrace.hidden import without_credentials
from headrace.v1 import trial_pb2

_ANSWER = {name: re.compile(rf"<{name}>([^<]{{1,500}})</{name}>") for name in ("Code", "Message")}
# The daemon retries by itself and says so. Long silent retries at this level would hide the problem.
_RETRIES = 2
_TIMEOUT_S = 30


class S3Store(Marked):
    """A `CheckpointStore` below one prefix of one bucket."""

    def __init__(self, bucket: str, prefix: str = "") -> None:
        endpoint = _endpoint()
        self._bucket = bucket
        self._prefix = prefix.strip("/")
        self._objects = ObjectStore(
            bucket,
            client_options={
                "allow_http": endpoint.startswith("http://"),
                "timeout": timedelta(seconds=_TIMEOUT_S),
            },
            retry_config={
                "max_retries": _RETRIES,
                "retry_timeout": timedelta(seconds=_TIMEOUT_S),
                "backoff": {
                    "init_backoff": timedelta(milliseconds=100),
                    "max_backoff": timedelta(seconds=2),
                    "base": 2,
                },
            },
            config={"endpoint": endpoint} if endpoint else {},
        )

    @property
    def url(self) -> str:
        """The bucket and prefix as a URL."""
        return f"s3://{self._bucket}/{quote(self._prefix)}".rstrip("/")

    @property
    def folder(self) -> None:
        """None: this store is not a folder."""
        return

    def uri(self, trial: str, name: str) -> str:
        """The URI of a checkpoint."""
        return f"s3://{self._bucket}/{quote(self._key(trial, name))}/"

    def put(self, local_dir: Path, meta: CheckpointMeta) -> trial_pb2.CheckpointRef:
        """Uploads a folder; see `CheckpointStore.put`."""
        began = time.monotonic()
        folder = self._key(meta.trial, meta.name)
        entries = []
        self.require()
        with self._reaching():
            for relative, source in local_files(local_dir):
                entries.append(entry_of(relative, source))
                obstore.put(self._objects, f"{folder}/{relative}", source)
            write_time_s = meta.save_time_s + time.monotonic() - began
            manifest = Manifest.of(meta, tuple(entries), write_time_s)
            obstore.put(self._objects, f"{folder}/{MANIFEST}", manifest.to_bytes())
        return manifest.to_ref(self.uri(meta.trial, meta.name))

    def fetch(self, ref: trial_pb2.CheckpointRef, local_dir: Path) -> Manifest:
        """Downloads and verifies a checkpoint; see `CheckpointStore.fetch`."""
        folder = self._folder(ref.uri)
        with self._reaching():
            gone = CheckpointGoneError(f"checkpoint {ref.uri} is not there: no {MANIFEST}")
            data = b"".join(self._stream(f"{folder}/{MANIFEST}", gone))
            manifest = parse_manifest(data, ref)
            local_dir.mkdir(parents=True)
            for entry in manifest.files:
                lacking = CheckpointCorruptError(f"checkpoint {ref.uri}: {entry.path} is missing")
                body = self._stream(f"{folder}/{entry.path}", lacking)
                write_verified(body, local_dir / entry.path, entry, ref.uri)
        return manifest

    def studies(self) -> list[str]:
        """The folders of studies; see `CheckpointStore.studies`."""
        if not (found := self._studies()):
            self.require()
        return found

    def _studies(self) -> list[str]:
        with self._reaching():
            found = obstore.list_with_delimiter(self._objects, prefix=self._key("studies"))
        return sorted(path.rstrip("/").rsplit("/", 1)[-1] for path in found["common_prefixes"])

    def list(self, trial: str) -> list[str]:
        """Lists the complete checkpoints, oldest first."""
        prefix = self._key(trial)
        found = set()
        with self._reaching():
            for page in obstore.list(self._objects, prefix=prefix + "/"):
                for item in page:
                    parts = item["path"].removeprefix(prefix + "/").split("/")
                    if len(parts) == 2 and parts[1] == MANIFEST:
                        found.add(parts[0])
        if not found:
            self.require()
        return sorted(found)

    def delete(self, uri: str) -> None:
        """Removes a checkpoint, its manifest first, or a half-uploaded one."""
        self._delete_below(self._folder(uri))

    def sizes(self, study: str) -> dict[str, int]:
        """The bytes by trial; see `CheckpointStore.sizes`."""
        prefix = self._key(study, "trials") + "/"
        found: dict[str, int] = {}
        with self._reaching():
            for page in obstore.list(self._objects, prefix=prefix):
                for item in page:
                    number = item["path"].removeprefix(prefix).split("/")[0]
                    trial = f"{study}/trials/{number}"
                    found[trial] = found.get(trial, 0) + item["size"]
        if not found:
            self.require()
        return found

    def put_file(self, trial: str, name: str, data: bytes) -> None:
        """Stores a small file; see `CheckpointStore.put_file`."""
        self.require()
        with self._reaching():
            obstore.put(self._objects, self._key(trial, name), data)

    def read_file(self, trial: str, name: str, start: int, most: int) -> bytes | None:
        """Reads part of a small file; see `CheckpointStore.read_file`."""
        key = self._key(trial, name)
        with self._reaching():
            try:
                end = min(start + most, obstore.head(self._objects, key)["size"])
                if end <= start:
                    return b""
                return bytes(obstore.get_range(self._objects, key, start=start, end=end))
            except (NotFoundError, FileNotFoundError):
                self.require()
                return None

    def delete_file(self, trial: str, name: str) -> None:
        """Removes a small file."""
        self.require()
        with self._reaching(), suppress(NotFoundError, FileNotFoundError):
            obstore.delete(self._objects, self._key(trial, name))

    def clear(self, trial: str) -> None:
        """Removes a trial's folder, manifests first; see `CheckpointStore.clear`."""
        self._delete_below(self._key(trial))

    def _delete_below(self, folder: str) -> None:
        self.require()
        with self._reaching():
            paths = [
                item["path"] for page in obstore.list(self._objects, prefix=folder + "/") for item in page
            ]
            for path in sorted(paths, key=lambda path: not path.endswith(f"/{MANIFEST}")):
                obstore.delete(self._objects, path)

    def _stream(self, key: str, absent: CheckpointError) -> Iterator[bytes]:
        """Reads an object; raises `absent` if it does not exist although the store is available."""
        body = self._got(key)
        if body is None:
            self.require()
            body = self._got(key)  # the store may have come back in between
        if body is None:
            raise absent
        for chunk in body.stream(min_chunk_size=CHUNK_BYTES):
            yield bytes(chunk)

    def _got(self, key: str) -> "obstore.GetResult | None":
        with suppress(NotFoundError, FileNotFoundError):
            return obstore.get(self._objects, key)
        return None

    def _read_marker(self) -> bytes | None:
        with self._reaching():
            found = self._got(self._key(MARKER))
            return None if found is None else bytes(found.bytes())

    def _write_marker(self, content: bytes) -> None:
        with self._reaching():
            obstore.put(self._objects, self._key(MARKER), content)

    def _has_studies(self) -> bool:
        return bool(self._studies())

    def _key(self, *parts: str) -> str:
        return "/".join(part for part in (self._prefix, *parts) if part)

    def _folder(self, uri: str) -> str:
        parts = urlsplit(uri)
        folder = unquote(parts.path).strip("/")
        inside = not self._prefix or folder.startswith(self._prefix + "/")
        if parts.scheme != "s3" or parts.netloc != self._bucket or not inside or ".." in folder.split("/"):
            raise CheckpointMissingError(f"checkpoint {uri} is not in the store {self.url}")
        return folder

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except BaseError as error:
            # Not `from error`: its text contains the whole response.
            raise StoreUnavailableError(f"store {self.url} does not answer: {_said(str(error))}") from None


def _said(text: str) -> str:
    """An error's text without credentials. Services repeat session tokens and key ids in their responses, and an
    endpoint's address may contain a password. Of a response, only its code and message are kept.
    """
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    call, status, answer = first.partition("status code: ")
    parts = [f"{call}{status}{answer.partition(':')[0]}"]
    parts += [found[1] for name in ("Code", "Message") if (found := _ANSWER[name].search(text))]
    return without_credentials(": ".join(parts))


def _endpoint() -> str:
    """The service's address; empty for Amazon's. Raises InvalidFieldError if a variable is unusable, because the
    library would panic on it.
    """
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        if not os.environ.get(name, "").isprintable():
            raise _fault(name, "holds a line break or another character that is none of a credential")
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"):
        if endpoint := os.environ.get(name, ""):
            try:
                sound = bool(urlsplit(endpoint).hostname) and endpoint.isprintable()
            except ValueError:
                sound = False
            if not sound:
                raise _fault(name, "is not an address such as http://minio.internal:9000")
            return endpoint
    return ""


def _fault(name: str, message: str) -> InvalidFieldError:
    return InvalidFieldError([Violation(field=name, message=message, remedy="Set it again.")])
