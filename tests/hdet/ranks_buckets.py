"""Averaging in buckets, against the plain mean."""

import torch
import torch.distributed as dist

from headrace_torch.hdet import ReplicaGroup
from headrace_torch.hdet.averaging import average_


def buckets_against_the_plain_mean(bucket_bytes: int) -> tuple[bool, int]:
    """Averages tensors of several shapes, dtypes and layouts; returns whether each is the mean over all ranks."""
    rank = dist.get_rank()
    generator = torch.Generator().manual_seed(rank)
    shapes = [(3,), (40, 5), (), (7, 7), (1000,)]
    tensors = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    tensors += [torch.randn(6, 4, generator=generator).t(), torch.randn(9, generator=generator)]
    expected = []
    for tensor in tensors:
        total = tensor.contiguous().clone()
        dist.all_reduce(total)
        expected.append(total / 4)
    sent = average_(tensors, ReplicaGroup(), bucket_bytes=bucket_bytes)
    same = [torch.allclose(a, b, rtol=1e-6) for a, b in zip(tensors, expected, strict=True)]
    return all(same), sent
