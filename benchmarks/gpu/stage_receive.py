"""A receive on a GPU: a kernel that spins until a word in pinned memory of the host reaches a count."""

import torch
import triton
import triton.language as tl

BLOCKS, WARPS = 4, 8
"""As many threads as a small kernel of NCCL."""
MOST_READS = 2_000_000
"""A read over PCIe takes about a microsecond: a receive whose message never arrives ends after seconds."""


@triton.jit(do_not_specialize=["count"])
def _spin(word, count, most):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202  Triton's own types
    reads = 0
    while (tl.load(word, volatile=True) < count) & (reads < most):
        reads += 1


def spin(word: torch.Tensor, count: int) -> None:
    """Queues it. The word is pinned memory, which a GPU reads in place."""
    _spin[(BLOCKS,)](word, count, MOST_READS, num_warps=WARPS)
