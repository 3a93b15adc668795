"""Calls on workers and their devices: drain, cordon, and their reversals."""
# ruff: noqa: ARG002  (every method takes the call's context)

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from google.protobuf.message import Message
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace.errors import InvalidFieldError, Violation, WorkerLeavesError, WorkerNotFoundError
from headrace.v1 import study_pb2 as pb
from headrace_services.scheduler.rpc import convert, names
from headrace_services.scheduler.rpc.caller import caller
from headrace_services.scheduler.rpc.calls import Calls, Context, identity_of, once
from headrace_services.scheduler.store import cluster, machines, workers
from headrace_services.scheduler.store.machines import CORDON, DRAIN, Found

log = logging.getLogger(__name__)

Answer = TypeVar("Answer", bound=Message)
Machine = (
    pb.DrainWorkerRequest | pb.UndrainWorkerRequest | pb.CordonDevicesRequest | pb.UncordonDevicesRequest
)
Work = Callable[[AsyncConnection, Found], Awaitable[None]]


class MachineCalls(Calls):
    """Calls about workers."""

    async def DrainWorker(self, request: pb.DrainWorkerRequest, context: Context) -> pb.DrainWorkerResponse:
        """Empty a worker: nothing starts there, and its trials leave at their next reports."""
        grace_s = None
        if request.HasField("grace"):
            grace_s = request.grace.seconds + request.grace.nanos / 1e9

        async def drain(conn: AsyncConnection, found: Found) -> None:
            await machines.hold(conn, found.id, DRAIN, reason=request.reason, grace_s=grace_s)

        return await self._change_worker(request, pb.DrainWorkerResponse, drain)

    async def UndrainWorker(
        self, request: pb.UndrainWorkerRequest, context: Context
    ) -> pb.UndrainWorkerResponse:
        """Undo DrainWorker. Do nothing if the worker is not drained."""

        async def undrain(conn: AsyncConnection, found: Found) -> None:
            if found.leaving and found.heard_of:
                raise WorkerLeavesError(
                    f"worker '{names.parse_worker(request.worker)}' is draining on its own: {found.leaving}"
                )
            if found.hold == DRAIN:
                await machines.release(conn, found.id)

        return await self._change_worker(request, pb.UndrainWorkerResponse, undrain)

    async def CordonDevices(
        self, request: pb.CordonDevicesRequest, context: Context
    ) -> pb.CordonDevicesResponse:
        """Let nothing new start on a worker or some of its devices."""

        async def cordon(conn: AsyncConnection, found: Found) -> None:
            if request.devices:
                await _require_devices(conn, found, request.worker, request.devices)
                await machines.cordon(conn, found.id, request.devices, request.reason)
            elif found.hold != DRAIN:  # a drain keeps off more
                await machines.hold(conn, found.id, CORDON, reason=request.reason)

        return await self._change_worker(request, pb.CordonDevicesResponse, cordon)

    async def UncordonDevices(
        self, request: pb.UncordonDevicesRequest, context: Context
    ) -> pb.UncordonDevicesResponse:
        """Undo CordonDevices, and treat failed devices as sound again."""

        async def uncordon(conn: AsyncConnection, found: Found) -> None:
            if request.devices:
                await _require_devices(conn, found, request.worker, request.devices)
            elif found.hold == CORDON:
                await machines.release(conn, found.id)
            await machines.uncordon(conn, found.id, request.devices)

        return await self._change_worker(request, pb.UncordonDevicesResponse, uncordon)

    async def _change_worker(self, request: Machine, answer: type[Answer], work: Work) -> Answer:
        """Change a worker's row or devices once, and notify the session that it is connected to."""
        name = names.parse_worker(request.worker)
        changed = False

        async def change(conn: AsyncConnection) -> Answer:
            found = await machines.find(conn, name)
            if found is None:
                raise WorkerNotFoundError(f"there is no worker '{name}'")
            nonlocal changed
            changed = True
            await work(conn, found)
            await workers.notify(conn, [found.id])
            [view] = await cluster.workers(conn, [cluster.Key(name=name, slots=0)], project=caller().project)
            return answer(worker=convert.worker(view))

        response = await once(self.hub.engine, identity_of(request, request.request_id), change)
        if changed:
            log.info("worker '%s': %s", name, _told(request))
        self.hub.wake_waiting_studies()
        return answer.FromString(response)


def _told(request: Machine) -> str:
    """What was requested, by whom and why, for the log: the rows hold only the present state."""
    what = type(request).__name__.removesuffix("Request")
    if isinstance(request, pb.CordonDevicesRequest | pb.UncordonDevicesRequest) and request.devices:
        what += f" {_listed(request.devices)}"
    by = f"token hr_{caller().token}_…" if caller().token else caller().peer
    reason = getattr(request, "reason", "")
    return f"{what} by {by}" + (f": {reason}" if reason else "")


async def _require_devices(conn: AsyncConnection, found: Found, worker: str, wanted: Sequence[int]) -> None:
    known = await machines.indices(conn, found.id)
    wrong = [
        Violation(
            field=f"devices[{place}]",
            value=str(index),
            message=f"is no device of {worker}",
            remedy=f"It has {_listed(known)}." if known else "It has reported none yet.",
        )
        for place, index in enumerate(wanted)
        if index not in known
    ]
    if wrong:
        raise InvalidFieldError(wrong)


def _listed(indices: Sequence[int]) -> str:
    shown = ", ".join(map(str, indices[:_SHOWN]))
    return f"{shown} and {len(indices) - _SHOWN} more" if len(indices) > _SHOWN else shown


_SHOWN = 16
