"""Combines what the ranks of a gang found. Pure functions.

Every rank is judged by its own processes. A loss that all ranks share is reported once; a loss on some ranks is
reported with their numbers.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from headrace.check.report import Difference, Missing
from headrace.check.snapshot import SegmentResult
from headrace.trial.ends import End, cause

Ranks = tuple[SegmentResult, ...]
"""The results of one process per rank, by rank."""


def chain_of(chain: Sequence[Ranks], rank: int) -> list[SegmentResult]:
    """The processes of one rank, each resumed from the previous one."""
    return [results[rank] for results in chain]


def failed(results: Ranks) -> SegmentResult | None:
    """The rank that failed first, which made the others fail; None if all ended well."""
    broken = {result.rank or 0: result for result in results if result.error}
    if not broken:
        return None
    first = cause(End(rank=rank, at=rank, error=result.error) for rank, result in broken.items()).rank
    found = broken[first]
    return found if found.rank is None else replace(found, error=f"on rank {first}: {found.error}")


def by_rank(world: int, judge: Callable[[int], Sequence[Missing]]) -> tuple[Missing, ...]:
    """What the ranks lost, with the numbers of the ranks unless all lost it."""
    found: dict[tuple[str, str], tuple[Missing, list[int]]] = {}
    for rank in range(world):
        for missing in judge(rank):
            found.setdefault((missing.finding, missing.remedy), (missing, []))[1].append(rank)
    return tuple(
        missing if len(ranks) == world else replace(missing, ranks=tuple(ranks))
        for missing, ranks in found.values()
    )


def first_of(world: int, judge: Callable[[int], Difference | None]) -> Difference | None:
    """The difference on the first rank that has one."""
    for rank in range(world):
        found = judge(rank)
        if found is not None:
            return replace(found, what=f"{found.what} of rank {rank}") if world > 1 else found
    return None
