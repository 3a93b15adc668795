"""The intervals of a chain by their multisets of links, and for each the Pareto front of recomputation.

An interval's cost depends on which kinds of links it holds and not on its position, so a model with few kinds has
few multisets, whatever its length. A front lists, for every amount of memory worth freeing, the least time for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from headrace_services.planner.problem import Link, Problem

FRONT_LIMIT = 1024
"""A front with more points than this keeps every other one."""


@dataclass(slots=True)
class Front:
    """The Pareto front of a multiset of links: the least seconds for freeing at least a number of bytes."""

    freed: list[int]
    seconds: list[float]
    counts: list[tuple[int, ...]]
    exact: bool = True


@dataclass(slots=True)
class Chain:
    """What does not depend on the degrees' memory: kinds of links, their prefix sums and the fronts of intervals."""

    problem: Problem
    kinds: list[Link] = field(init=False)
    kind_of: list[int] = field(init=False)
    signature: NDArray[np.int64] = field(init=False)
    """For interval [a, b), the number of its multiset."""
    ending: NDArray[np.int64] = field(init=False)
    """For the interval that ends at b, the number of its multiset: a row for each b, longest interval first."""
    beginning: NDArray[np.int64] = field(init=False)
    """Where these intervals start."""
    counts: list[tuple[int, ...]] = field(init=False)
    matrix: NDArray[np.float64] = field(init=False)
    reserve: int = field(init=False)
    static: NDArray[np.float64] = field(init=False)
    """Per multiset, like all the following: constant bytes."""
    saved: NDArray[np.float64] = field(init=False)
    """Bytes of a micro-batch if nothing is recomputed."""
    kept: NDArray[np.float64] = field(init=False)
    """Bytes of a micro-batch if everything recomputable is recomputed."""
    passes: NDArray[np.float64] = field(init=False)
    """Seconds of both passes, without recomputing and receiving."""
    again_s: NDArray[np.float64] = field(init=False)
    """Seconds of recomputing everything recomputable."""
    recomputable: NDArray[np.float64] = field(init=False)
    """The number of recomputable links."""
    weights: NDArray[np.float64] = field(init=False)
    """Seconds of weight gradients."""
    lengths: NDArray[np.int64] = field(init=False)
    """The number of links."""
    _fronts: dict[tuple[int, ...], Front] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        links = self.problem.links
        self.kinds = list(dict.fromkeys(links))
        index = {link: number for number, link in enumerate(self.kinds)}
        self.kind_of = [index[link] for link in links]
        self.reserve = max((k.saved_bytes - k.kept_bytes for k in self.kinds if k.recomputable), default=0)
        self.signature, self.ending, self.counts = _signatures(tuple(self.kind_of), len(self.kinds))
        positions = np.arange(len(links) + 1)
        self.beginning = np.maximum(positions[:, None] - positions[:0:-1], 0)
        self.matrix = np.array(self.counts, dtype=np.float64)
        self.static = self.sums([k.static_bytes for k in self.kinds])
        self.saved = self.sums([k.saved_bytes for k in self.kinds])
        self.kept = self.sums([k.kept_bytes if k.recomputable else k.saved_bytes for k in self.kinds])
        self.passes = self.sums([k.forward_s + k.backward_s for k in self.kinds])
        self.again_s = self.sums([k.recompute_s * k.recomputable for k in self.kinds])
        self.recomputable = self.sums([k.recomputable for k in self.kinds])
        self.weights = self.sums([k.weight_s for k in self.kinds])
        self.lengths = self.matrix.sum(axis=1).astype(np.int64)

    def front(self, counts: tuple[int, ...]) -> Front:
        """The front of a multiset, built from that of its earlier kinds, which usually exists already."""
        missing: list[tuple[int, int]] = []
        rest = list(counts)
        while tuple(rest) not in self._fronts and any(rest):
            kind = max(index for index, number in enumerate(rest) if number)
            missing.append((kind, rest[kind]))
            rest[kind] = 0
        front = self._fronts.get(tuple(rest)) or Front([0], [0.0], [tuple(0 for _ in counts)])
        for kind, number in reversed(missing):
            rest[kind] = number
            link = self.kinds[kind]
            freed = link.saved_bytes - link.kept_bytes
            if link.recomputable and freed > 0:
                front = _extended(front, kind, number, freed, link.recompute_s)
            self._fronts[tuple(rest)] = front
        return front

    def is_exact(self, counts: tuple[int, ...]) -> bool:
        """Whether this multiset's front has all its points."""
        known = self._fronts.get(counts)
        return known is None or known.exact

    def sums(self, values: Sequence[float]) -> NDArray[np.float64]:
        """Per multiset, the sum of a value of its links (whole bytes are exact below 2⁵³)."""
        # As floats: 64-bit integers would wrap around at absurd sizes.
        total: NDArray[np.float64] = self.matrix @ np.array(values, dtype=np.float64)
        return total


def _extended(front: Front, kind: int, number: int, freed: int, seconds: float) -> Front:
    """The front with up to `number` more equal links: every point with every count, without dominated ones."""
    points = [
        (f + n * freed, t + n * seconds, (*c[:kind], n, *c[kind + 1 :]))
        for f, t, c in zip(front.freed, front.seconds, front.counts, strict=True)
        for n in range(number + 1)
    ]
    # From the most bytes freed downwards: a point stays if it is cheaper than all that free at least as much.
    points.sort(key=lambda point: (-point[0], point[1], point[2]))
    kept: list[tuple[int, float, tuple[int, ...]]] = []
    cheapest = float("inf")
    for point in points:
        if point[1] < cheapest:
            kept.append(point)
            cheapest = point[1]
    kept.reverse()
    exact = front.exact
    while len(kept) > FRONT_LIMIT:
        # What remains is still correct, only coarser; the point that frees most stays, so nothing becomes
        # infeasible.
        kept, exact = kept[:1] + kept[-1:0:-2][::-1], False
    return Front([p[0] for p in kept], [p[1] for p in kept], [p[2] for p in kept], exact)


@lru_cache(maxsize=64)
def _signatures(
    kind_of: tuple[int, ...], kinds: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], list[tuple[int, ...]]]:
    """`Chain.signature`, `Chain.ending` and `Chain.counts`; −1, the ∞ at the end, if an interval is empty."""
    size = len(kind_of)
    numbers: dict[tuple[int, ...], int] = {}
    table = np.full((size + 1, size + 1), -1, dtype=np.int64)
    ending = np.full((size + 1, size), -1, dtype=np.int64)
    for a in range(size):
        counts = [0] * kinds
        for b in range(a + 1, size + 1):
            counts[kind_of[b - 1]] += 1
            table[a, b] = ending[b, size - (b - a)] = numbers.setdefault(tuple(counts), len(numbers))
    return table, ending, list(numbers)
