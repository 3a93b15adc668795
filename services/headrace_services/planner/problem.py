"""The level 2 problem as values: a chain of links, stages with memory, and what an answer looks like."""

from collections.abc import Sequence
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
    """Per micro-batch in flight, if not recomputed."""
    kept_bytes: int
    """Per micro-batch in flight, if recomputed."""
    tail_s: float = 0.0
    """After the last backward pass, once per iteration: the part that nothing hides."""
    reduce_s: float = 0.0
    """The collective of its gradients, once per iteration."""
    reduce_behind_s: float = 0.0
    """The part of the stage's gradient collectives that this layer's last backward pass can hide."""
    gather_s: float = 0.0
    """The collective of its updated parameters, once per iteration."""
    gather_behind_s: float = 0.0
    """The part of the stage's parameter collectives that this layer's first forward pass can hide."""
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
    """Where stages start and end (s + 1 numbers), if that is given."""

    def stage_tail_s(self, links: Sequence[Link]) -> float:
        """The exposed time of a stage of these links after its last backward pass."""
        reduce = sum(link.reduce_s for link in links) - sum(link.reduce_behind_s for link in links)
        gather = sum(link.gather_s for link in links) - sum(link.gather_behind_s for link in links)
        return self.tail_s + sum(link.tail_s for link in links) + max(reduce, 0.0) + max(gather, 0.0)

    def stage_bytes(self, stage: int, static: int, saved: int, recomputed: bool, reserve: int) -> int:
        """Bytes of a stage: the constant part, what is in flight, and space to rebuild one layer if any is
        recomputed."""
        return static + _ceil(self.in_flight[stage] * saved, self.chunks) + (reserve if recomputed else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """A, R and their cost."""

    boundaries: tuple[int, ...]
    recomputed: tuple[int, ...]
    """Indices of the links that are recomputed."""
    objective_s: float
    exact: bool = True


def _ceil(value: int, divisor: int) -> int:
    return -(-value // divisor)
