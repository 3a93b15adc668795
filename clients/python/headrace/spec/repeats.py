"""How many different configurations a study can try, and how many of its trials repeat one (decision 0141).

On a finite space each point is tried once while there are untried ones. Then a grid ends, and other samplers try points
again. A user is told before the study is created or extended. What is enqueued is tried in any case, so an enqueued
repeat costs no other point its turn.

Nothing is said of a population (`pbt`): its members change their configurations as they train, so that several begin
at one point is no waste.
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
    """How many trials there are before the first one that the sampler repeats, the baseline not counted."""
    trials: int
    """How many there are in all; more than `distinct`."""


def repeats(spec: StudySpec, further: int = 0) -> Repeats | None:
    """What a study repeats that tries `further` configurations beside its `max_trials`; None where it repeats nothing,
    where its space cannot be counted, and where repeats are no waste."""
    if isinstance(spec.sampler, GridSampler) or isinstance(spec.policy, PbtPolicy) or not has_points(spec):
        return None
    grid = Grid(spec, GridSampler())
    distinct, trials = distinct_trials(spec.enqueued, grid.size, grid.point), spec.max_trials + further
    return Repeats(points=grid.size, distinct=distinct, trials=trials) if trials > distinct else None


def expected_trials(spec: StudySpec) -> int:
    """How many configurations a study tries, the baseline not counted: a grid ends with its last point."""
    if not isinstance(spec.sampler, GridSampler):
        return spec.max_trials
    grid = Grid(spec, spec.sampler)
    return min(spec.max_trials, distinct_trials(spec.enqueued, grid.size, grid.point))


def has_points(spec: StudySpec) -> bool:
    """Whether a study tries points of a grid or of a finite space. Not where it takes another study's configurations,
    nor where conditions have too many branches to count."""
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
    """How many trials there are until each of `size` points had its turn: enqueued configurations that are no point, or
    one that was enqueued before, come on top."""
    return size + len(enqueued) - len({point(params) for params in enqueued} - {None})
