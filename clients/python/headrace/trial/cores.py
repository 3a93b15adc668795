"""How many cores a process of a trial may use, and how many workers its data loader should have.

A worker says how many cores come with a grant, and says so anew whenever the grant changes. By hand it is the machine's
cores that this process may run on. The ranks of one machine divide them.
"""

import os
import sys
from collections.abc import Mapping

from headrace.grants import CPUS

MOST_WORKERS = 16
"""Further loader workers seldom help, and each holds a copy of the dataset object."""


def cpus(environ: Mapping[str, str] = os.environ) -> int:
    """The cores of this process, at least 1."""
    granted = _number(environ.get(CPUS)) or _of_machine()
    return max(1, granted // (_number(environ.get("LOCAL_WORLD_SIZE")) or 1))


def loader_workers(cores: int, environ: Mapping[str, str] = os.environ) -> int:
    """How many of so many cores a data loader should have workers on.

    Beside a GPU: all but the one that feeds it. Without one: a quarter, because the model itself computes on them.
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
