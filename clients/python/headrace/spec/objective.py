"""The goal of a study: objectives, constraints on metrics, and an earlier study to start from.

A trial's *objective vector* has one value for each objective, in the order of the spec. A trial is *feasible* if
it meets every constraint. With several objectives there is no single best trial. The result is the *Pareto
front*: the feasible trials that no other trial dominates. A trial dominates another if it is at least as good in
every objective and better in one.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from math import isfinite
from typing import Annotated, Any, Final, Self

from pydantic import PlainValidator, model_validator

from headrace import bests
from headrace.bounds import numbers
from headrace.spec.domains import SpecModel, show_real
from headrace.spec.names import Metric, StudyName
from headrace.spec.problems import Problem, reject
from headrace.spec.scalars import Real, integer_within

WarmTrials = Annotated[int, PlainValidator(integer_within(1, numbers.WARM_TRIALS))]
LastReports = Annotated[int, PlainValidator(integer_within(1, numbers.LAST_REPORTS))]


class Goal(StrEnum):
    """The direction of the objective."""

    MINIMIZE = "minimize"
    MAXIMIZE = "maximize"


class Keep(StrEnum):
    """Which checkpoint of a trial is kept in addition to the last ones."""

    LAST = "last"
    BEST = "best"


class Scope(StrEnum):
    """Which value of a trial counts if whole trials are compared. Rungs compare the values at the rung."""

    BEST = "best"
    """The best value that it reported at any step."""
    LAST = "last"
    """The value of its last report."""
    FULL_BUDGET = "full_budget"
    """The value of its last report, but trials that completed come before all others."""
    MEAN_LAST_K = "mean_last_k"
    """The mean of its last `k` reports that meet the constraints."""


DEFAULT_SCOPE: Final = Scope.LAST


class Objective(SpecModel):
    """The metric to optimise, which the trial reports."""

    metric: Metric
    goal: Goal
    keep: Keep = Keep.LAST
    scope: Scope = DEFAULT_SCOPE
    k: LastReports | None = None

    @model_validator(mode="before")
    @classmethod
    def _scope_of_keep(cls, data: Any) -> Any:
        """The default scope: `best` if the checkpoint of the best value is kept."""
        if isinstance(data, Mapping) and data.get("scope") is None and data.get("keep") == Keep.BEST:
            return {**data, "scope": Scope.BEST}
        return data

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        reject([*self._problems()])
        return self

    def _problems(self) -> Iterator[Problem]:
        if self.scope is Scope.MEAN_LAST_K and self.k is None:
            yield Problem(
                loc=("k",),
                message="is required with `scope: mean_last_k`",
                remedy="Say of how many reports, as in `k: 5`.",
            )
        if self.scope is not Scope.MEAN_LAST_K and self.k is not None:
            yield Problem(
                loc=("k",),
                value=self.k,
                message=f"says nothing with `scope: {self.scope}`",
                remedy="Leave it out, or write `scope: mean_last_k`.",
            )
        if self.keep is Keep.BEST and self.scope is not Scope.BEST:
            yield Problem(
                loc=("scope",),
                value=self.scope.value,
                message="does not go with `keep: best`: another value counts than the one whose checkpoint is kept",
                remedy="Write `scope: best`, or leave keep out: the last checkpoint always stays.",
            )

    @property
    def full_budget_first(self) -> bool:
        """Whether trials that completed come before all others."""
        return self.scope is Scope.FULL_BUDGET

    @property
    def sign(self) -> float:
        """The factor that makes smaller values better."""
        return -1.0 if self.goal is Goal.MAXIMIZE else 1.0

    def improves(self, value: float, than: float | None) -> bool:
        """Whether a value is better than another one, or there is no other."""
        if than is None:
            return True
        return value > than if self.goal is Goal.MAXIMIZE else value < than


class Constraint(SpecModel):
    """A bound on a metric: exactly one of `at_most` and `at_least`."""

    metric: Metric
    at_most: Real | None = None
    at_least: Real | None = None

    @model_validator(mode="after")
    def _sound(self) -> Self:
        if (self.at_most is None) == (self.at_least is None):
            found = "has no bound" if self.at_most is None else "has two bounds"
            reject([Problem(loc=(), message=found, remedy="Give exactly one of at_most and at_least.")])
        return self

    def excess(self, value: float | None) -> float:
        """How far a value is beyond the bound: at most 0 if it meets the bound, infinite for a missing value or
        NaN.
        """
        return bests.excess(value, at_most=self.at_most, at_least=self.at_least)

    def __str__(self) -> str:
        if self.at_most is not None:
            return f"{self.metric} ≤ {show_real(self.at_most)}"
        return f"{self.metric} ≥ {show_real(self.at_least or 0.0)}"


class WarmStart(SpecModel):
    """Start with the results of an earlier study: at most `max_trials` of its completed trials, best first."""

    study: StudyName
    max_trials: WarmTrials = 200


def objective_problems(
    first: Objective, further: Sequence[Objective], constraints: Sequence[Constraint], *, run_all: bool
) -> list[Problem]:
    """Conflicts between the objectives, the constraints and the policy."""
    problems: list[Problem] = []
    if len(further) >= numbers.OBJECTIVES:
        problems.append(_too_many("further_objectives", len(further), numbers.OBJECTIVES - 1))
    if len(constraints) > numbers.CONSTRAINTS:
        problems.append(_too_many("constraints", len(constraints), numbers.CONSTRAINTS))
    seen = {first.metric}
    for index, objective in enumerate(further):
        if objective.metric in seen:
            problems.append(
                Problem(
                    loc=("further_objectives", index, "metric"),
                    value=objective.metric,
                    message="is the metric of an earlier objective",
                    remedy="Give every objective a metric of its own.",
                )
            )
        if objective.keep is not Keep.LAST:
            problems.append(
                Problem(
                    loc=("further_objectives", index, "keep"),
                    value=objective.keep.value,
                    message="is allowed only for the first objective: a trial has one best value",
                    remedy="Write `keep: best` under `objective`, or leave it out.",
                )
            )
        if objective.scope is not DEFAULT_SCOPE:
            problems.append(
                Problem(
                    loc=("further_objectives", index, "scope"),
                    value=objective.scope.value,
                    message=_FRONT,
                    remedy="Leave scope out.",
                )
            )
        seen.add(objective.metric)
    if further and first.keep is Keep.LAST and first.scope not in (DEFAULT_SCOPE, Scope.LAST):
        problems.append(
            Problem(
                loc=("objective", "scope"), value=first.scope.value, message=_FRONT, remedy="Leave scope out."
            )
        )
    if further and not run_all:
        problems.append(
            Problem(
                loc=("further_objectives",),
                message="cannot be combined with a policy that stops trials: a rung ranks by one metric",
                remedy="Set `policy: {kind: run_all}`, or make the others constraints.",
            )
        )
    return problems


_FRONT: Final = "needs one objective: a Pareto front compares the last reports of trials"


def _too_many(field: str, count: int, most: int) -> Problem:
    return Problem(loc=(field,), message=f"has {count} entries", remedy=f"List at most {most}.")


def objective_vector(
    objectives: Iterable[Objective], metrics: Mapping[str, float]
) -> tuple[float, ...] | None:
    """The values of all objectives, or None if one is missing or not finite."""
    values = [metrics.get(objective.metric) for objective in objectives]
    known = [value for value in values if value is not None and isfinite(value)]
    return tuple(known) if len(known) == len(values) else None


def is_feasible(constraints: Iterable[Constraint], metrics: Mapping[str, float]) -> bool:
    """Whether the metrics meet every constraint."""
    return all(constraint.excess(metrics.get(constraint.metric)) <= 0 for constraint in constraints)


def unread_constraints(constraints: Iterable[Constraint], metrics: Mapping[str, float]) -> list[str]:
    """The metrics that constraints read and that are not among these, without duplicates."""
    return list(dict.fromkeys(one.metric for one in constraints if one.metric not in metrics))
