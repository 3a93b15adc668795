"""TrialRuntimeService: what trials call, over a Unix socket.

Convert, call, convert. A lease that this daemon does not run (any more) is answered with NOT_FOUND: the
process belongs to nobody and should end. What is out of bounds is answered with INVALID_ARGUMENT before anything is
kept of it; a trial that says more at once than a script can is answered with RESOURCE_EXHAUSTED.

All trials share the socket, and the kernel says which process calls (`callers`). A process that a lease was not given
to, and that does not descend from such a one, is answered with PERMISSION_DENIED. A connection that does not speak
HTTP/2 is closed after a moment, and no call of one trial waits for another's.
"""

import asyncio
import logging
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
from headrace.sources import SourceFile
from headrace.v1 import runtime_pb2, runtime_pb2_grpc
from headrace_worker.attempt import Attempt, Host
from headrace_worker.bundle import Bundle
from headrace_worker.callers import Callers, may_speak
from headrace_worker.reports import LeaseOverError, ReportInvalidError, TooManyReportsError
from headrace_worker.run_as import OtherUser, pass_through
from headrace_worker.turns import TurnInvalidError

log = logging.getLogger(__name__)
_STARTING_S = 0.01
_STARTING_LOOKS = 500
_TOLD = 100
# sockaddr_un holds 107 bytes.
_LONGEST_PATH = 100
_PREFIX = "headrace-worker-"
_FOR_ALL = "/tmp"  # noqa: S108 - the folder that is made in it is new, and root's
_OPTIONS = (
    # Far more than what is within bounds has.
    ("grpc.max_receive_message_length", 1 << 20),
    ("grpc.max_metadata_size", 16 << 10),
    ("grpc.server_handshake_timeout_ms", 5_000),
    ("grpc.max_concurrent_streams", 64),
)
_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"  # Any: the same for each call's messages


class _Servicer(runtime_pb2_grpc.TrialRuntimeServiceServicer):
    def __init__(
        self, attempts: Mapping[str, Attempt], bundles: Mapping[str, Bundle], callers: Callers
    ) -> None:
        self._attempts = attempts
        self._bundles = bundles
        self._callers = callers
        self._told: set[str] = set()

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

    async def Loaded(  # noqa: N802 - generated for both kinds of server
        self,
        request: runtime_pb2.LoadedRequest,
        context: _Context,
    ) -> runtime_pb2.LoadedResponse:
        files = [SourceFile(file.path, file.digest) for file in request.files]
        if request.grant_id:
            await (await self._bundle(request.grant_id, context)).loaded(files)
        else:
            await (await self._attempt(request.lease_id, context)).loaded(files)
        return runtime_pb2.LoadedResponse()

    async def AttachBundle(  # noqa: N802 - generated for both kinds of server
        self,
        request: runtime_pb2.AttachBundleRequest,
        context: _Context,
    ) -> runtime_pb2.AttachBundleResponse:
        return await (await self._bundle(request.grant_id, context)).attach()

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
            await context.abort(grpc.StatusCode.NOT_FOUND, f"You no longer hold this trial: {LEASE_GONE}")
        if attempt.in_bundle:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"lease_id {lease_id!r} is a member of a bundle: call AttachBundle and Turn with the grant's id",
            )
        await self._check_caller(attempt.host, f"lease {lease_id!r}", context)
        return attempt

    async def _bundle(self, grant_id: str, context: _Context) -> Bundle:
        bundle = self._bundles.get(grant_id)
        if bundle is None or not bundle.runs:
            await context.abort(
                grpc.StatusCode.NOT_FOUND, f"grant_id {grant_id!r} is not a bundle that runs here"
            )
        await self._check_caller(bundle, f"grant {grant_id!r}", context)
        return bundle

    async def _check_caller(self, host: Host, what: str, context: _Context) -> None:
        """Refuses a process that the lease was not given to."""
        caller = self._callers.of(context.peer())
        hosts = {*(attempt.host for attempt in self._attempts.values()), *self._bundles.values()}
        others = {one.leader for one in hosts if one is not host and one.leader}
        if caller is not None and caller.family.isdisjoint(others):
            for _ in range(_STARTING_LOOKS):  # the program may be faster than its start is noted
                if host.leader:
                    break
                await asyncio.sleep(_STARTING_S)
        leader = host.leader
        if (
            caller is None
            or not leader
            or not may_speak(caller, leader=leader, mark=host.mark, others=others)
        ):
            who = "it" if caller is None else f"process {caller.pid}"
            if who not in self._told:
                self._told = {*self._told, who} if len(self._told) < _TOLD else {who}
                log.warning("%s calls for %s, which is not its own", who, what)
            await context.abort(
                grpc.StatusCode.PERMISSION_DENIED,
                f"{what} is not this process's: {who} does not descend from the process that it was given to",
            )


class RuntimeServer:
    """Serves while it is entered; the socket lies in a folder of its own that only this user can enter."""

    def __init__(
        self,
        attempts: Mapping[str, Attempt],
        bundles: Mapping[str, Bundle],
        note: Path,
        user: OtherUser | None = None,
    ) -> None:
        """`user`: whom trials run as, where they are not the daemon's user."""
        self._user = user
        self._callers = Callers()
        self._servicer = _Servicer(attempts, bundles, self._callers)
        # Says where the folder is, for the next daemon to remove it if this one cannot.
        self._note = note
        self._folder = Path()
        self._server: grpc.aio.Server | None = None
        self.address = ""

    async def __aenter__(self) -> "RuntimeServer":
        if self._note.exists() and (left := Path(self._note.read_text())).name.startswith(_PREFIX):
            shutil.rmtree(left, ignore_errors=True)
        self._folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_FOR_ALL if self._user else None))
        if len(str(self._folder / "rt")) > _LONGEST_PATH:
            self._folder.rmdir()
            self._folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir="/tmp"))
        self._note.write_text(str(self._folder))
        self.address = f"unix:{self._folder / 'rt'}"
        self._server = grpc.aio.server(interceptors=(BoundsInterceptor(),), options=_OPTIONS)
        runtime_pb2_grpc.add_TrialRuntimeServiceServicer_to_server(self._servicer, self._server)
        self._server.add_insecure_port(f"unix:{self._folder / 'in'}")
        await self._server.start()
        await self._callers.listen(self._folder / "rt", self._folder / "in")
        if self._user is not None:
            self._user.give(self._folder / "rt")
            pass_through(self._folder)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            await self._server.stop(grace=0.5)
        await self._callers.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._note.unlink(missing_ok=True)
