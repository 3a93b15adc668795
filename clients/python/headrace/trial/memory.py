"""The memory budget of a trial that shares a GPU.

The worker passes it in the environment; where the script has imported PyTorch, its allocator is told, so that a trial
that asks for more than its budget fails by itself instead of taking its neighbours along. Other libraries read the
variable themselves.
"""

import os
import sys

from headrace.grants import GPU_MEMORY_BYTES


def apply_budget() -> float | None:
    """Limits PyTorch's allocator to the budget; returns the fraction of the device's memory, or None for no limit."""
    torch = sys.modules.get("torch")
    budget = int(os.environ.get(GPU_MEMORY_BYTES, "0") or 0)
    if torch is None or not budget or not torch.cuda.is_available():
        return None
    total = int(torch.cuda.get_device_properties(0).total_memory)
    fraction = min(1.0, budget / total)
    torch.cuda.set_per_process_memory_fraction(fraction, 0)
    return fraction
