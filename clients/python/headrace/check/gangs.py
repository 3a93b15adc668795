"""What the ranks of a gang found, as one: pure.

Every rank is judged by its own processes. What all of them lost alike is told once; what some lost is told with their
numbers.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from headrace.check.report import Difference, Missing
from headrace.check.snapshot import SegmentResult
from headrace.trial.ends import End, cause

Ranks = tuple[SegmentResult, ...]
"""What one process of each rank did, by rank."""


def chain_of(chain: Sequence[Ranks], rank: int) -> list[SegmentResult]:
    """The processes of one rank, each resumed from the one before."""
    return [results[rank] for results in chain]


def failed(results: Ranks) -> SegmentResult | None:
    """The rank that failed first, whose end the others echo; None where all ended well."""
    broken = {result.rank or 0: result for result in results if result.error}
    if not broken:
        return None
    first = cause(End(rank=rank, at=rank, error=result.error) for rank, result in broken.items()).rank
    found = broken[first]
    return found if found.rank is None else replace(found, error=f"on rank {first}: {found.error}")


def by_rank(world: int, judge: Callable[[int], Sequence[Missing]]) -> tuple[Missing, ...]:
    """What each rank lost, with the ranks that lost it where they are not all."""
    found: dict[tuple[str, str], tuple[Missing, list[int]]] = {}
    for rank in range(world):
        for missing in judge(rank):
            found.setdefault((missing.finding, missing.remedy), (missing, []))[1].append(rank)
    return tuple(
        missing if len(ranks) == world else replace(missing, ranks=tuple(ranks))
        for missing, ranks in found.values()
    )


def first_of(world: int, judge: Callable[[int], Difference | None]) -> Difference | None:
    """Where the first rank parts that does."""
    for rank in range(world):
        found = judge(rank)
        if found is not None:
            return replace(found, what=f"{found.what} of rank {rank}") if world > 1 else found
    return None
