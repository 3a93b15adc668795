"""The level 2 problem as values: a chain of links, stages with memory, and what an answer looks like."""

from dataclasses import dataclass
from enum import StrEnum


class Recompute(StrEnum):
    """Which layers may be recomputed."""

    FREE = "free"
    NONE = "none"
    ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A layer for level 2: seconds and bytes of one micro-batch on one device."""

    forward_s: float
    backward_s: float
    recompute_s: float
    static_bytes: int
    saved_bytes: int
    """Per micro-batch in flight, when not recomputed."""
    kept_bytes: int
    """Per micro-batch in flight, when recomputed."""
    tail_s: float = 0.0
    weight_s: float = 0.0
    recomputable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One tuple of degrees, as level 2 sees it."""

    links: tuple[Link, ...]
    stages: int
    micro_batches: int
    in_flight: tuple[int, ...]
    capacity_bytes: int
    receive_forward_s: tuple[float, ...]
    receive_backward_s: tuple[float, ...]
    tail_s: float = 0.0
    fill: tuple[float, float] = (1.0, 0.0)
    chunks: int = 1
    recompute: Recompute = Recompute.FREE
    boundaries: tuple[int, ...] | None = None
    """Where stages begin and end (s + 1 numbers), where that is not to be chosen."""

    def stage_bytes(self, stage: int, static: int, saved: int, recomputed: bool, reserve: int) -> int:
        """Bytes of a stage: what stands, what is in flight, and room to rebuild one layer where any is recomputed."""
        return static + _ceil(self.in_flight[stage] * saved, self.chunks) + (reserve if recomputed else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """A, R and what they cost."""

    boundaries: tuple[int, ...]
    recomputed: tuple[int, ...]
    """Indices of the links that are recomputed."""
    objective_s: float
    exact: bool = True


def _ceil(value: int, divisor: int) -> int:
    return -(-value // divisor)
