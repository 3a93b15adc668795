"""How many different configurations a study can try, and how many of its trials repeat one (decision 0141).

In a finite space, no point is repeated while there are untried ones. Then a grid ends, and other samplers try
points again. A user is warned before the study is created or extended. Enqueued configurations are tried in any
case, so an enqueued repeat does not displace another point.

There is no warning for a population (`pbt`): its members change their configurations while they train, so it is
no waste if several start at the same point.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from headrace.spec.grid import Grid, Point, Scalar
from headrace.spec.pbt import PbtPolicy
from headrace.spec.sampler import BestOfSampler, GridSampler, is_countable
from headrace.spec.study import StudySpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """A study with more trials than different configurations."""

    points: int
    """The size of the space."""
    distinct: int
    """The number of trials before the first one that the sampler repeats, not counting the baseline."""
    trials: int
    """The total number of trials, which is more than `distinct`."""


def repeats(spec: StudySpec, further: int = 0) -> Repeats | None:
    """What a study repeats if it tries `further` configurations in addition to its `max_trials`; None if it
    repeats nothing, if its space cannot be counted, or if repeats are no waste.
    """
    if isinstance(spec.sampler, GridSampler) or isinstance(spec.policy, PbtPolicy) or not has_points(spec):
        return None
    grid = Grid(spec, GridSampler())
    distinct, trials = distinct_trials(spec.enqueued, grid.size, grid.point), spec.max_trials + further
    return Repeats(points=grid.size, distinct=distinct, trials=trials) if trials > distinct else None


def expected_trials(spec: StudySpec) -> int:
    """How many configurations a study tries, not counting the baseline. A grid ends with its last point."""
    if not isinstance(spec.sampler, GridSampler):
        return spec.max_trials
    grid = Grid(spec, spec.sampler)
    return min(spec.max_trials, distinct_trials(spec.enqueued, grid.size, grid.point))


def has_points(spec: StudySpec) -> bool:
    """Whether a study tries points of a grid or of a finite space. False if it takes another study's
    configurations, or if conditions have too many branches to count.
    """
    if isinstance(spec.sampler, BestOfSampler):
        return False
    return isinstance(spec.sampler, GridSampler) or (
        all(domain.count is not None for domain in spec.space.values()) and is_countable(spec.space)
    )


def distinct_trials(
    enqueued: Sequence[Mapping[str, Scalar]],
    size: int,
    point: Callable[[Mapping[str, Scalar]], Point | None],
) -> int:
    """How many trials there are until each of `size` points was tried. Enqueued configurations that are not a
    point, or repeat an enqueued one, are added.
    """
    return size + len(enqueued) - len({point(params) for params in enqueued} - {None})
