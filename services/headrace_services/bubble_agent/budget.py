"""How much of the windows and of the memory trials may use: levels, from everything down to nothing."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """What trials get.

    Attributes:
        windows: the share of each predicted window.
        members: the share of the members that fit the stage's memory (the fusion count).
    """

    windows: float
    members: float


LEVELS: Final = (
    Level(windows=1, members=1),
    Level(windows=1 / 2, members=1),
    Level(windows=1 / 4, members=1),
    Level(windows=1 / 4, members=1 / 2),
    Level(windows=1 / 4, members=1 / 4),
    Level(windows=0, members=0),
)
"""First the budget is halved, then the fusion count shrinks, then nothing runs."""

DISABLED: Final = len(LEVELS) - 1
HEADROOM: Final = 0.05
"""The share of the device's free memory that is kept free for unmeasured uses."""
STEPS_BEFORE_MEMORY: Final = 5
"""A job reaches its peak memory in its first steps; before that, no memory counts as free."""


def free_memory_bytes(*, free: int, reserved: int, peak: int, steps: int) -> int:
    """Returns what trials may allocate on the device, in bytes.

    Args:
        free: the device's free memory.
        reserved: what the primary's allocator holds now.
        peak: the most that it has held.
        steps: the number of steps that the primary has taken.
    """
    if steps < STEPS_BEFORE_MEMORY:
        return 0
    return max(0, int((free - (peak - reserved)) * (1 - HEADROOM)))


def members(*, fitting: int, level: Level) -> int:
    """Returns how many of the fitting members of a fused trial run; at least one unless the level is the last."""
    if level.members == 0 or fitting == 0:
        return 0
    return max(1, int(fitting * level.members))
