"""What a restore changes, but the next report shows as it would be without a pause. Pure functions.

A step that sets a mode or a variable before reading it does not notice how the restore changed it. So if the
report after each restore has the same metrics and the same state, whatever is the same there again explains
nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import Any

from headrace.check.compare import by_object, end_difference, first_difference, next_reports
from headrace.check.snapshot import Moment, SegmentResult, by_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Harmless:
    """What does not explain why two runs diverge."""

    # The names of variables, and those of the settings of modules, optimizers and the process.
    variables: frozenset[str] = frozenset()
    settings: frozenset[str] = frozenset()
    # Whether the end is explained without a loss: the curves are equal, and the script decides to end after its
    # report.
    end_explained: bool = False


NOTHING = Harmless()


def harmless(straight: SegmentResult, chain: Sequence[SegmentResult], unpaused: SegmentResult) -> Harmless:
    """What every restore before the divergence leaves unchanged; nothing if the report after one of them differs.

    `unpaused` is a run without a pause that captures the state after each restore, which `straight` may not.
    """
    end = end_difference(straight, chain)
    parting = first_difference(straight, chain, to_the_end=end is None)
    parted = inf if parting is None else parting.step
    variables, settings = _Names(), _Names()
    end_may_depend = False
    for before, after in pairwise(chain):
        saved = before.last(Moment.REPORTED)
        if saved is None or saved.step >= parted:
            continue
        pair = next_reports(after, unpaused)
        if pair is None:  # it continues to train beyond the end of the straight run
            end_may_depend = end_may_depend or not straight.decides_after_report
            continue
        mine, other = pair
        if mine.step >= parted or by_object(mine, other):
            return NOTHING
        variables.compare(by_name(mine.variables), by_name(other.variables))
        settings.compare(mine.settings, other.settings)
    return Harmless(
        variables=frozenset() if end_may_depend else variables.same_only(),
        settings=settings.same_only(),
        end_explained=end is not None and parting is None and straight.decides_after_report,
    )


class _Names:
    """Names, grouped by whether they had the same value wherever they were compared."""

    def __init__(self) -> None:
        self._same: set[str] = set()
        self._other: set[str] = set()

    def compare(self, mine: Mapping[str, Any], other: Mapping[str, Any]) -> None:
        for name in mine.keys() | other.keys():
            (self._same if mine.get(name) == other.get(name) else self._other).add(name)

    def same_only(self) -> frozenset[str]:
        return frozenset(self._same - self._other)
