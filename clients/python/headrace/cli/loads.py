"""How busy slots are, as cells of a table."""

from dataclasses import asdict

from headrace.cli import wording
from headrace.client.machines import Slot, Worker

HEADS = ("LOAD", "HOUR", "USED")
"""The load of the newest minute, the mean of the last hour, and the memory in use."""


def load_cells(worker: Worker, slot: Slot) -> list[str]:
    """The cells below `HEADS`; `-` where nothing is known, and of a worker that is away nothing is known of now."""
    mean = slot.mean_utilization
    hour = "-" if mean is None else wording.percent(mean, 1)
    if not (worker.connected and slot.loads):
        return ["-", hour, "-"]
    newest = slot.loads[-1]
    return [wording.percent(newest.utilization, 1), hour, wording.size(newest.memory_used_bytes)]


def loads_json(slot: Slot) -> list[dict[str, object]]:
    """The loads of the last hour, the oldest minute first."""
    return [asdict(load) for load in slot.loads]
