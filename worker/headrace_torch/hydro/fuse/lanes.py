"""The member dim that `torch.vmap` hides: takes it out of a tensor, and puts it back.

Under `vmap` a model sees one member's tensors; behind each of them is a stacked tensor and the position of its
member dim. A rule (`rules/`) takes the stacked tensors, computes with one call of a dense kernel, and returns the
result. All of functorch's internal names that Hydro uses are in this file.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from weakref import ref

import torch
from torch import Tensor

_functorch: Any = torch._C._functorch  # torch's own vmap is written with these


def is_stacked(value: object) -> bool:
    """Whether a value is a tensor with a member dim behind it."""
    return isinstance(value, Tensor) and bool(_functorch.is_batchedtensor(value))


@contextmanager
def quiet() -> Iterator[None]:
    """Keeps torch from warning about ops that `vmap` runs member by member: they are slow, and the probe measures
    that."""
    _functorch._set_vmap_fallback_warning_enabled(False)
    try:
        yield
    finally:
        _functorch._set_vmap_fallback_warning_enabled(True)


@contextmanager
def members(count: int) -> Iterator["Lanes"]:
    """What `torch.vmap` does around a function, without unpacking its arguments and results: `Lanes.join` tensors
    inside, and extract results with `Lanes.at`. For small models that saves a third of a step's time.
    """
    _load_decompositions()
    _functorch._vmap_increment_nesting(count, "error")
    try:
        yield Lanes(count)
    finally:
        _functorch._vmap_decrement_nesting()


@cache
def _load_decompositions() -> None:
    """`torch.vmap` registers some operators at its first call."""
    torch.vmap(torch.neg)(torch.zeros(1))


_noted: list[ref[Tensor]] | None = None


@contextmanager
def kept_tensors() -> Iterator[list[ref[Tensor]]]:
    """Records every tensor with a member dim that is made in the block; those that survive it were kept."""
    global _noted
    found: list[ref[Tensor]] = []
    _noted = found
    try:
        yield found
    finally:
        _noted = None


def note(value: Any) -> None:
    """Records a tensor with a member dim, if a block asks for that."""
    if _noted is not None and is_stacked(value):
        _noted.append(ref(value))


class Lanes:
    """The members of the innermost running `vmap`.

    Attributes:
        size: number of members N.
    """

    __slots__ = ("_level", "size")

    def __init__(self, size: int) -> None:
        """Call it inside the mapping of members."""
        self.size = size
        self._level: int = _functorch.current_level()

    def split(self, value: Tensor) -> tuple[Tensor, int | None]:
        """Returns the stacked tensor and the position of its member dim, or None if all members share it."""
        stacked, dim = _functorch._unwrap_batched(value, self._level)
        return stacked, dim

    def at(self, value: Tensor, dim: int) -> Tensor:
        """Returns the stacked tensor with its member dim at `dim`; a shared tensor is expanded (no copy)."""
        stacked, own = self.split(value)
        if own is None:
            shape = [*value.shape]
            shape.insert(dim, self.size)
            return stacked.unsqueeze(dim).expand(shape)
        return stacked if own == dim else stacked.movedim(own, dim)

    def join(self, stacked: Tensor, dim: int = 0) -> Tensor:
        """Hides the member dim again."""
        out: Tensor = _functorch._add_batch_dim(stacked, dim, self._level)
        note(out)
        return out
