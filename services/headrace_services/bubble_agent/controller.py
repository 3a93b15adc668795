"""The safety controller: trials lose their budget, level by level, until measurements show that the primary is not
slowed.

At least one step in twenty is a control step without trials. After every `LOOK` control steps the controller
checks the upper 95 % bound of the slowdown:

    at most 1 %                 the level holds; after `CALM` such checks in a row the next better level is retried
    above, and a slowdown is    one level down: the budget is halved, then the fusion count shrinks, then trials end
    certain (lower bound > 0)
    above, but uncertain        more control steps, up to every second one; after `PATIENCE` checks one level down if
                                the mean is above 1 %, too: a bound from few steps is wide, and proves little alone

A memory alarm or a failed collective of the primary disables trials at once, and for good: only a new primary
starts over.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final

from headrace_services.bubble_agent.budget import DISABLED, LEVELS, Level
from headrace_services.bubble_agent.slowdown import Slowdown, slowdown

MOST: Final = 0.01
"""The limit for the upper bound of the slowdown."""
LEAST_CONTROL: Final = 0.05
MOST_CONTROL: Final = 0.5
LOOK: Final = 20
"""Control steps between two checks."""
CALM: Final = 10
PATIENCE: Final = 8
KEPT: Final = 2000
"""How many steps of each kind are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a check changed.

    Attributes:
        level: index into `LEVELS` from now on.
        why: for people; empty if nothing changed.
    """

    level: int
    why: str


class Controller:
    """One job's controller. It receives every step and decides what trials get."""

    def __init__(self) -> None:
        """Starts with the whole budget."""
        self._index = 0
        self._tried_again = False
        self._calm = self._unresolved = self._since_look = 0
        self._filled: deque[float] = deque(maxlen=KEPT)
        self._control: deque[float] = deque(maxlen=KEPT)
        self.control_share = LEAST_CONTROL
        self.why = ""

    @property
    def level(self) -> Level:
        """What trials get now."""
        return LEVELS[self._index]

    @property
    def index(self) -> int:
        """The current level's index in `LEVELS`."""
        return self._index

    @property
    def disabled(self) -> bool:
        """Whether trials get nothing."""
        return self._index == DISABLED

    def slowdown(self) -> Slowdown | None:
        """Returns what the steps of this level show; None while there are too few."""
        return slowdown(self._filled, self._control)

    def alarm(self, why: str) -> None:
        """Disables trials at once."""
        self._move(DISABLED, f"disabled: {why}")

    def observe(self, *, seconds: float, control: bool) -> Verdict | None:
        """Receives one step of the primary; returns a verdict if this step led to a check that changed something."""
        if self.disabled:
            return None
        (self._control if control else self._filled).append(seconds)
        self._since_look += control
        if self._since_look < LOOK:
            return None
        seen = self.slowdown()
        if seen is None:
            return None
        self._since_look = 0
        before = (self._index, self.control_share)
        self._look(seen)
        changed = before != (self._index, self.control_share)
        return Verdict(level=self._index, why=self.why) if changed else None

    def _look(self, seen: Slowdown) -> None:
        told = f"slowdown {seen.mean:.2%}, 95 % bound {seen.high:.2%}, allowed {MOST:.0%}"
        if seen.high <= MOST:
            self._unresolved = 0
            self._calm += 1
            self.control_share = max(LEAST_CONTROL, self.control_share / 2)
            self.why = f"fewer control steps: {told}"
            if self._calm >= CALM and self._index > 0 and not self._tried_again:
                self._tried_again = True
                self._move(self._index - 1, "one level up: the bound held")
            return
        self._calm = 0
        self._unresolved += 1
        if seen.low > 0 or (self._unresolved > PATIENCE and seen.mean > MOST):
            self._move(self._index + 1, f"one level down: {told}")
        else:
            self.control_share = min(MOST_CONTROL, 2 * self.control_share)
            self.why = f"more control steps: {told}"

    def _move(self, index: int, why: str) -> None:
        """Switches to another level; measurements from the old one say nothing about it."""
        self._index, self.why = min(index, DISABLED), why
        self._filled.clear()
        self._control.clear()
        self._calm = self._unresolved = self._since_look = 0
