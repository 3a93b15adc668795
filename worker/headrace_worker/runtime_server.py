"""TrialRuntimeService: what trials call, over a Unix socket.

Convert, call, convert. A lease that this daemon does not run (any more) is answered with NOT_FOUND: the
process belongs to nobody and should end. What is out of bounds is answered with INVALID_ARGUMENT before anything is
kept of it; a trial that says more at once than a script can is answered with RESOURCE_EXHAUSTED.

All trials share the socket. A connection that does not speak HTTP/2 is closed after a moment, and no call of one trial
waits for another's.
"""

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

import grpc

from headrace.bounds.edge import BoundsInterceptor
from headrace.checkpoints import CheckpointInvalidError
from headrace.errors import LEASE_GONE
from headrace.v1 import runtime_pb2, runtime_pb2_grpc
from headrace_worker.attempt import Attempt
from headrace_worker.bundle import Bundle
from headrace_worker.reports import LeaseOverError, ReportInvalidError, TooManyReportsError
from headrace_worker.turns import TurnInvalidError

# sockaddr_un holds 107 bytes.
_LONGEST_PATH = 100
_PREFIX = "headrace-worker-"
_OPTIONS = (
    # Far more than what is within bounds has.
    ("grpc.max_receive_message_length", 1 << 20),
    ("grpc.max_metadata_size", 16 << 10),
    ("grpc.server_handshake_timeout_ms", 5_000),
    ("grpc.max_concurrent_streams", 64),
)
_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"  # Any: the same for each call's messages


class _Servicer(runtime_pb2_grpc.TrialRuntimeServiceServicer):
    def __init__(self, attempts: Mapping[str, Attempt], bundles: Mapping[str, Bundle]) -> None:
        self._attempts = attempts
        self._bundles = bundles

    async def Attach(  # noqa: N802 - generated for both kinds of server
        self,
        request: runtime_pb2.AttachRequest,
        context: _Context,
    ) -> runtime_pb2.AttachResponse:
        return (await self._attempt(request.lease_id, context)).attach()

    async def Restored(  # noqa: N802 - generated for both kinds of server
        self,
        request: runtime_pb2.RestoredRequest,
        context: _Context,
    ) -> runtime_pb2.RestoredResponse:
        await (await self._attempt(request.lease_id, context)).restored(request)
        return runtime_pb2.RestoredResponse()

    async def Report(  # noqa: N802 - generated for both kinds of server
        self,
        request: runtime_pb2.ReportRequest,
        context: _Context,
    ) -> runtime_pb2.ReportResponse:
        attempt = await self._attempt(request.lease_id, context)
        try:
            decision = await attempt.report(request)
        except (ReportInvalidError, CheckpointInvalidError) as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except TooManyReportsError as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        except LeaseOverError as error:
            await context.abort(grpc.StatusCode.NOT_FOUND, str(error))
        return runtime_pb2.ReportResponse(decision=decision)

    async def Finish(  # noqa: N802 - generated for both kinds of server
        self,
        request: runtime_pb2.FinishRequest,
        context: _Context,
    ) -> runtime_pb2.FinishResponse:
        (await self._attempt(request.lease_id, context)).finish(request)
        return runtime_pb2.FinishResponse()

    async def AttachBundle(  # noqa: N802 - generated for both kinds of server
        self,
        request: runtime_pb2.AttachBundleRequest,
        context: _Context,
    ) -> runtime_pb2.AttachBundleResponse:
        return (await self._bundle(request.grant_id, context)).attach()

    async def Turn(  # noqa: N802 - generated for both kinds of server
        self,
        request: runtime_pb2.TurnRequest,
        context: _Context,
    ) -> runtime_pb2.TurnResponse:
        bundle = await self._bundle(request.grant_id, context)
        try:
            return await bundle.turn(request)
        except TurnInvalidError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except LeaseOverError as error:
            await context.abort(grpc.StatusCode.NOT_FOUND, str(error))

    async def FinishBundle(  # noqa: N802 - generated for both kinds of server
        self,
        request: runtime_pb2.FinishBundleRequest,
        context: _Context,
    ) -> runtime_pb2.FinishBundleResponse:
        (await self._bundle(request.grant_id, context)).finish(request)
        return runtime_pb2.FinishBundleResponse()

    async def _attempt(self, lease_id: str, context: _Context) -> Attempt:
        attempt = self._attempts.get(lease_id)
        if attempt is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"You no longer hold this trial ({LEASE_GONE})")
        if attempt.in_bundle:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"lease_id {lease_id!r} is a member of a bundle: call AttachBundle and Turn with the grant's id",
            )
        return attempt

    async def _bundle(self, grant_id: str, context: _Context) -> Bundle:
        bundle = self._bundles.get(grant_id)
        if bundle is None or not bundle.runs:
            await context.abort(
                grpc.StatusCode.NOT_FOUND, f"grant_id {grant_id!r} is not a bundle that runs here"
            )
        return bundle


class RuntimeServer:
    """Serves while it is entered; the socket lies in a folder of its own that only this user can enter."""

    def __init__(self, attempts: Mapping[str, Attempt], bundles: Mapping[str, Bundle], note: Path) -> None:
        self._servicer = _Servicer(attempts, bundles)
        # Says where the folder is, for the next daemon to remove it if this one cannot.
        self._note = note
        self._folder = Path()
        self._server: grpc.aio.Server | None = None
        self.address = ""

    async def __aenter__(self) -> "RuntimeServer":
        if self._note.exists() and (left := Path(self._note.read_text())).name.startswith(_PREFIX):
            shutil.rmtree(left, ignore_errors=True)
        self._folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        if len(str(self._folder / "rt")) > _LONGEST_PATH:
            self._folder.rmdir()
            self._folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir="/tmp"))
        self._note.write_text(str(self._folder))
        self.address = f"unix:{self._folder / 'rt'}"
        self._server = grpc.aio.server(interceptors=(BoundsInterceptor(),), options=_OPTIONS)
        runtime_pb2_grpc.add_TrialRuntimeServiceServicer_to_server(self._servicer, self._server)
        self._server.add_insecure_port(self.address)
        await self._server.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            await self._server.stop(grace=0.5)
        shutil.rmtree(self._folder, ignore_errors=True)
        self._note.unlink(missing_ok=True)
