"""The losses of a simulated cluster: time for checkpoints, and machines that fail."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite
from types import MappingProxyType


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """The times of everything but training, in seconds.

    A trial writes a checkpoint before each report that leads to a decision, on its slot, and reads it when it is
    resumed: a checkpoint of C bytes at B bytes per second costs a paused trial 2C/B.
    """

    write_s: float = 0.0
    read_s: float = 0.0
    start_s: float = 0.0
    """From the assignment of a trial to its first step of training, for example for imports and data."""
    size_bytes: int = 0
    scaling: float = 1.0
    """A trial on n times the slots that its study asks for, or n times the share, trains n^scaling times as fast."""
    apart: float = 1.0
    """A gang whose interconnect is known to be slower than NVLink trains this many times as fast."""
    crowding: Mapping[int, float] = field(default_factory=dict)
    """How many times as long as a lone trial's the step of a bundle takes, by number of members: interpolated
    linearly in between, and extrapolated beyond. Without any, a step takes as long as a lone trial's."""

    def __post_init__(self) -> None:
        if any(members < 2 or not isfinite(times) or times < 1.0 for members, times in self.crowding.items()):
            raise ValueError(
                f"crowding={dict(self.crowding)}: give numbers of members from 2 on, each with at least 1.0"
            )

    def slowdown(self, members: int) -> float:
        """How many times as long as a lone trial's a step of a bundle with this many members takes."""
        points = sorted({1: 1.0, **self.crowding}.items())
        for (few, least), (many, most) in pairwise(points):
            if members <= many or (many, most) == points[-1]:
                return max(1.0, least + (most - least) * (members - few) / (many - few))
        return 1.0

    @classmethod
    def of_size(
        cls,
        checkpoint_bytes: float,
        bytes_per_s: float,
        *,
        start_s: float = 0.0,
        scaling: float = 1.0,
        apart: float = 1.0,
        crowding: Mapping[int, float] = MappingProxyType({}),
    ) -> "Costs":
        """The costs of checkpoints of C bytes at B bytes per second in both directions."""
        each = checkpoint_bytes / bytes_per_s
        size = int(checkpoint_bytes)
        return cls(
            write_s=each,
            read_s=each,
            start_s=start_s,
            size_bytes=size,
            scaling=scaling,
            apart=apart,
            crowding=crowding,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Machines fail at random moments, exponentially distributed; None for never. The scheduler learns of
    it `detect_s` later (the lease's time to live), and the machine is back after `repair_s`. Work since a trial's last
    checkpoint is lost."""

    mean_time_s: float | None = None
    detect_s: float = 0.0
    repair_s: float = 0.0
    seed: int = 0

    def clock(self, machine: int) -> random.Random:
        """The random generator of one machine: its failures do not depend on what runs on others."""
        return random.Random(f"headrace failures {self.seed} {machine}")  # noqa: S311  (no secret)
