"""Where a trial goes: pure, from free slots and a request to the slots of one worker."""

from collections import defaultdict
from collections.abc import Iterable

from headrace.spec import Resources
from headrace_services.scheduler.records import Slot


def place(free: Iterable[Slot], request: Resources) -> tuple[Slot, ...] | None:
    """Return the slots to give to a trial, all on one worker, or None where none fit.

    A request of n GPUs takes n GPU slots of one worker, all or none. A request of none takes one slot of any
    kind, a CPU slot rather than a GPU. Of several workers that fit, the one with the fewest slots left over
    is taken (best fit), then the first by name, so that equal inputs give equal placements.
    """
    by_worker: dict[int, list[Slot]] = defaultdict(list)
    for slot in free:
        if _suits(slot, request):
            by_worker[slot.worker_id].append(slot)
    count = max(1, request.gpus)
    fitting = [slots for slots in by_worker.values() if len(slots) >= count]
    if not fitting:
        return None
    best = min(fitting, key=lambda slots: (_kind_rank(slots), len(slots), slots[0].worker_name))
    return tuple(sorted(best, key=lambda slot: (slot.kind, slot.index))[:count])


def _suits(slot: Slot, request: Resources) -> bool:
    if any(slot.labels.get(key) != value for key, value in request.labels.items()):
        return False
    if request.gpus == 0:
        return True
    return slot.kind == "GPU" and slot.memory_bytes >= request.gpu_memory_bytes


def _kind_rank(slots: list[Slot]) -> str:
    return min(slot.kind for slot in slots)
