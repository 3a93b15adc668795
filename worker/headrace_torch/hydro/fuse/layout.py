"""Where each parameter is in a member's row, and the model's tensors by name.

A group keeps its members' parameters as one matrix, a row per member: the optimizer is a few operations on whole
rows, a repack is a selection of rows, and a stacked parameter (N, *shape) is a view. Parameters start at multiples
of 64 bytes, so that kernels see the same alignment as in a separate tensor.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn

from headrace_torch.hydro.fuse.errors import FuseError, StaticShapeError

ALIGN_BYTES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One trainable parameter in a row; offset and numel in elements."""

    name: str
    shape: tuple[int, ...]
    offset: int
    numel: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The rows of a model.

    Attributes:
        segments: its trainable parameters, tied ones only once, in the order of `named_parameters`.
        row: elements of a row, a multiple of 64 bytes; the gaps between segments stay zero.
        dtype: the dtype of all trainable parameters.
        constants: names of the parameters that are not trained; they are kept with the buffers.
    """

    segments: tuple[Segment, ...]
    row: int
    dtype: torch.dtype
    constants: tuple[str, ...]

    def stacked(self, rows: Tensor) -> dict[str, Tensor]:
        """Returns each parameter as a view (n, *shape) of rows (n, row)."""
        n = rows.shape[0]
        return {
            one.name: rows[:, one.offset : one.offset + one.numel].view(n, *one.shape)
            for one in self.segments
        }

    def gaps(self, rows: Tensor) -> list[Tensor]:
        """Returns the gaps between segments, as views of rows (n, row)."""
        ends = [one.offset for one in self.segments[1:]] + [self.row]
        return [
            rows[:, one.offset + one.numel : end]
            for one, end in zip(self.segments, ends, strict=True)
            if one.offset + one.numel < end
        ]

    def pack_row(self, values: Sequence[Tensor | None], out: Tensor) -> None:
        """Writes one tensor per segment, of its shape or None for zeros, into a row `out` (row,); one copy."""
        parts, at = [], 0
        for one, value in zip(self.segments, values, strict=True):
            if one.offset > at:
                parts.append(out.new_zeros(one.offset - at))
            parts.append(out.new_zeros(one.numel) if value is None else value.reshape(-1))
            at = one.offset + one.numel
        if self.row > at:
            parts.append(out.new_zeros(self.row - at))
        torch.cat(parts, out=out)

    def of_row(self, row: Tensor) -> dict[str, Tensor]:
        """Returns each parameter as a view of one row (row,)."""
        return {one.name: row[one.offset : one.offset + one.numel].view(one.shape) for one in self.segments}

    def per_element(self, values: Mapping[str, float], dtype: torch.dtype) -> Tensor:
        """Returns a row (row,) with a parameter's value at each of its elements, 1 in between."""
        out = torch.ones(self.row, dtype=dtype)
        for one in self.segments:
            out[one.offset : one.offset + one.numel] = values[one.name]
        return out


def layout_of(model: nn.Module) -> Layout:
    """Lays out a model's trainable parameters.

    Raises:
        FuseError: it has none, or they differ in dtype; names the first that differs.
    """
    trained = [(name, one) for name, one in model.named_parameters() if one.requires_grad]
    if not trained:
        raise FuseError("the model has no parameter that requires a gradient")
    dtype = trained[0][1].dtype
    for name, one in trained:
        if one.dtype != dtype:
            raise FuseError(
                f"{name} is {one.dtype} and {trained[0][0]} is {dtype}: a fused group keeps one dtype; cast the model, "
                "or use autocast in the loss"
            )
    step = max(1, ALIGN_BYTES // dtype.itemsize)
    segments, offset = [], 0
    for name, one in trained:
        segments.append(Segment(name=name, shape=tuple(one.shape), offset=offset, numel=prod(one.shape)))
        offset += -(-prod(one.shape) // step) * step
    frozen = tuple(name for name, one in model.named_parameters() if not one.requires_grad)
    return Layout(segments=tuple(segments), row=offset, dtype=dtype, constants=frozen)


def check_frozen(constants: Iterable[tuple[str, Tensor]]) -> None:
    """Rejects a step that trains a parameter without a row.

    Args:
        constants: the parameters that were frozen when the group was made, by name.

    Raises:
        FuseError: one requires a gradient; names it.
    """
    for name, one in constants:
        if one.requires_grad:
            raise FuseError(
                f"a step unfreezes parameter {name}, which did not require a gradient when the group was made, so the "
                "group does not train it: let it require one before fuse, and freeze it in the forward pass for the "
                "steps that leave it alone; or make a group per phase, from member_state"
            )


Placed = Sequence[tuple[str, Tensor, int]]
"""Tensors by name, each with its address."""


def placed(tensors: Iterable[tuple[str, Tensor]]) -> Placed:
    """Records where the tensors are."""
    return [(name, one, one.data_ptr()) for name, one in tensors]


def check_placed(before: Placed) -> None:
    """Rejects a step that gives a tensor other memory: the model would no longer read its member's row.

    Raises:
        FuseError: names the tensor.
    """
    for name, one, address in before:
        if one.data_ptr() != address:
            raise FuseError(
                f"a step gives {name} other memory, as `.data =` does, and a group keeps members' tensors in "
                "its own memory: write in place, with copy_() under torch.no_grad()"
            )


def check_registered(before: Set[str], model: nn.Module) -> None:
    """Rejects a step that registers a buffer or a parameter, for which the group has no row.

    Raises:
        FuseError: names it.
    """
    for name, _ in (*model.named_buffers(), *model.named_parameters()):
        if name not in before:
            raise FuseError(
                f"a step registers {name}, which the model did not have when the group was made: register it in "
                "__init__, with its shape"
            )


def check_same(first: nn.Module, other: nn.Module, position: int) -> None:
    """Rejects a member whose model has other tensors than member 0's.

    Raises:
        StaticShapeError: names the first layer that differs and both shapes.
    """
    theirs = {name: tuple(one.shape) for name, one in (*other.named_parameters(), *other.named_buffers())}
    ours = {name: tuple(one.shape) for name, one in (*first.named_parameters(), *first.named_buffers())}
    for name in (*ours, *theirs):
        if ours.get(name) != theirs.get(name):
            layer, _, tensor = name.rpartition(".")
            raise StaticShapeError(
                f"layer {layer or '(model)'}: {tensor} has shape {ours.get(name, 'none')} in member 0 and "
                f"{theirs.get(name, 'none')} in member {position}; members of a group share all shapes: "
                "fuse those of equal shape, one group per shape",
                member=position,
            )
