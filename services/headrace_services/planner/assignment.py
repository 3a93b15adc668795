"""Level 2, exactly: which layers stand on which stage (A), and which of them are recomputed (R).

A problem is a chain of links, s stages and an amount of memory. A stage that holds the links [a, b) takes
T = ΣF + ΣB + Σ_{R} recompute + its receives, keeps k_j micro-batches in flight, and the whole takes

    Σ_j (α·T_j − ω·W_j) + max_j [(µ − α)·T_j + tail_j]                                    (`simulator.closed_form_s`)

which for 1F1B is ΣT_j + (µ − 1)·max T_j. A tail is what of a stage's gradient and parameter collectives no pass hides
(`Problem.stage_tail_s`), and the optimizer's step; it depends on the stage's links alone. For one stage only T depends
on R, and both terms grow with T; so the best R of an interval is the cheapest that frees enough memory, a knapsack
whose whole Pareto front (bytes freed against seconds) is kept per multiset of links. Equal links make that front a
line: its k-th point recomputes k of them. Then, for a bound on the bottleneck, the best A is a dynamic programme over
contiguous stages; and the bounds that matter are found by bisection, since Σ falls as the bound rises. The answer is a
minimum of the objective over all (A, R).

Memory is whole bytes. Fronts beyond `fronts.FRONT_LIMIT` points (many different layers) are thinned, which is safe;
`Solution.exact` then says false.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from headrace_services.planner.fronts import Chain
from headrace_services.planner.problem import Problem, Recompute, Solution


def solve(problem: Problem) -> Solution | None:
    """The best (A, R), or None when no (A, R) fits."""
    chain = Chain(problem)
    tables = _tables(chain)
    if problem.boundaries is not None:
        return _fixed(chain, tables, problem.boundaries)
    low = _least_bottleneck(tables)
    if not np.isfinite(low):
        return None
    candidates = np.unique(np.concatenate([table.bottleneck.ravel() for table in _distinct(tables)]))
    candidates = candidates[np.isfinite(candidates) & (candidates >= low)]
    best = _search(tables, candidates)
    return _read_out(chain, tables, best)


def least_memory(problem: Problem) -> tuple[int, int]:
    """(bytes, stage): the least that the fullest stage of any assignment needs, and which stage that is."""
    chain = Chain(problem)
    tables = []
    for stage in range(problem.stages):
        k, v = problem.in_flight[stage], problem.chunks
        static = chain.sums([link.static_bytes for link in chain.kinds])
        saved = chain.sums([link.saved_bytes for link in chain.kinds])
        kept = chain.sums([k.kept_bytes if k.recomputable else k.saved_bytes for k in chain.kinds])
        free = static - (-k * saved // v)
        again = static - (-k * kept // v) + float(chain.reserve)
        allowed = {Recompute.NONE: free, Recompute.ALL: again, Recompute.FREE: np.minimum(free, again)}
        tables.append(np.append(allowed[problem.recompute].astype(float), np.inf)[chain.signature])
    if problem.boundaries is not None:
        used = [table[a, b] for table, (a, b) in zip(tables, pairwise(problem.boundaries), strict=True)]
    else:
        used = _fullest(tables)
    worst = max(range(len(used)), key=lambda stage: used[stage])
    return (int(used[worst]) if np.isfinite(used[worst]) else 1 << 62), worst


def _fullest(tables: Sequence[NDArray[np.float64]]) -> list[float]:
    """Bytes per stage of the assignment whose fullest stage is least full."""
    reach = np.full(tables[0].shape[0], np.inf)
    reach[0] = -np.inf
    came = []
    for table in tables:
        through = np.maximum(reach[:, None], table)
        came.append(through.argmin(axis=0))
        reach = through.min(axis=0)
    end, used = len(reach) - 1, []
    for table, origin in zip(reversed(tables), reversed(came), strict=True):
        used.append(float(table[origin[end], end]))
        end = int(origin[end])
    return used[::-1]


@dataclass(frozen=True, slots=True)
class _Table:
    """Per interval [a, b) of one stage: its part of the sum, and of the maximum; ∞ where it does not fit."""

    filling: NDArray[np.float64]
    bottleneck: NDArray[np.float64]


def stage_seconds(chain: Chain, stage: int, counts: tuple[int, ...]) -> tuple[float, tuple[int, ...]] | None:
    """T of a stage with these links at its best R, and R as counts per kind; None when nothing fits."""
    problem = chain.problem
    base = problem.receive_forward_s[stage] + problem.receive_backward_s[stage]
    static = saved = 0
    recomputable: list[int] = []
    for link, number in zip(chain.kinds, counts, strict=True):
        base += number * (link.forward_s + link.backward_s)
        static += number * link.static_bytes
        saved += number * link.saved_bytes
        recomputable.append(number if link.recomputable else 0)
    none = tuple(0 for _ in counts)
    k, v = problem.in_flight[stage], problem.chunks
    if problem.recompute is Recompute.ALL:
        kept = sum(
            n * (link.kept_bytes if link.recomputable else link.saved_bytes)
            for link, n in zip(chain.kinds, counts, strict=True)
        )
        extra = sum(n * link.recompute_s for link, n in zip(chain.kinds, recomputable, strict=True))
        fits = problem.stage_bytes(stage, static, kept, any(recomputable), chain.reserve)
        return (base + extra, tuple(recomputable)) if fits <= problem.capacity_bytes else None
    if problem.stage_bytes(stage, static, saved, False, chain.reserve) <= problem.capacity_bytes:
        return base, none
    if problem.recompute is Recompute.NONE:
        return None
    room = problem.capacity_bytes - chain.reserve - static
    if room < 0:
        return None
    needed = saved - room * v // k
    front = chain.front(counts)
    point = bisect_left(front.freed, max(needed, 1))
    if point == len(front.freed):
        return None
    return base + front.seconds[point], front.counts[point]


def _tables(chain: Chain) -> list[_Table]:
    """One table per stage; stages that are alike share one."""
    problem = chain.problem
    alpha, omega = problem.fill
    shared: dict[tuple[int, float, float], _Table] = {}
    tables = []
    weights, tails = chain.sums([k.weight_s for k in chain.kinds]), _tails(chain)
    for stage in range(problem.stages):
        key = (
            problem.in_flight[stage],
            problem.receive_forward_s[stage],
            problem.receive_backward_s[stage],
        )
        if key not in shared:
            seconds = _seconds(chain, stage)
            filling = np.append(alpha * seconds - omega * weights, np.inf)
            fits = np.isfinite(seconds)
            steady = (problem.micro_batches - alpha) * np.where(fits, seconds, 0.0)
            worst = np.where(fits, steady + tails + problem.tail_s, np.inf)
            shared[key] = _Table(filling[chain.signature], np.append(worst, np.inf)[chain.signature])
        tables.append(shared[key])
    return tables


def _tails(chain: Chain) -> NDArray[np.float64]:
    """`Problem.stage_tail_s` of every multiset at once, without the problem's own tail."""
    reduce = chain.sums([k.reduce_s for k in chain.kinds]) - chain.sums(
        [k.reduce_behind_s for k in chain.kinds]
    )
    gather = chain.sums([k.gather_s for k in chain.kinds]) - chain.sums(
        [k.gather_behind_s for k in chain.kinds]
    )
    exposed = np.maximum(reduce, 0.0) + np.maximum(gather, 0.0)
    tails: NDArray[np.float64] = chain.sums([k.tail_s for k in chain.kinds]) + exposed
    return tails


def _seconds(chain: Chain, stage: int) -> NDArray[np.float64]:
    """`stage_seconds` of every multiset at once; only those that must and may recompute are looked at one by one."""
    problem, kinds = chain.problem, chain.kinds
    k, v, capacity = problem.in_flight[stage], problem.chunks, problem.capacity_bytes
    static = chain.sums([link.static_bytes for link in kinds])
    saved = chain.sums([link.saved_bytes for link in kinds])
    most = chain.sums([(link.saved_bytes - link.kept_bytes) * link.recomputable for link in kinds])
    base = chain.sums([link.forward_s + link.backward_s for link in kinds])
    base = base + problem.receive_forward_s[stage] + problem.receive_backward_s[stage]
    fits = static - (-k * saved // v) <= capacity
    possible = static - (-k * (saved - most) // v) <= capacity
    if problem.recompute is Recompute.ALL:
        fits = np.zeros_like(fits)
    elif problem.recompute is Recompute.NONE:
        possible = fits
    seconds = np.where(fits, base, np.inf)
    for number in np.flatnonzero(possible & ~fits):
        found = stage_seconds(chain, stage, chain.counts[number])
        if found is not None:
            seconds[number] = found[0]
    return seconds


def _distinct(tables: Sequence[_Table]) -> list[_Table]:
    return list({id(table): table for table in tables}.values())


def _least_bottleneck(tables: Sequence[_Table]) -> float:
    """The least maximum over the stages of any assignment."""
    reach = np.full(tables[0].bottleneck.shape[0], np.inf)
    reach[0] = -np.inf
    for table in tables:
        reach = np.maximum(reach[:, None], table.bottleneck).min(axis=0)
    return float(reach[-1])


def _least_filling(tables: Sequence[_Table], bound: float) -> float:
    """The least sum among the assignments whose bottleneck is within the bound."""
    reach = np.full(tables[0].filling.shape[0], np.inf)
    reach[0] = 0.0
    for table in tables:
        allowed = np.where(table.bottleneck <= bound, table.filling, np.inf)
        reach = (reach[:, None] + allowed).min(axis=0)
    return float(reach[-1])


def _search(tables: Sequence[_Table], candidates: NDArray[np.float64]) -> float:
    """The bound with the least sum plus bound. Between two bounds nothing beats the larger's sum at the smaller."""
    sums: dict[int, float] = {}

    def at(index: int) -> float:
        if index not in sums:
            sums[index] = _least_filling(tables, float(candidates[index]))
        return sums[index]

    best_index, best = 0, at(0) + float(candidates[0])
    open_ranges = [(0, len(candidates) - 1)]
    while open_ranges:
        low, high = open_ranges.pop()
        if high <= low or at(high) + float(candidates[low + 1]) >= best:
            continue
        middle = (low + high + 1) // 2
        total = at(middle) + float(candidates[middle])
        if total < best:
            best_index, best = middle, total
        if at(high) + float(candidates[high]) < best:
            best_index, best = high, at(high) + float(candidates[high])
        if high - low > 1:
            open_ranges += [(middle, high - 1), (low, middle - 1)] if middle < high else [(low, middle - 1)]
    return float(candidates[best_index])


def _read_out(chain: Chain, tables: Sequence[_Table], bound: float) -> Solution:
    """The assignment behind the least sum within the bound: of equal ones, the one whose stages begin earliest."""
    size = tables[0].filling.shape[0]
    reach = np.full(size, np.inf)
    reach[0] = 0.0
    came: list[NDArray[np.intp]] = []
    for table in tables:
        through = reach[:, None] + np.where(table.bottleneck <= bound, table.filling, np.inf)
        came.append(through.argmin(axis=0))
        reach = through.min(axis=0)
    boundaries = [size - 1]
    for origin in reversed(came):
        boundaries.append(int(origin[boundaries[-1]]))
    return _priced(chain, tuple(reversed(boundaries)))


def _fixed(chain: Chain, tables: Sequence[_Table], boundaries: tuple[int, ...]) -> Solution | None:
    for stage, table in enumerate(tables):
        if not np.isfinite(table.bottleneck[boundaries[stage], boundaries[stage + 1]]):
            return None
    return _priced(chain, boundaries)


def _priced(chain: Chain, boundaries: tuple[int, ...]) -> Solution:
    """R for given boundaries, and the objective in plain arithmetic."""
    problem = chain.problem
    alpha, omega = problem.fill
    filling, worst, exact = 0.0, 0.0, True
    recomputed: list[int] = []
    for stage, (a, b) in enumerate(pairwise(boundaries)):
        counts = chain.counts[int(chain.signature[a, b])]
        found = stage_seconds(chain, stage, counts)
        if found is None:
            raise ValueError(f"stage {stage} with layers {a} to {b} does not fit")
        seconds, chosen = found
        left = list(chosen)
        for link in range(a, b):
            if left[chain.kind_of[link]] > 0:
                left[chain.kind_of[link]] -= 1
                recomputed.append(link)
        links = problem.links[a:b]
        filling += alpha * seconds - omega * sum(link.weight_s for link in links)
        worst = max(worst, (problem.micro_batches - alpha) * seconds + problem.stage_tail_s(links))
        exact = exact and chain.is_exact(counts)
    return Solution(
        boundaries=boundaries, recomputed=tuple(recomputed), objective_s=filling + worst, exact=exact
    )
