"""Averages tensors over the replicas in flat buckets: one collective per 25 MiB instead of one per tensor.

A bucket holds tensors of one dtype on one device; float16 and bfloat16 are summed in float32. A sync only adds the
memory of one bucket, which is freed afterwards; a larger tensor is averaged in place. A collective gives the same
bits to every rank, so replicas are equal afterwards, not merely close. A replica that is left out (it diverged)
contributes zeros and receives the others' mean.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from headrace_torch.hdet.replicas import ReplicaGroup

BUCKET_BYTES = 25 * 1024 * 1024
BufferPolicy = Literal["average", "broadcast", "keep"]
OptimizerPolicy = Literal["keep", "average", "reset"]
MasterPairs = Sequence[tuple[Tensor, Tensor]]


def local(tensor: Tensor) -> Tensor:
    """Returns the part of a tensor that this rank holds."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def trained(parameters: Iterable[Tensor], masters: MasterPairs = ()) -> list[Tensor]:
    """Returns the tensors that an optimizer updates.

    Those that require gradients, with masters in place of their low-precision copies.
    """
    replaced = {id(low): master for low, master in masters}
    return [replaced.get(id(one), one) for one in parameters if one.requires_grad]


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether no element is NaN or infinite; one pass, one number per tensor."""
    sums = [
        part.detach().sum(dtype=torch.float64 if part.dtype == torch.float64 else torch.float32)
        for part in map(local, tensors)
    ]
    by_device: dict[torch.device, list[Tensor]] = {}
    for one in sums:
        by_device.setdefault(one.device, []).append(one.double())
    return all(bool(torch.isfinite(torch.stack(some)).all()) for some in by_device.values())


@torch.no_grad()
def average_(
    tensors: Sequence[Tensor],
    group: ReplicaGroup,
    *,
    sources: Sequence[int] | None = None,
    bucket_bytes: int = BUCKET_BYTES,
) -> int:
    """Replaces tensors by their mean over the replicas `sources`, by default all; returns the bytes sent by this rank.

    A collective: all ranks pass tensors of the same shapes in the same order, and the same sources.
    """
    chosen = range(group.size) if sources is None else sources
    taking_part = group.rank in chosen
    sent = 0
    for bucket in _buckets(tensors, bucket_bytes):
        wide = torch.float32 if bucket[0].dtype in (torch.float16, torch.bfloat16) else bucket[0].dtype
        # A tensor that fills a bucket by itself is averaged in place, without a copy.
        in_place = len(bucket) == 1 and bucket[0].is_contiguous() and bucket[0].dtype == wide
        flat = bucket[0].view(-1) if in_place else torch.cat([one.reshape(-1).to(wide) for one in bucket])
        if not taking_part:
            flat.zero_()
        group.sum_(flat)
        flat.div_(len(chosen))
        sent += flat.numel() * flat.element_size()
        if not in_place:
            _scatter(flat, bucket)
        del flat  # before the next bucket is joined, or two would exist at once
    return sent


@torch.no_grad()
def copy_from_first_(
    tensors: Sequence[Tensor], group: ReplicaGroup, *, bucket_bytes: int = BUCKET_BYTES
) -> int:
    """Replaces tensors by replica 0's; returns their size in bytes. A collective."""
    sent = 0
    for bucket in _buckets(tensors, bucket_bytes):
        flat = torch.cat([one.reshape(-1) for one in bucket])
        group.copy_from_first_(flat)
        sent += flat.numel() * flat.element_size()
        _scatter(flat, bucket)
        del flat
    return sent


@torch.no_grad()
def copy_masters(masters: MasterPairs) -> None:
    """Rounds each master into its low-precision copy."""
    for low, master in masters:
        local(low).copy_(local(master))


def merge_buffers(
    model: nn.Module,
    group: ReplicaGroup,
    policy: BufferPolicy,
    *,
    sources: Sequence[int],
    bucket_bytes: int = BUCKET_BYTES,
) -> int:
    """Merges a model's buffers (BatchNorm's statistics) by policy; returns the bytes sent.

    `average` takes the mean of floating-point buffers and replica 0's of the others (counters), `broadcast`
    replica 0's of all, `keep` leaves each replica its own. If replica 0 is not among `sources`, because it
    diverged, `broadcast` averages floating-point buffers instead.
    """
    if policy == "keep":
        return 0
    buffers = [buffer for buffer in model.buffers() if buffer.numel()]
    floating = [buffer for buffer in buffers if buffer.is_floating_point()]
    others = [buffer for buffer in buffers if not buffer.is_floating_point()]
    if policy == "average" or 0 not in sources:
        sent = average_(floating, group, sources=sources, bucket_bytes=bucket_bytes)
    else:
        sent = copy_from_first_(floating, group, bucket_bytes=bucket_bytes)
    return sent + copy_from_first_(others, group, bucket_bytes=bucket_bytes)


def optimizer_tensors(optimizer: Optimizer) -> list[tuple[str, Tensor]]:
    """Returns an optimizer's floating-point state (moments, momentum), in the order of its parameters.

    No step counters.
    """
    found: list[tuple[str, Tensor]] = []
    for number, group in enumerate(optimizer.param_groups):
        for index, parameter in enumerate(group["params"]):
            state: dict[str, Any] = optimizer.state.get(parameter, {})
            for key in sorted(state):
                value = state[key]
                if isinstance(value, Tensor) and value.is_floating_point() and value.dim() > 0:
                    found.append((f"{number}/{index}/{key}", value))
    return found


def merge_optimizer(
    optimizer: Optimizer,
    group: ReplicaGroup,
    policy: OptimizerPolicy,
    *,
    sources: Sequence[int],
    bucket_bytes: int = BUCKET_BYTES,
) -> int:
    """Merges an optimizer's state by policy.

    Returns the bytes sent. `reset` forgets it, so that moments start over.
    """
    if policy == "reset":
        optimizer.state.clear()
        return 0
    tensors = [tensor for _, tensor in optimizer_tensors(optimizer)]
    if policy == "average":
        return average_(tensors, group, sources=sources, bucket_bytes=bucket_bytes)
    if len(sources) < group.size:
        # Kept, except that a replica which diverged would poison its parameters again with its own moments.
        return average_(tensors, group, sources=sources, bucket_bytes=bucket_bytes)
    return 0


def _buckets(tensors: Sequence[Tensor], limit: int) -> Iterator[list[Tensor]]:
    """Groups tensors of one dtype and device, in order, up to a size; one that is larger stands alone."""
    open_ones: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    sizes: dict[tuple[torch.dtype, torch.device], int] = {}
    for tensor in map(local, tensors):
        key = (tensor.dtype, tensor.device)
        size = tensor.numel() * tensor.element_size()
        if key in open_ones and sizes[key] + size > limit:
            yield open_ones.pop(key)
        if key not in open_ones:
            open_ones[key], sizes[key] = [], 0
        open_ones[key].append(tensor.detach())
        sizes[key] += size
    yield from open_ones.values()


def _scatter(flat: Tensor, bucket: Sequence[Tensor]) -> None:
    offset = 0
    for tensor in bucket:
        tensor.copy_(flat[offset : offset + tensor.numel()].view_as(tensor))
        offset += tensor.numel()
