"""What users do with workers and their devices, as flows (see `headrace.client.flows`)."""

from collections.abc import Iterable

from google.protobuf.duration_pb2 import Duration

from headrace.client import cluster
from headrace.client.arguments import seconds, whole_numbers
from headrace.client.flow import Flow, rpc
from headrace.client.flows import request_id
from headrace.client.machines import Worker
from headrace.client.names import worker_name
from headrace.v1 import study_pb2 as pb


def drain(_: object, worker: str, *, reason: str = "", grace_s: float | None = None) -> Flow[Worker]:
    """Empties a worker: nothing starts there any more, and each trial saves at its next report and goes on elsewhere.
    Nobody is charged. Then its daemon ends.

    Trials that are still there after `grace_s` seconds are ended, and go on from their last checkpoints; with None they
    take as long as they take. Of a worker that is away it is noted, and holds when it comes back. Returns the worker
    with the trials that are to leave; `workers()` shows what is left of them.
    """
    grace = None
    if grace_s is not None:
        grace = Duration()
        grace.FromNanoseconds(round(seconds("grace_s", grace_s) * 1e9))
    request = pb.DrainWorkerRequest(
        request_id=request_id(), worker=worker_name(worker), reason=reason, grace=grace
    )
    response = yield from rpc(pb.DrainWorkerResponse, request)
    return cluster.worker(response.worker)


def undrain(_: object, worker: str) -> Flow[Worker]:
    """Undoes `drain`. A daemon that has ended is not started again. Raises `WorkerLeavesError` where the daemon leaves
    by itself, after SIGTERM or a spot notice."""
    request = pb.UndrainWorkerRequest(request_id=request_id(), worker=worker_name(worker))
    response = yield from rpc(pb.UndrainWorkerResponse, request)
    return cluster.worker(response.worker)


def cordon(_: object, worker: str, devices: Iterable[int] = (), *, reason: str = "") -> Flow[Worker]:
    """Lets nothing new start on devices of a worker, by the indices of their slots, or with none on all of it. What
    runs there stays."""
    request = pb.CordonDevicesRequest(
        request_id=request_id(), worker=worker_name(worker), devices=_indices(devices), reason=reason
    )
    response = yield from rpc(pb.CordonDevicesResponse, request)
    return cluster.worker(response.worker)


def uncordon(_: object, worker: str, devices: Iterable[int] = ()) -> Flow[Worker]:
    """Undoes `cordon`, and takes devices for sound again that failed; with no devices, the worker and all of them."""
    request = pb.UncordonDevicesRequest(
        request_id=request_id(), worker=worker_name(worker), devices=_indices(devices)
    )
    response = yield from rpc(pb.UncordonDevicesResponse, request)
    return cluster.worker(response.worker)


def _indices(devices: Iterable[int]) -> list[int]:
    return whole_numbers("devices", devices, "Give the indices of the worker's slots, such as [0, 1].")
