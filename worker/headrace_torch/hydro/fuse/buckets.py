"""Splits a batch among members of different batch sizes: one bucket, one fused call, per size.

A member with a batch size b sees the first b rows of each batch. Padding instead computes all rows for all members
and counts b of them. BatchNorm would see the padding, so padding is rejected there.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

from headrace_torch.hydro.fuse.engines.work import Batch, LossFn, Work
from headrace_torch.hydro.fuse.errors import FuseError, MemberError
from headrace_torch.hydro.fuse.states import Slot

Batching = Literal["bucket", "pad"]


@dataclass(frozen=True, slots=True)
class PerMember:
    """A separate batch for every member, in the order of `Group.ids`; sizes may differ."""

    batches: Sequence[Batch]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Members that run together; positions are rows of the states."""

    positions: tuple[int, ...]
    work: Work

    def parts(self, groups: Sequence[Sequence[int]]) -> list["Bucket"]:
        """Splits the bucket into groups of these positions in it."""
        if len(groups) == 1:
            return [self]
        work = self.work
        return [
            Bucket(
                positions=tuple(self.positions[i] for i in places),
                work=replace(
                    work,
                    batch=[work.batch[i] for i in places] if work.own else work.batch,
                    rows=None if work.rows is None else tuple(work.rows[i] for i in places),
                ),
            )
            for places in groups
        ]


def split(
    slots: Sequence[Slot], batch: Batch | PerMember, loss_fn: LossFn, batching: Batching, batch_norm: str
) -> list[Bucket]:
    """Makes the buckets of one step.

    Args:
        slots: the members.
        batch: shared, or one per member.
        loss_fn: passed on in the work.
        batching: how different batch sizes are handled.
        batch_norm: the first layer that normalises over the batch, or empty.

    Raises:
        MemberError: a member's batch size is larger than the batch.
        FuseError: there is one batch per member, and their number is wrong; or padding is combined with BatchNorm
            or separate batches.
    """
    if isinstance(batch, PerMember):
        return _own(slots, batch, loss_fn, batching)
    sizes = [slot.member.batch_size for slot in slots]
    if all(size is None for size in sizes):
        return [Bucket(positions=tuple(range(len(slots))), work=Work(loss_fn=loss_fn, batch=batch))]
    rows = rows_of(batch)
    for slot, size in zip(slots, sizes, strict=True):
        if size is not None and size > rows:
            raise MemberError(
                f"member {slot.id}: batch_size {size} is more than the batch's {rows} rows", member=slot.id
            )
    wanted = [rows if size is None else size for size in sizes]
    if batching == "pad":
        if batch_norm:
            raise FuseError(
                f"layer {batch_norm} normalises over the batch, so padding would change its statistics: "
                "use batching='bucket'"
            )
        work = Work(loss_fn=loss_fn, batch=batch, rows=tuple(wanted))
        return [Bucket(positions=tuple(range(len(slots))), work=work)]
    return [
        Bucket(
            positions=tuple(i for i, one in enumerate(wanted) if one == size),
            work=Work(loss_fn=loss_fn, batch=first_rows(batch, rows, size)),
        )
        for size in sorted(set(wanted), reverse=True)
    ]


def rows_of(batch: Batch) -> int:
    """Returns how many rows a batch has: the size of the first dim of its first tensor."""
    for leaf in tree_leaves(batch):
        if isinstance(leaf, Tensor) and leaf.dim() > 0:
            return leaf.shape[0]
    raise FuseError("the batch holds no tensor with rows, so members cannot have different batch sizes")


def first_rows(batch: Batch, rows: int, size: int) -> Batch:
    """Returns the batch with the first `size` rows of each tensor that has `rows` of them."""
    if size == rows:
        return batch

    def cut(leaf: Any) -> Any:
        return leaf[:size] if isinstance(leaf, Tensor) and leaf.dim() > 0 and leaf.shape[0] == rows else leaf

    return tree_map(cut, batch)


def _own(slots: Sequence[Slot], batch: PerMember, loss_fn: LossFn, batching: Batching) -> list[Bucket]:
    if len(batch.batches) != len(slots):
        raise FuseError(f"PerMember has {len(batch.batches)} batches and the group {len(slots)} members")
    if batching == "pad":
        raise FuseError("separate batches are not padded: use batching='bucket'")
    by_shape: dict[Any, list[int]] = {}
    for position, one in enumerate(batch.batches):
        leaves, spec = tree_flatten(one)
        shapes = tuple((tuple(leaf.shape), leaf.dtype) for leaf in leaves if isinstance(leaf, Tensor))
        by_shape.setdefault((str(spec), shapes), []).append(position)
    return [
        Bucket(
            positions=tuple(positions),
            work=Work(loss_fn=loss_fn, batch=[batch.batches[i] for i in positions], own=True),
        )
        for positions in by_shape.values()
    ]
