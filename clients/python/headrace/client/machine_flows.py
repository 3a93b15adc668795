"""Operations on workers and their devices, as flows (see `headrace.client.flows`)."""

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
    """Drains a worker: nothing new starts there, and each trial saves at its next report and resumes elsewhere.
    No trial is charged a failure. Then the worker's daemon exits.

    Trials that are still there after `grace_s` seconds are ended, and resume from their last checkpoints; with
    None there is no limit. For a disconnected worker, the drain is recorded and applies when it reconnects.
    Returns the worker with the trials that have to leave; `workers()` shows those that remain.
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
    """Undoes `drain`. A daemon that has exited is not started again. Raises `WorkerLeavesError` if the daemon is
    leaving by itself, after SIGTERM or a spot notice.
    """
    request = pb.UndrainWorkerRequest(request_id=request_id(), worker=worker_name(worker))
    response = yield from rpc(pb.UndrainWorkerResponse, request)
    return cluster.worker(response.worker)


def cordon(_: object, worker: str, devices: Iterable[int] = (), *, reason: str = "") -> Flow[Worker]:
    """Lets nothing new start on devices of a worker, given by the indices of their slots; without devices, on
    the whole worker. Running trials stay.
    """
    request = pb.CordonDevicesRequest(
        request_id=request_id(), worker=worker_name(worker), devices=_indices(devices), reason=reason
    )
    response = yield from rpc(pb.CordonDevicesResponse, request)
    return cluster.worker(response.worker)


def uncordon(_: object, worker: str, devices: Iterable[int] = ()) -> Flow[Worker]:
    """Undoes `cordon`, and clears failed devices for use again; without devices, the worker and all its devices."""
    request = pb.UncordonDevicesRequest(
        request_id=request_id(), worker=worker_name(worker), devices=_indices(devices)
    )
    response = yield from rpc(pb.UncordonDevicesResponse, request)
    return cluster.worker(response.worker)


def _indices(devices: Iterable[int]) -> list[int]:
    return whole_numbers("devices", devices, "Give the indices of the worker's slots, such as [0, 1].")
