"""Places between the parts of a group's step at which a callback may run: `Group.between`.

They are before each layer's forward pass, after each parameter's gradient, and before each member's update.
Nothing is computed there, and nothing may be.
"""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from torch import Tensor, nn

Callback = Callable[[int], None]
"""Receives the place's number, counted from 0 in each step."""


class Watchable(Protocol):
    """What puts places into its own work; every engine does."""

    def watch(self, between: "Between", /) -> None:
        """Installs them; called once."""
        ...


class Between:
    """Calls the callback at each place, while there is one.

    Attributes:
        callback: what to call; None for nothing.
    """

    def __init__(self) -> None:
        """Starts without a callback."""
        self.callback: Callback | None = None
        self._place = 0
        self._watched: object = None

    def begin(self, engine: Watchable) -> None:
        """A step of this engine starts: places are counted again, and installed in an engine that has none."""
        self._place = 0
        if self.callback is not None and self._watched is not engine:
            engine.watch(self)
            self._watched = engine

    def reached(self, *_: object) -> None:
        """Reports a place."""
        if self.callback is not None:
            self.callback(self._place)
            self._place += 1

    def watch_layers(self, module: nn.Module) -> None:
        """Puts a place before each layer's forward pass."""
        for layer in module.modules():
            if next(layer.children(), None) is None:
                layer.register_forward_pre_hook(self.reached)

    def watch_gradients(self, leaves: Iterable[Tensor]) -> None:
        """Puts a place where each leaf's gradient becomes known."""
        for leaf in leaves:
            known: Any = leaf.register_hook
            known(self.reached)
