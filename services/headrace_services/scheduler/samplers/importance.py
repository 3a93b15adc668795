"""Which results an importance is measured from, and when there is none.

Trials are compared at one level, a number of steps, as in a sampler's model (`history`): a trial that was stopped
after one step cannot be compared with one that had the full budget. The level is the highest that enough trials
reached. So trials that were stopped earlier are left out, and the effect that made them bad is not visible.
Therefore an importance is always shown with its level and its number of trials.

Optuna measures, in a separate process (`ped_anova`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isfinite

from headrace.spec import PbtPolicy, StudySpec
from headrace_services.scheduler.samplers.history import Result

FEWEST = 10
"""Fewer trials than this are not enough: chance alone makes one parameter look important."""
MOST = 2000
"""The newest results that are read: more change little, and cost time on the event loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The share of one parameter."""

    parameter: str
    share: float
    trials: int
    """How many of the trials have the parameter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Importance:
    """How much each parameter matters for being among the best by one objective."""

    metric: str
    level: int = 0
    """In steps; 0 if no trials are compared."""
    trials: int = 0
    shares: tuple[Share, ...] = ()
    """In descending order; they add up to 1."""
    reason: str = ""
    """Why there are no shares."""


def compared_level(spec: StudySpec, counts: Iterable[tuple[int, int]]) -> int | None:
    """The level at which trials are compared, given (level, results) pairs; None if none has enough of them.

    It is the highest with more results than parameters, else the highest that has enough of them at all.
    """
    enough = {level: results for level, results in counts if results >= FEWEST}
    more = [level for level, results in enough.items() if results >= len(spec.space) + 3]
    return max(more or enough, default=None)


def why_none(spec: StudySpec, counts: Iterable[tuple[int, int]]) -> str:
    """Why no trials are compared; empty if they can be."""
    if isinstance(spec.policy, PbtPolicy):
        return "members of a population change their parameters while they train, so no result is of one configuration"
    if sum(domain.count != 1 for domain in spec.space.values()) < 2:
        return "the space has one parameter to search over, so there is none to compare it with"
    found = list(counts)
    if compared_level(spec, found) is not None:
        return ""
    most = max((results for _, results in found), default=0)
    trials = f"{most} trial{'s' * (most != 1)}"
    return f"at most {trials} reached the same rung, and at least {FEWEST} are needed"


def none(spec: StudySpec, reason: str) -> tuple[Importance, ...]:
    """An empty importance for each objective."""
    return tuple(Importance(metric=objective.metric, reason=reason) for objective in spec.objectives)


def why_indistinct(spec: StudySpec, results: Sequence[Result], objective: int) -> str:
    """Why results at a level cannot be told apart by an objective; empty if they can."""
    values = {place_of(spec, result, objective) for result in results}
    if len(results) < FEWEST:
        return f"{len(results)} trials are compared, and at least {FEWEST} are needed"
    if None in values and len(values) == 1:
        return "no trial that is compared has a usable value"
    if len(values) == 1:
        return f"all {len(results)} trials that are compared have the same value"
    return ""


def place_of(spec: StudySpec, result: Result, objective: int) -> float | None:
    """The sort key of a result, less being better; None for one behind all others.

    That is one whose value is missing or not finite, or that misses a constraint: none of these is ever the best.
    """
    value = spec.objectives[objective].sign * result.values[objective]
    is_usable = isfinite(value) and all(excess <= 0 for excess in result.excesses)
    return value if is_usable else None
