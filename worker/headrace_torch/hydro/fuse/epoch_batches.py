"""Batches by epochs, the same for a member in any group: what it sees depends on how many batches it has seen.

    epoch, place = divmod(seen, batches of an epoch)
    rows         those of batch `place`, in the order that (seed, epoch) gives

So there is nothing to save or restore: a member that returns continues with its own next batch.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from headrace_torch.hydro.fuse.buckets import PerMember
from headrace_torch.hydro.fuse.dropout import key
from headrace_torch.hydro.fuse.errors import FuseError, MemberError
from headrace_torch.hydro.fuse.group import Group


class EpochBatches:
    """One epoch for each member of a group: iterate it once an epoch.

    ```python
    batches = hydro.EpochBatches(group, images, labels, batch_size=64, seed=0)
    for batch in batches:
        group.step(batch, loss_fn)
    ```

    Members that have seen equally many batches share one batch, else each has its own (`PerMember`). Members may join
    and leave between two batches.
    """

    def __init__(
        self, group: Group, *tensors: Tensor, batch_size: int, seed: int = 0, drop_last: bool = False
    ) -> None:
        """Reads only the data's sizes.

        Args:
            group: its members' counts give their positions.
            tensors: the data, row by row; a batch is a tuple with one tensor for each, or a tensor if there is
                only one.
            batch_size: rows of a batch; the last batch of an epoch may have fewer.
            seed: the order's seed; the same for all members.
            drop_last: whether to leave out a last batch with fewer rows.

        Raises:
            FuseError: no data, tensors of different lengths, or no batch at all.
        """
        lengths = {len(one) for one in tensors}
        if len(lengths) != 1 or 0 in lengths:
            raise FuseError(
                f"the tensors have {sorted(lengths)} rows: give at least one, all of one length, at least 1"
            )
        self._rows = lengths.pop()
        if batch_size < 1 or (drop_last and batch_size > self._rows):
            raise FuseError(
                f"batch_size must be in 1 to {self._rows}, the rows of the data, not {batch_size}"
            )
        self._group, self._tensors = group, tensors
        self._size, self._seed, self._drop_last = batch_size, seed, drop_last
        self._orders: dict[int, Tensor] = {}

    def __len__(self) -> int:
        """The number of batches of an epoch."""
        return self._rows // self._size if self._drop_last else -(-self._rows // self._size)

    def __iter__(self) -> Iterator[Tensor | tuple[Tensor, ...] | PerMember]:
        """Yields the batches of one epoch; each time, every member's own next one.

        Raises:
            MemberError: a member has its own batch size, so its epochs would have another length.
        """
        for _ in range(len(self)):
            yield self._next()

    def of(self, seen: int) -> Tensor | tuple[Tensor, ...]:
        """Returns the batch of a member that has seen this many; a plain loop can train on the same ones."""
        epoch, place = divmod(seen, len(self))
        if epoch not in self._orders:
            self._orders[epoch] = self.order(epoch)
        at = self._orders[epoch][place * self._size : (place + 1) * self._size]
        found = tuple(one[at.to(one.device)] for one in self._tensors)
        return found if len(found) > 1 else found[0]

    def order(self, epoch: int) -> Tensor:
        """Returns the rows in the order of an epoch."""
        generator = torch.Generator().manual_seed(key(self._seed, epoch) >> 1)
        return torch.randperm(self._rows, generator=generator)

    def _next(self) -> Tensor | tuple[Tensor, ...] | PerMember:
        for number, member in self._group.members.items():
            if member.batch_size is not None:
                raise MemberError(
                    f"member {number}: batch_size {member.batch_size} gives it epochs of its own, and a group trains "
                    "all members at once: give batch_size to EpochBatches, one group per size",
                    member=number,
                )
        seen = list(self._group.seen().values())
        used = {one // len(self) for one in seen}
        self._orders = {epoch: order for epoch, order in self._orders.items() if epoch in used}
        batches = {one: self.of(one) for one in set(seen)}
        return batches[seen[0]] if len(batches) == 1 else PerMember([batches[one] for one in seen])
