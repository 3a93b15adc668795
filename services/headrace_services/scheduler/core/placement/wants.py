"""What a trial that could run waits for, in words. For display only, from the rows at one moment: no cycle uses
it."""

from collections import Counter
from collections.abc import Sequence

from headrace.spec.resources import WHOLE
from headrace_services.scheduler.core.placement.fit import fit, suits
from headrace_services.scheduler.core.placement.values import Request, Waiting
from headrace_services.scheduler.core.records import Slot

_GIB = 2**30


def lacking(devices: Sequence[Slot], waiting: Waiting) -> str:
    """Say what a trial waits for among the devices of the connected workers: `waits for …`."""
    request = waiting.request
    suitable = Counter(slot.worker_id for slot in devices if suits(slot, request))
    if max(suitable.values(), default=0) < request.slots:
        return f"a connected worker with {described(request)}{_not_counted(devices, request)}"
    if fit(devices, waiting) is None:
        return f"{described(request)} to be free" + (" on one worker" if request.slots > 1 else "")
    return "its turn"


def _not_counted(devices: Sequence[Slot], request: Request) -> str:
    """Which GPUs do not count, whatever else they have."""
    if request.slots > 1 and any(slot.is_instance for slot in devices):
        return " (instances of MIG do not count: a trial gets one at most)"
    if request.milli < WHOLE and any(slot.unshared for slot in devices):
        return " (instances of MIG and GPUs in exclusive mode do not count: they are not shared)"
    return ""


def described(request: Request) -> str:
    """Name a request: `2 GPUs of 40 GiB (A100 or H100), label zone=a`."""
    unit = "GPU" if request.gpu else "CPU slot"
    count = f"{request.slots} {unit}{'s' if request.slots > 1 else ''}"
    if request.milli < WHOLE:
        count = f"{request.milli / WHOLE:g} of a {unit}"
    memory = f" of {request.memory_bytes / _GIB:.3g} GiB" if request.memory_bytes else ""
    types = f" ({' or '.join(request.types)})" if request.types else ""
    cores = [f"{request.cores} cores"] if request.cores else []
    labels = [f"label {key}={value}" for key, value in request.labels.items()]
    return ", ".join([count + memory + types, *cores, *labels])
