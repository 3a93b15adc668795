"""Level 2, exactly: which layers are on which stage (A), and which of them are recomputed (R).

A problem is a chain of links, s stages and an amount of memory. A stage that holds the links [a, b) takes
T = ΣF + ΣB + Σ_{R} recompute + its receives, keeps k_j micro-batches in flight, and the whole takes

    Σ_j (α·T_j − ω·W_j) + max_j [(µ − α)·T_j + tail_j]                                    (`simulator.closed_form_s`)

which for 1F1B is ΣT_j + (µ − 1)·max T_j. A tail is the part of a stage's gradient and parameter collectives that
no pass hides (`Problem.stage_tail_s`), plus the optimizer's step; it depends only on the stage's links. For one
stage only T depends on R, and both terms grow with T. So the best R of an interval is the cheapest that frees
enough memory: a knapsack problem whose whole Pareto front (bytes freed against seconds) is kept per multiset of
links. Equal links make that front a line: its k-th point recomputes k of them. Then, for a bound on the
bottleneck, the best A follows from a dynamic programme over contiguous stages. The bounds that matter are found by
bisection, since Σ falls as the bound rises. The answer is a minimum of the objective over all (A, R). Intervals
that are too long for the bound are skipped.

Memory is in whole bytes. Fronts with more than `fronts.FRONT_LIMIT` points (many different layers) are thinned,
which is safe; `Solution.exact` is then false.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
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
    low = _least_bottleneck(chain, tables)
    if not np.isfinite(low):
        return None
    return _read_out(chain, tables, _search(chain, tables, low))


def least_memory(problem: Problem) -> tuple[int, int]:
    """(bytes, stage): the least that the fullest stage of any assignment needs, and the number of that stage."""
    chain = Chain(problem)
    tables = []
    for stage in range(problem.stages):
        k, v = problem.in_flight[stage], problem.chunks
        free = chain.static - (-k * chain.saved // v)
        again = chain.static - (-k * chain.kept // v) + float(chain.reserve)
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
    """Per multiset on one stage: its part of the sum, and of the maximum; ∞ if it does not fit, and at the end."""

    filling: NDArray[np.float64]
    bottleneck: NDArray[np.float64]


def stage_seconds(chain: Chain, stage: int, counts: tuple[int, ...]) -> tuple[float, tuple[int, ...]] | None:
    """T of a stage with these links at its best R, and R as counts per kind; None if nothing fits."""
    problem = chain.problem
    base = _passes_s(chain, stage, counts)
    static = saved = 0
    recomputable: list[int] = []
    for link, number in zip(chain.kinds, counts, strict=True):
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


def _passes_s(chain: Chain, stage: int, counts: tuple[int, ...]) -> float:
    """The time of a stage's passes and receives if nothing is recomputed."""
    problem = chain.problem
    seconds = problem.receive_forward_s[stage] + problem.receive_backward_s[stage]
    for link, number in zip(chain.kinds, counts, strict=True):
        seconds += number * (link.forward_s + link.backward_s)
    return seconds


def _tables(chain: Chain) -> list[_Table]:
    """One table per stage; identical stages share one."""
    problem = chain.problem
    alpha, omega = problem.fill
    known: dict[tuple[int, float, float], _Table] = {}
    shared: dict[bytes, _Table] = {}
    tables = []
    weights, tails = chain.weights, _tails(chain)
    for stage in range(problem.stages):
        key = (
            problem.in_flight[stage],
            problem.receive_forward_s[stage],
            problem.receive_backward_s[stage],
        )
        if key not in known:
            seconds = _seconds(chain, stage)
            # If memory does not bind, stages that keep more micro-batches take as long as those that keep fewer.
            same = seconds.tobytes()
            if same not in shared:
                fits = np.isfinite(seconds)
                steady = (problem.micro_batches - alpha) * np.where(fits, seconds, 0.0)
                worst = np.where(fits, steady + tails + problem.tail_s, np.inf)
                filling = alpha * seconds - omega * weights
                shared[same] = _Table(np.append(filling, np.inf), np.append(worst, np.inf))
            known[key] = shared[same]
        tables.append(known[key])
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
    """`stage_seconds` of every multiset at once; only those that must choose what to recompute are handled
    separately."""
    problem = chain.problem
    k, v, capacity = problem.in_flight[stage], problem.chunks, problem.capacity_bytes
    base = chain.passes + problem.receive_forward_s[stage] + problem.receive_backward_s[stage]
    fits = chain.static - (-k * chain.saved // v) <= capacity
    if problem.recompute is Recompute.NONE:
        return np.where(fits, base, np.inf)
    reserve = float(chain.reserve)  # absurd sizes do not fit in 64-bit integers
    again = chain.static - (-k * chain.kept // v) + reserve * (chain.recomputable > 0) <= capacity
    if problem.recompute is Recompute.ALL:
        return np.where(again, base + chain.again_s, np.inf)
    seconds = np.where(fits, base, np.inf)
    needed = chain.saved - (capacity - reserve - chain.static) * v // k
    for number in np.flatnonzero(again & ~fits):
        front = chain.front(chain.counts[number])
        point = bisect_left(front.freed, max(needed[number], 1))
        if point < len(front.freed):
            seconds[number] = _passes_s(chain, stage, chain.counts[number]) + front.seconds[point]
    return seconds


def _distinct(tables: Sequence[_Table]) -> list[_Table]:
    return list({id(table): table for table in tables}.values())


def _least_bottleneck(chain: Chain, tables: Sequence[_Table]) -> float:
    """The least maximum over the stages of any assignment."""
    width, size = 2 * -(-len(chain.kind_of) // len(tables)), len(chain.kind_of)
    while True:
        reach = _start(size, -np.inf)
        parts = _intervals(chain, tables, min(width, size), lambda table: table.bottleneck)
        for part in parts:
            reach = np.maximum(reach[chain.beginning[:, -part.shape[1] :]], part).min(axis=1)
        bound = float(reach[-1])
        # Intervals longer than those examined can only help if they are within the bound.
        wanted = _longest(chain, tables, bound)
        if wanted <= width:
            return bound
        width = wanted


def _least_filling(chain: Chain, tables: Sequence[_Table], bound: float) -> float:
    """The least sum among the assignments whose bottleneck is within the bound."""
    reach = _start(len(chain.kind_of), 0.0)
    for part in _within(chain, tables, bound):
        reach = (reach[chain.beginning[:, -part.shape[1] :]] + part).min(axis=1)
    return float(reach[-1])


def _start(size: int, value: float) -> NDArray[np.float64]:
    """The value before the first stage: no link is placed yet."""
    reach = np.full(size + 1, np.inf)
    reach[0] = value
    return reach


def _within(chain: Chain, tables: Sequence[_Table], bound: float) -> list[NDArray[np.float64]]:
    """Per stage and interval, the part of the sum; ∞ if the bottleneck is above the bound."""
    width = _longest(chain, tables, bound)
    return _intervals(
        chain, tables, width, lambda table: np.where(table.bottleneck <= bound, table.filling, np.inf)
    )


def _intervals(
    chain: Chain,
    tables: Sequence[_Table],
    width: int,
    value: Callable[[_Table], NDArray[np.float64]],
) -> list[NDArray[np.float64]]:
    """Per stage, a value for every interval of at most `width` links: a row for each end, longest interval first."""
    place = chain.ending[:, -width:]
    known = {id(table): value(table)[place] for table in _distinct(tables)}
    return [known[id(table)] for table in tables]


def _longest(chain: Chain, tables: Sequence[_Table], bound: float) -> int:
    """Links of the longest interval whose bottleneck is within the bound."""
    return max(
        int(chain.lengths[table.bottleneck[:-1] <= bound].max(initial=1)) for table in _distinct(tables)
    )


def _search(chain: Chain, tables: Sequence[_Table], low: float) -> float:
    """The bound with the smallest sum plus bound. Between two bounds nothing beats the larger one's sum at the
    smaller."""
    best_bound = low
    best = _least_filling(chain, tables, low) + low
    # However links are placed, each link has its passes and each stage its receives.
    problem, (alpha, omega) = chain.problem, chain.problem.fill
    least = alpha * (sum(k.forward_s + k.backward_s for k in problem.links) + sum(problem.receive_forward_s))
    least += alpha * sum(problem.receive_backward_s) - omega * sum(k.weight_s for k in problem.links)
    candidates = np.unique(np.concatenate([table.bottleneck for table in _distinct(tables)]))
    most = best - least + 1e-9 * best  # far more than sums differ in their last digits
    candidates = candidates[(candidates >= low) & (candidates <= most)]
    sums = {0: best - low}

    def total(index: int, bound: int) -> float:
        if index not in sums:
            sums[index] = _least_filling(chain, tables, float(candidates[index]))
        return sums[index] + float(candidates[bound])

    open_ranges = [(0, len(candidates) - 1)]
    while open_ranges:
        first, last = open_ranges.pop()
        if last <= first or total(last, first + 1) >= best:
            continue
        middle = (first + last + 1) // 2
        for index in (middle, last):
            if total(index, index) < best:
                best_bound, best = float(candidates[index]), total(index, index)
        if last - first > 1:
            open_ranges += (
                [(middle, last - 1), (first, middle - 1)] if middle < last else [(first, middle - 1)]
            )
    return best_bound


def _read_out(chain: Chain, tables: Sequence[_Table], bound: float) -> Solution:
    """The assignment behind the smallest sum within the bound; among equal ones, the one whose stages start
    earliest."""
    size = len(chain.kind_of)
    reach = _start(size, 0.0)
    came: list[NDArray[np.intp]] = []
    for part in _within(chain, tables, bound):
        through = reach[chain.beginning[:, -part.shape[1] :]] + part
        came.append(through.argmin(axis=1) - part.shape[1])
        reach = through.min(axis=1)
    boundaries = [size]
    for back in reversed(came):
        boundaries.append(boundaries[-1] + int(back[boundaries[-1]]))
    return _priced(chain, tuple(reversed(boundaries)))


def _fixed(chain: Chain, tables: Sequence[_Table], boundaries: tuple[int, ...]) -> Solution | None:
    for stage, table in enumerate(tables):
        if not np.isfinite(table.bottleneck[chain.signature[boundaries[stage], boundaries[stage + 1]]]):
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
