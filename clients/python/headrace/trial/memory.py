"""The memory budget of a trial that shares a GPU.

The worker passes it in the environment. It is set in PyTorch's allocator as soon as the script has imported
PyTorch, so that a trial that uses more than its budget fails alone, without affecting its neighbours. Other
libraries have to read the variable themselves.
"""

import os
from types import ModuleType

from headrace.grants import GPU_MEMORY_BYTES
from headrace.trial.imported import once_imported


def apply_budget() -> None:
    """Limits PyTorch's allocator to the budget, if there is one; now, or once PyTorch is imported."""
    if int(os.environ.get(GPU_MEMORY_BYTES, "0") or 0):
        once_imported("torch", _limit, purpose="memory budget")


def _limit(torch: ModuleType) -> None:
    budget = int(os.environ.get(GPU_MEMORY_BYTES, "0") or 0)
    if budget and torch.cuda.is_available():
        total = int(torch.cuda.get_device_properties(0).total_memory)
        torch.cuda.set_per_process_memory_fraction(min(1.0, budget / total), 0)
