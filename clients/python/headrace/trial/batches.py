"""Batches of indices that know their position in the data, which is part of the checkpoint.

`(epoch, position)` identifies the next batch. It advances before a batch is returned. So while batch k is in use
the state says k+1, and a save at that moment resumes without repeating or skipping one. Each epoch's order
depends only on the seed and the epoch, never on a generator's history.

With `DataLoader(batch_sampler=batches, num_workers=0)` this is exact at every batch. Loader workers fetch ahead,
so with `num_workers > 0` it is exact only at the end of each epoch.
"""

import random
from collections.abc import Iterator
from typing import Any


class ResumableBatches:
    """Lists of at most `batch_size` indices below `size`, in a new order in each epoch."""

    def __init__(
        self, size: int, batch_size: int, *, seed: int, shuffle: bool = True, drop_last: bool = False
    ) -> None:
        if size < 1 or batch_size < 1:
            raise ValueError(f"size and batch_size must be at least 1, not {size} and {batch_size}")
        if drop_last and batch_size > size:
            raise ValueError(
                f"batch_size {batch_size} exceeds size {size}: with drop_last there is no batch at all"
            )
        self.size = size
        self.batch_size = batch_size
        self.seed = seed
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.epoch = 0
        self.position = 0

    def __len__(self) -> int:
        """The number of batches in a whole epoch."""
        return self.size // self.batch_size if self.drop_last else -(-self.size // self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        """The rest of the current epoch. Afterwards, the next epoch is the current one."""
        order = self._order(self.epoch)
        for number in range(self.position, len(self)):
            self._move_past(number)
            yield order[number * self.batch_size : (number + 1) * self.batch_size]

    def take(self, count: int) -> Iterator[list[int]]:
        """The next `count` batches, across the ends of epochs."""
        while count > 0:
            order, first = self._order(self.epoch), self.position
            for number in range(first, min(first + count, len(self))):
                self._move_past(number)
                yield order[number * self.batch_size : (number + 1) * self.batch_size]
                count -= 1

    def state_dict(self) -> dict[str, Any]:
        """The position, and everything that determines the order: seed, sizes and options."""
        return {
            "epoch": self.epoch,
            "position": self.position,
            "size": self.size,
            "batch_size": self.batch_size,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "drop_last": self.drop_last,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from `state`, in the order of the trial that saved it, which may be another one in a
        population.

        Raises `ValueError` if the state is for different data, or from the middle of an epoch with different
        batches.
        """
        same = (
            ("size", "shuffle") if state["position"] == 0 else ("size", "shuffle", "batch_size", "drop_last")
        )
        for name in same:
            if state[name] != getattr(self, name):
                raise ValueError(
                    f"the checkpoint's batches have {name}={state[name]}, these have {getattr(self, name)}: "
                    "not the same order"
                )
        self.seed, self.epoch, self.position = state["seed"], state["epoch"], state["position"]

    def _move_past(self, number: int) -> None:
        last = number + 1 == len(self)
        self.epoch, self.position = (self.epoch + 1, 0) if last else (self.epoch, number + 1)

    def _order(self, epoch: int) -> list[int]:
        order = list(range(self.size))
        if self.shuffle:
            random.Random(f"{self.seed}/{epoch}").shuffle(order)  # noqa: S311 - an order, not a secret
        return order
