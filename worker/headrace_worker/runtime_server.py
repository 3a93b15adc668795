"""TrialRuntimeService: what trials call, over a Unix socket.

Convert, call, convert. A lease that this daemon does not run (any more) is answered with NOT_FOUND: the process
belongs to nobody and should exit. A request that is out of bounds is answered with INVALID_ARGUMENT before any of
it is kept. A trial that makes more concurrent calls than a script can is answered with RESOURCE_EXHAUSTED.

All trials share the socket, and the kernel says which process calls (`callers`). A process that was not given the
lease, and does not descend from one that was, is answered with PERMISSION_DENIED. A connection that does not speak
HTTP/2 is closed after a moment, and no call of one trial waits for another's.

A socket that was deleted is made again (`keep`), at the same path if that is free. Existing connections stay.
"""

import asyncio
import logging
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
from headrace_worker.callers import Callers, descends, may_speak
from headrace_worker.reports import LeaseOverError, ReportInvalidError, TooManyReportsError
from headrace_worker.run_as import OtherUser, pass_through
from headrace_worker.socket_folder import SOCKET, Owner, SocketFolder, delete_left, machine
from headrace_worker.turns import TurnInvalidError

log = logging.getLogger(__name__)
_STARTING_S = 0.01
_STARTING_LOOKS = 500
_TOLD = 100
_OPTIONS = (
    # Far more than a request within bounds has.
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
        attempt = await self._attempt(request.lease_id, context)
        caller = self._callers.of(context.peer())
        if caller is not None:
            attempt.speakers.asks(caller.pid, promises=request.finishes)
            if request.stack_signal:
                attempt.stacks[caller.pid] = request.stack_signal
        return attempt.attach()

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
        if (caller := self._callers.of(context.peer())) is not None:
            attempt.speakers.reports(caller.pid)
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
        attempt = await self._attempt(request.lease_id, context)
        caller = self._callers.of(context.peer())
        attempt.finish(request, caller.pid if caller is not None else None)
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
        """Rejects a process that the lease was not given to."""
        caller = self._callers.of(context.peer())
        if caller is not None and host.leader and descends(caller, [host.leader]):
            return
        hosts = {*(attempt.host for attempt in self._attempts.values()), *self._bundles.values()}
        others = {one.leader for one in hosts if one is not host and one.leader}
        if caller is not None and not descends(caller, others):
            for _ in range(_STARTING_LOOKS):  # the program may call before its start is recorded
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
    """Serves inside the `async with` block. The socket is in a folder of its own that only this user can enter."""

    def __init__(
        self,
        attempts: Mapping[str, Attempt],
        bundles: Mapping[str, Bundle],
        note: Path,
        owner: Owner,
        user: OtherUser | None = None,
    ) -> None:
        """`note` records where the folder is, so that the next daemon can remove it if this one cannot. `user` is
        the user that trials run as, if it is not the daemon's user."""
        self._user = user
        self._callers = Callers()
        self._servicer = _Servicer(attempts, bundles, self._callers)
        self._note = note
        self._owner = owner
        self._folder = SocketFolder(owner, for_other_users=user is not None)
        # The last one gets the new connections. Earlier connections keep theirs, as gRPC binds a server only once.
        self._servers: list[grpc.aio.Server] = []
        self._left = ""

    @property
    def address(self) -> str:
        """Where trials find the socket."""
        return f"unix:{self._folder.path / SOCKET}"

    async def keep(self) -> None:
        """Makes again what is gone of the socket and its folder. Raises `OSError`."""
        if not self._folder.is_there:
            before = self._folder.path
            log.warning("the socket for trials in %s is gone, and is created again", before)
            await self._open()
        if not self._note.exists():
            self._note.write_text(self._folder.said())

    def clear_up(self) -> None:
        """Deletes the previous daemon's folder, if it is that daemon's and the daemon is dead. Safe in any thread."""
        delete_left(self._left, self._owner.home)

    async def __aenter__(self) -> "RuntimeServer":
        self._left = self._note.read_text(errors="replace") if self._note.exists() else ""
        await self._open()
        self._note.write_text(self._folder.said())
        return self

    async def _open(self) -> None:
        self._folder.make()
        inner = f"in{len(self._servers) or ''}"  # a separate name: a server removes its path when it ends
        server = grpc.aio.server(interceptors=(BoundsInterceptor(),), options=_OPTIONS)
        runtime_pb2_grpc.add_TrialRuntimeServiceServicer_to_server(self._servicer, server)
        folder = self._folder.path
        try:
            server.add_insecure_port(f"unix:{folder / inner}")
        except RuntimeError as error:
            raise OSError(f"no socket can be made in {folder}: {error}") from None
        await server.start()
        self._servers.append(server)
        await self._callers.listen(folder / SOCKET, folder / inner)
        if self._user is not None:
            self._user.give(folder / SOCKET)
            pass_through(folder)
        self._folder.note(SOCKET, inner)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.gather(*(server.stop(grace=0.5) for server in self._servers))
        await self._callers.close()
        self._folder.delete()
        self._note.unlink(missing_ok=True)


def owner_of(home: str, instance: str) -> Owner:
    """Identifies the owner of a folder that this daemon makes."""
    return Owner(home=home, instance=instance, machine=machine())
