"""Numbers that identify contents: below 2^40, so that a float can hold them; equal for equal contents.

Different contents have the same number with probability 2^−40. 0 means that there was nothing to read. Of
parameters and gradients only a sample is read, so that the cost does not grow with the model.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from headrace_torch.hdet.averaging import local, optimizer_tensors

SAMPLE = 4096  # elements read
OTHER_PARAMETERS = (
    "replica {replica}'s parameters are not those that its state was saved with, in the middle of an interval: load "
    "the model after DistributedDataParallel has wrapped it, which copies rank 0's parameters to all ranks, and "
    "before this state"
)


def of_text(text: str) -> int:
    """Returns a text's number."""
    return _number(blake2b(text.encode(), digest_size=5))


@torch.no_grad()
def of_sample(tensors: Iterable[Tensor]) -> int:
    """Returns the number of some elements of each tensor, in order; 0 if all of them are zero."""
    picked = _sample(tensors)
    if not any(bool(part.count_nonzero()) for part in picked):
        return 0
    digest = blake2b(digest_size=5)
    for part in picked:
        digest.update(_bytes(part))
    return _number(digest)


def layout_of(optimizer: Optimizer) -> int:
    """Returns the number of the names and shapes of an optimizer's state."""
    return of_text(repr([(name, tuple(tensor.shape)) for name, tensor in optimizer_tensors(optimizer)]))


@torch.no_grad()
def projection(tensors: Iterable[Tensor | None]) -> tuple[float, float]:
    """Returns a sample of tensors times fixed numbers, and its norm.

    Tensors that are equal up to rounding have products that agree within a small fraction of their norms;
    unrelated ones do not. Both are 0 if there are no elements, or only zeros.
    """
    picked = _sample(tensor for tensor in tensors if tensor is not None)
    if not picked:
        return 0.0, 0.0
    vector = torch.cat([part.double() for part in picked])
    return float(vector @ torch.arange(len(vector), dtype=torch.float64).cos()), float(vector.norm())


def of_batch(batch: Any) -> int | None:
    """Returns a batch's number, whatever its values are stored in; `None` if something in it cannot be read."""
    digest = blake2b(digest_size=5)
    try:
        for piece in _pieces(batch):
            digest.update(piece)
    except TypeError:
        return None
    return _number(digest)


def _sample(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Elements sampled from each whole tensor, on the CPU."""
    parts = [local(tensor).detach().reshape(-1) for tensor in tensors]
    each = max(1, SAMPLE // max(1, len(parts)))
    return [part[:: max(1, part.numel() // each)][:each].to("cpu") for part in parts if part.numel()]


def _pieces(value: Any) -> Iterator[bytes]:
    """The bytes of all values in nested containers; raises TypeError for what is neither."""
    if isinstance(value, Tensor):
        yield _bytes(value.detach().to("cpu"))
    elif isinstance(value, Mapping):
        for key in sorted(value, key=str):
            yield repr(key).encode()
            yield from _pieces(value[key])
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _pieces(part)
    elif value is None or isinstance(value, str | bytes | bool | int | float | complex):
        yield repr(value).encode()
    elif hasattr(value, "__array__"):  # NumPy's, and what follows its protocol
        array = value.__array__()
        yield repr((array.shape, array.dtype.str)).encode()
        yield from [array.tobytes()] if not array.dtype.hasobject else _pieces(array.tolist())
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from _pieces({field.name: getattr(value, field.name) for field in dataclasses.fields(value)})
    elif hasattr(value, "__dict__") and vars(value):
        yield from _pieces(vars(value))
    else:
        raise TypeError(type(value).__name__)


def _bytes(tensor: Tensor) -> bytes:
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())


def _number(digest: Any) -> int:
    return int.from_bytes(digest.digest(), "big")
