"""How many cores a process of a trial may use, and how many workers its data loader should have.

A worker sends the number of cores in a grant, and sends it again whenever the grant changes. In a run by hand,
it is the number of the machine's cores that this process may run on. The ranks on one machine divide them.
"""

import os
import sys
from collections.abc import Mapping

from headrace.grants import CPUS

MOST_WORKERS = 16
"""More loader workers seldom help, and each has a copy of the dataset object."""


def cpus(environ: Mapping[str, str] = os.environ) -> int:
    """The number of cores for this process, at least 1."""
    granted = _number(environ.get(CPUS)) or _of_machine()
    return max(1, granted // (_number(environ.get("LOCAL_WORLD_SIZE")) or 1))


def loader_workers(cores: int, environ: Mapping[str, str] = os.environ) -> int:
    """How many workers a data loader should have with this many cores.

    With a GPU: one per core, except for the core that feeds it. Without one: a quarter, because the model itself
    uses the cores.
    """
    return min(MOST_WORKERS, cores - 1 if _on_gpu(environ) else cores // 4)


def _on_gpu(environ: Mapping[str, str]) -> bool:
    """Whether a GPU was granted; by hand, whether PyTorch has one."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return bool(visible.strip())
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_available())


def _of_machine() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _number(text: str | None) -> int:
    return int(text) if text and text.isdecimal() else 0
