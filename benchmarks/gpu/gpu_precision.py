"""The precisions in which a card is measured."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    """With TF32, or without. By default PyTorch allows it in convolutions, and not in matrix products."""
    matmul, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, convolutions.allow_tf32
    matmul.allow_tf32 = convolutions.allow_tf32 = allowed
    try:
        yield
    finally:
        matmul.allow_tf32, convolutions.allow_tf32 = before
