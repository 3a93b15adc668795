"""How many steps a trial's optimizer has taken. Adam's state has the number; SGD's does not.

So a single trial's checkpoint also stores it. A bundle's group needs the number to add the trial: the trial's
schedule, its dropout and its next data follow from it.
"""

from contextlib import suppress
from typing import Any

OPTIMIZER = "optimizer"
"""The name under which a script tracks the optimizer that is counted; a bundle reads it under the same name."""


class StepsTaken:
    """Counts the steps of one optimizer, over all processes of a trial."""

    def __init__(self, before: int | None) -> None:
        """`before` is the number in the checkpoint: 0 for a new trial, None for a checkpoint without the number."""
        self._before = before
        self._own = 0

    def follow(self, optimizer: Any) -> None:
        """Counts from now on. An optimizer without hooks for its steps, which torch's have, is not counted."""
        register = getattr(optimizer, "register_step_post_hook", None)
        if callable(register):
            with suppress(AttributeError):  # a wrapper that was created without torch's own constructor
                register(self._count)

    @property
    def known(self) -> int | None:
        """The number of steps; None if nothing was counted."""
        return None if self._before is None else (self._before + self._own) or None

    def _count(self, *_: Any) -> None:
        self._own += 1
