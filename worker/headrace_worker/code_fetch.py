"""Fetches the code of a study from a scheduler: any replica that answers."""

import asyncio
from typing import BinaryIO

import grpc

from headrace.code.archive import ARCHIVE_BYTES
from headrace.error_status import from_rpc_error
from headrace.errors import CodeNotFoundError, InvalidFieldError
from headrace.target import Target
from headrace.v1 import code_pb2, code_pb2_grpc
from headrace_worker.code_cache import UnpreparedError
from headrace_worker.reach import Joined
from headrace_worker.session import channel_to, turns_after

_TIMEOUT_S = 600.0
_PASSING = frozenset(
    {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED}
)


class CodeFetcher:
    """Asks the schedulers of one target."""

    def __init__(self, target: Target | Joined) -> None:
        self._target = target

    async def __call__(self, digest: str, file: BinaryIO) -> None:
        """Writes the archive of a digest. Raises `UnpreparedError` if the schedulers do not keep it,
        `ConnectionError` if none answers, and `OSError` for other failures."""
        replica, *_ = turns_after(self._target.replicas)
        try:
            credentials = self._target.credentials()
        except InvalidFieldError as error:
            raise OSError(str(error)) from error
        async with channel_to(replica, credentials) as channel:
            stub = code_pb2_grpc.CodeServiceStub(channel)
            received = 0
            try:
                async for piece in stub.GetCode(code_pb2.GetCodeRequest(digest=digest), timeout=_TIMEOUT_S):
                    received += len(piece.data)
                    if received > ARCHIVE_BYTES:
                        raise OSError(f"it has more than {ARCHIVE_BYTES} bytes")
                    await asyncio.to_thread(file.write, piece.data)
            except grpc.aio.AioRpcError as error:
                failure = from_rpc_error(error)
                if isinstance(failure, CodeNotFoundError):
                    raise UnpreparedError(str(failure)) from None
                kind = ConnectionError if error.code() in _PASSING else OSError
                raise kind(f"scheduler {replica}: {failure}") from None
