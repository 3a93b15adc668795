"""How busy slots are, as table cells."""

from dataclasses import asdict

from headrace.cli import wording
from headrace.client.machines import Slot, Worker

HEADS = ("LOAD", "HOUR", "USED")
"""The load in the latest minute, the mean over the last hour, and the memory in use."""


def load_cells(worker: Worker, slot: Slot) -> list[str]:
    """The cells below `HEADS`; `-` for unknown values. Of a disconnected worker, no current values are known."""
    mean = slot.mean_utilization
    hour = "-" if mean is None else wording.percent(mean, 1)
    if not (worker.connected and slot.loads):
        return ["-", hour, "-"]
    newest = slot.loads[-1]
    busy = "-" if newest.utilization is None else wording.percent(newest.utilization, 1)
    return [busy, hour, wording.size(newest.memory_used_bytes)]


def loads_json(slot: Slot) -> list[dict[str, object]]:
    """The loads of the last hour, oldest minute first."""
    return [asdict(load) for load in slot.loads]
