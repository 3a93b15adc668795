"""Functions with an `lru_cache` that a pause empties. Pure functions. Most caches recompute the same values, so
they are only suspects.
"""

from collections.abc import Iterator

from headrace.check.compare import reported_by_step, reported_in
from headrace.check.report import Missing
from headrace.check.snapshot import Kind, Moment, SegmentResult, by_name

SAME_AGAIN = (
    "perhaps each step writes it before it is read: one step later it is the same with and without the pause"
)


def caches_emptied(before: SegmentResult, after: SegmentResult) -> Iterator[Missing]:
    """The functions whose cache was filled by the steps before a pause."""
    start, saved, restored = before.begun, before.last(Moment.REPORTED), after.begun
    if start is None or saved is None or restored is None:
        return
    for name in sorted(start.caches.keys() & saved.caches.keys() & restored.caches.keys()):
        held, left = saved.caches[name], restored.caches[name]
        if start.caches[name] != held != left:
            yield Missing(
                kind=Kind.VALUE,
                finding=f"the cache of function `{name}` (functools) holds {_results(held)} when saved, and "
                f"{_results(left)} after the restore: what it computes again may differ",
                remedy=f"make {name}(...) depend on its arguments alone, without random numbers and without what a "
                "step changes, or keep its results in t.state in place of the cache",
                step=saved.step,
            )


def same_again(straight: SegmentResult, after: SegmentResult) -> frozenset[str]:
    """The variables that have the same value at the first report after a restore as without a pause."""
    unpaused = reported_by_step([straight])
    shown = next((at for at in reported_in(after) if at.step in unpaused), None)
    if shown is None:
        return frozenset()
    mine, other = by_name(unpaused[shown.step].variables), by_name(shown.variables)
    return frozenset(name for name in mine if mine[name] == other.get(name))


def _results(count: int) -> str:
    return f"{count or 'no'} result{'s' * (count != 1)}"
