"""The peak memory of a piece of work, from the allocator's own records.

On CUDA the caching allocator keeps the number. On a CPU torch's profiler records every allocation and release of
its allocator, including those inside kernels; their running sum is the memory used on top of what was there
before. (Neither includes what a math library allocates outside torch's allocator.)
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.profiler import profile


def peak_bytes(work: Callable[[], object], device: torch.device) -> int:
    """Runs something; returns the largest growth of allocated bytes while it ran, at least 0."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        torch.cuda.synchronize(device)
        return int(torch.cuda.max_memory_allocated(device) - before)
    # The raw records: `torch.profiler` makes an object of every event, which takes longer than a step.
    with profile(profile_memory=True, use_kineto=True) as recorded:
        work()
    return _greatest_sum(recorded)


def _greatest_sum(recorded: Any) -> int:
    changes: list[tuple[int, int]] = []
    waiting = list(recorded.kineto_results.experimental_event_tree())
    while waiting:
        event = waiting.pop()
        waiting.extend(event.children)
        if event.tag == torch._C._profiler._EventType.Allocation:
            changes.append((event.start_time_ns, event.typed[1].alloc_size))
    held = greatest = 0
    for _, change in sorted(changes, key=lambda one: one[0]):
        held += change
        greatest = max(greatest, held)
    return greatest
