"""WorkerService: opens a session for each worker that calls."""

import asyncio
import logging
from collections.abc import AsyncIterator

import grpc
from grpc.aio import ServicerContext

from headrace import bounds
from headrace.ages import Ages
from headrace.errors import (
    DrainingError,
    HeadraceError,
    InvalidFieldError,
    VersionMismatchError,
    Violation,
)
from headrace.protocol import SPOKEN, Spoken, why_not
from headrace.v1 import worker_pb2, worker_pb2_grpc
from headrace_services.identity.shown import certificate_of
from headrace_services.scheduler.engine.hub import Hub
from headrace_services.scheduler.session import messages
from headrace_services.scheduler.session.certificates import certified, identified
from headrace_services.scheduler.session.heartbeats import Heartbeats
from headrace_services.scheduler.session.known_studies import KnownStudies
from headrace_services.scheduler.session.loads import Loads
from headrace_services.scheduler.session.outgoing import SlowWorkerError, StreamBrokeError
from headrace_services.scheduler.session.proofs import Proofs
from headrace_services.scheduler.session.registry import Registry
from headrace_services.scheduler.session.worker_session import SupersededError, Timing, WorkerSession
from headrace_services.scheduler.store import checkpoint_stores, joins, leftovers, lineage, workers
from headrace_services.scheduler.store.database import transaction
from headrace_services.serving.writes import uncut

log = logging.getLogger(__name__)

HELLO_WITHIN_S = 10.0

_ENDS = (SlowWorkerError, StreamBrokeError, SupersededError, HeadraceError)
"""Exceptions that end a session without being a defect; the worker reconnects."""

Context = ServicerContext[worker_pb2.SessionRequest, worker_pb2.SessionResponse]


class WorkerServicer(worker_pb2_grpc.WorkerServiceServicer):
    """The workers' side of the scheduler."""

    def __init__(
        self,
        hub: Hub,
        heartbeats: Heartbeats,
        loads: Loads,
        registry: Registry,
        timing: Timing,
        ages: Ages | None = None,
        *,
        certified: bool = False,
    ) -> None:
        """`certified`: each stream shows a certificate, which identifies the worker."""
        self._hub = hub
        self._heartbeats = heartbeats
        self._loads = loads
        self._registry = registry
        self._timing = timing
        self._certified = certified
        self._ages = ages or Ages()
        self._studies = KnownStudies(hub.engine)
        self._proofs: Proofs | None = None

    # grpc.aio also takes a coroutine that writes to the context, which the stubs do not know.
    async def Session(  # type: ignore[override]  # noqa: N802
        self, request_iterator: AsyncIterator[worker_pb2.SessionRequest], context: Context
    ) -> None:
        """Serve one worker until its stream ends."""
        if self._hub.closing:
            raise DrainingError("this scheduler is shutting down")
        hello = await self._hello(request_iterator)
        bounds.check(worker_pb2.SessionRequest(hello=hello))
        _check_protocol(hello)
        greeting = messages.greeting(hello)
        certificate = certificate_of(context) if self._certified else None
        if certificate is not None:
            async with transaction(self._hub.engine) as conn:
                await identified(conn, greeting, certificate)
        left_s: float | None = None
        with self._registry.greeting(greeting.name):
            proofs = await self._known_proofs()
            await self._look_back(hello, proofs)  # an attempt without a proof is no sign of a restore
            async with transaction(self._hub.engine) as conn:
                if certificate is not None:  # it may have been revoked since
                    greeting, left_s = await identified(conn, greeting, certificate)
                worker_id, number = await workers.greet(conn, greeting, self._timing.lease_ttl_s)
                said = greeting.store
                store = None if said is None else await checkpoint_stores.greet(conn, greeting.name, said)
        session = WorkerSession(
            self._hub,
            self._heartbeats,
            self._loads,
            self._studies,
            proofs,
            self._timing,
            greeting,
            worker_id,
            number,
            store,
        )
        self._registry.add(worker_id, session)
        log.info("worker '%s' connected with %s slots", greeting.name, len(greeting.devices))
        lasts = asyncio.timeout(left_s)  # as long as its certificate is valid; None without one
        try:
            self._hub.wake_waiting_studies()
            async with lasts:
                await session.run(hello, request_iterator, uncut(context.write))
        except TimeoutError:
            if certificate is None or not lasts.expired():
                raise
            raise joins.has_ended(certificate) from None
        except ExceptionGroup as group:
            defects = group.subgroup(lambda error: not isinstance(error, (ExceptionGroup, *_ENDS)))
            if defects is not None:
                raise
            first = group.exceptions[0]
            log.warning("session ended: %s", first)
            if isinstance(first, HeadraceError):
                raise first from group
            if isinstance(first, (SlowWorkerError, StreamBrokeError)):
                # A status would wait behind what the worker does not read, or be lost. The call is dropped.
                raise asyncio.CancelledError from first
            await context.abort(grpc.StatusCode.ABORTED, str(first))
        finally:
            self._registry.remove(worker_id, session)
            log.info("worker '%s' disconnected", greeting.name)
            self._heartbeats.ended(worker_id, number)

    async def _known_proofs(self) -> Proofs:
        if self._proofs is None:
            async with transaction(self._hub.engine) as conn:
                self._proofs = Proofs(await lineage.lease_secret(conn))
        return self._proofs

    async def _look_back(self, hello: worker_pb2.Hello, proofs: Proofs) -> None:
        """Detect a database that was restored from a copy of files, by what a worker holds and can prove."""
        issued = [ref.lease_id for ref in hello.held if proofs.hold(ref)]
        if not issued:
            return
        async with transaction(self._hub.engine) as conn:
            if not await lineage.knows_not(conn, issued):
                return
            await lineage.notice_restore(conn, certain=True)
        log.warning(
            "worker '%s' holds an attempt that this database never issued, so it was restored from a copy: all running "
            "trials resume from their last checkpoints, in new attempts",
            hello.worker,
        )

    async def JudgeFolders(  # noqa: N802
        self,
        request: worker_pb2.JudgeFoldersRequest,
        context: Context,
    ) -> worker_pb2.JudgeFoldersResponse:
        """Say which of a worker's folders may be deleted, or which of their contents."""
        async with transaction(self._hub.engine) as conn:
            if self._certified:
                await certified(conn, context)
            found = await leftovers.judge(conn, request.folders, self._ages)
        return worker_pb2.JudgeFoldersResponse(
            verdicts=[
                worker_pb2.FolderVerdict(
                    folder=one.folder,
                    deleted=one.deleted,
                    checkpoints=one.checkpoints,
                    logs=one.logs,
                    kept=one.kept,
                )
                for one in found
            ]
        )

    async def _hello(self, requests: AsyncIterator[worker_pb2.SessionRequest]) -> worker_pb2.Hello:
        try:
            async with asyncio.timeout(HELLO_WITHIN_S):
                first = await anext(requests)
        except (TimeoutError, StopAsyncIteration):
            first = worker_pb2.SessionRequest()
        if first.WhichOneof("message") != "hello":
            raise InvalidFieldError(
                [Violation(field="hello", message="was not the first message", remedy="Say Hello first.")]
            )
        return first.hello


def _check_protocol(hello: worker_pb2.Hello) -> None:
    """Refuse a worker whose protocol version does not fit this scheduler. Raises VersionMismatchError."""
    theirs = Spoken(newest=hello.protocol, oldest=hello.oldest_protocol, release=hello.version)
    if reason := why_not(SPOKEN, theirs, we="this scheduler", they=f"worker '{hello.worker}'"):
        raise VersionMismatchError(reason)
