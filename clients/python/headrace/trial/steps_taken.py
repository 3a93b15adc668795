"""How many steps a trial's optimizer has taken. Adam's state says it; SGD's does not.

A checkpoint of a trial alone says it too. A bundle's group needs the number to take the trial in: the trial's schedule,
its dropout and the data that it sees next follow from it.
"""

from contextlib import suppress
from typing import Any

OPTIMIZER = "optimizer"
"""The name under which a script tracks the optimizer that is counted; a bundle reads it under the same name."""


class StepsTaken:
    """Counts the steps of one optimizer, over all processes of a trial."""

    def __init__(self, before: int | None) -> None:
        """`before` is what the checkpoint says: 0 for a trial that begins, None for a checkpoint that says nothing."""
        self._before = before
        self._own = 0

    def follow(self, optimizer: Any) -> None:
        """Counts from now on. An optimizer that does not tell of its steps, as torch's do, is not counted."""
        register = getattr(optimizer, "register_step_post_hook", None)
        if callable(register):
            with suppress(AttributeError):  # a wrapper that was made without torch's own constructor
                register(self._count)

    @property
    def known(self) -> int | None:
        """The number; None where nothing was counted."""
        return None if self._before is None else (self._before + self._own) or None

    def _count(self, *_: Any) -> None:
        self._own += 1
