"""CodeService: receives the code of studies from clients, and serves it to workers.

An archive is checked against its digest before it is stored, so no worker gets one that a study did not ask for.
Until then it is in a temporary file, because it may have 100 MiB.

A project sees only the code that it shipped itself. If another project has shipped the same code, it is received
again, checked and dropped: the upload shows that this project has it too.

The service is on both listeners. A call on the listener for workers comes from a worker, so it may only fetch: the
code of studies whose trials it runs now, with a certificate that was not revoked. Users may fetch nothing. Workers
may not fetch on the users' listener, unless workers have no certificates (`Serves`).
"""
# ruff: noqa: ARG002  (every method takes the call's context)

import asyncio
import tempfile
from collections.abc import AsyncIterator
from enum import Enum, auto
from typing import BinaryIO

from sqlalchemy.ext.asyncio import AsyncEngine

from headrace.errors import (
    CodeNotFoundError,
    InvalidFieldError,
    PermissionDeniedError,
    Violation,
    WorkerIdentityError,
)
from headrace.spec.code import DIGEST
from headrace.v1 import code_pb2 as pb
from headrace.v1.code_pb2_grpc import CodeServiceServicer
from headrace_services.identity.shown import certificate_of
from headrace_services.scheduler.rpc.caller import caller
from headrace_services.scheduler.rpc.calls import Context
from headrace_services.scheduler.rpc.uploads import Upload, Uploads
from headrace_services.scheduler.store import code, joins
from headrace_services.scheduler.store.database import transaction


class Serves(Enum):
    """The kind of callers."""

    USERS = auto()
    """Only users: workers have certificates, or every caller needs a token."""
    WORKERS = auto()
    """Workers, identified by their certificates."""
    ALL = auto()
    """Both: callers are not identified."""


class CodeServicer(CodeServiceServicer):
    """The calls of clients and workers."""

    def __init__(self, engine: AsyncEngine, serves: Serves = Serves.ALL) -> None:
        self._engine = engine
        self._serves = serves
        self._uploads = Uploads()

    async def HasCode(self, request: pb.HasCodeRequest, context: Context) -> pb.HasCodeResponse:
        """Whether a code of the caller's project is stored; if so, it is kept for a while."""
        self._for_users()
        digest = _digest(request.digest)
        async with transaction(self._engine) as conn:
            return pb.HasCodeResponse(present=await code.touch(conn, digest, caller().project))

    async def PutCode(
        self, request_iterator: AsyncIterator[pb.PutCodeRequest], context: Context
    ) -> pb.PutCodeResponse:
        """Store an archive."""
        self._for_users()
        project = caller().project
        async with self._uploads.opened(project, request_iterator) as upload:
            first = await upload.next()
            digest = _digest(first.digest if first is not None else "")
            async with transaction(self._engine) as conn:
                await code.require_room(conn, digest, project, size_bytes=0)
            async with upload.place():
                await self._receive(upload, first, digest, project)
        return pb.PutCodeResponse()

    async def _receive(
        self, upload: Upload, first: pb.PutCodeRequest | None, digest: str, project: str
    ) -> None:
        from headrace.code import CodeCorruptError, verify  # only those who ship code need this

        with tempfile.TemporaryFile() as file:
            size_bytes = await _received(upload, first, file)
            file.seek(0)
            try:
                await asyncio.to_thread(verify, file, digest)
            except CodeCorruptError as error:
                raise _refused("data", f"is not the archive of this digest: {error}") from None
            file.seek(0)
            async with transaction(self._engine) as conn:
                await code.put(conn, digest, project, size_bytes, _chunks(file))

    async def GetCode(
        self, request: pb.GetCodeRequest, context: Context
    ) -> AsyncIterator[pb.GetCodeResponse]:
        """Serve an archive. Each chunk is a transaction of its own: a slow worker keeps none open."""
        digest = _digest(request.digest)
        if self._serves is Serves.USERS:
            raise WorkerIdentityError(
                "code is given to workers alone, by their certificates",
                remedy="Let the worker join (`headrace worker --join`), and call the listener for workers.",
            )
        if self._serves is Serves.WORKERS:
            shown = certificate_of(context)
            async with transaction(self._engine) as conn:
                await joins.check(conn, shown)
                if not await code.is_run_by(conn, digest, shown.worker):
                    raise PermissionDeniedError(
                        f"worker '{shown.worker}' runs no trial of a study with the code {digest[:12]}",
                        remedy="A worker gets the code of the trials that it is given, while it runs them.",
                    )
        number = 0
        while True:
            async with transaction(self._engine) as conn:
                data = await code.chunk(conn, digest, number)
            if data is None:
                break
            yield pb.GetCodeResponse(data=data)
            number += 1
        if not number:
            raise CodeNotFoundError(f"the code {digest[:12]} is not kept here")

    def _for_users(self) -> None:
        if self._serves is Serves.WORKERS:
            raise WorkerIdentityError(
                "workers fetch code, and ship none", remedy="Call the users' listener with an editor's token."
            )


async def _received(upload: Upload, first: pb.PutCodeRequest | None, file: BinaryIO) -> int:
    """Write all pieces to the file; return the number of bytes."""
    from headrace.code.archive import ARCHIVE_BYTES  # only those who ship code need this

    size_bytes, message = 0, first
    while message is not None:
        size_bytes += len(message.data)
        if size_bytes > ARCHIVE_BYTES:
            raise _refused("data", f"has more than {ARCHIVE_BYTES} bytes")
        await asyncio.to_thread(file.write, message.data)
        message = await upload.next()
    return size_bytes


async def _chunks(file: BinaryIO) -> AsyncIterator[bytes]:
    while data := await asyncio.to_thread(file.read, code.CHUNK_BYTES):
        yield data


def _digest(text: str) -> str:
    if DIGEST.fullmatch(text):
        return text
    raise _refused("digest", "is not a SHA-256 in hex", value=repr(text[:80]))


def _refused(field: str, message: str, *, value: str = "") -> InvalidFieldError:
    remedy = "Let `headrace run` or the Python client ship the folder."
    return InvalidFieldError([Violation(field=field, value=value, message=message, remedy=remedy)])
