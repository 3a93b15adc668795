"""What a study is after: objectives, constraints on metrics, and an earlier study to begin from.

A trial's *objective vector* has one value for each objective, in the order of the spec. A trial is *feasible* where it
meets every constraint. With several objectives no trial is simply the best: what counts is the *Pareto front*, the
feasible trials that no other one dominates. To dominate is to be at least as good in every objective and better in one.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from math import inf, isfinite, isnan
from typing import Annotated, Self

from pydantic import PlainValidator, model_validator

from headrace.bounds import numbers
from headrace.spec.domains import SpecModel, show_real
from headrace.spec.names import Metric, StudyName
from headrace.spec.problems import Problem, reject
from headrace.spec.scalars import Real, integer_within

WarmTrials = Annotated[int, PlainValidator(integer_within(1, numbers.WARM_TRIALS))]


class Goal(StrEnum):
    """The direction of the objective."""

    MINIMIZE = "minimize"
    MAXIMIZE = "maximize"


class Objective(SpecModel):
    """What to optimise: one metric that the trial reports."""

    metric: Metric
    goal: Goal

    @property
    def sign(self) -> float:
        """What a value is multiplied with so that less is better."""
        return -1.0 if self.goal is Goal.MAXIMIZE else 1.0


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
        """By how much a value misses the bound: at most 0 where it is met; infinite for a missing value or NaN."""
        if value is None or isnan(value):
            return inf
        if self.at_most is not None:
            return value - self.at_most
        return (self.at_least or 0.0) - value

    def __str__(self) -> str:
        if self.at_most is not None:
            return f"{self.metric} ≤ {show_real(self.at_most)}"
        return f"{self.metric} ≥ {show_real(self.at_least or 0.0)}"


class WarmStart(SpecModel):
    """Begin with the results of an earlier study: at most `max_trials` of its completed trials, the best first."""

    study: StudyName
    max_trials: WarmTrials = 200


def objective_problems(
    first: Objective, further: Sequence[Objective], constraints: Sequence[Constraint], *, run_all: bool
) -> list[Problem]:
    """What is wrong between the objectives, the constraints and the policy."""
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
        seen.add(objective.metric)
    if further and not run_all:
        problems.append(
            Problem(
                loc=("further_objectives",),
                message="cannot be combined with a policy that stops trials: a rung ranks by one metric",
                remedy="Set `policy: {kind: run_all}`, or make the others constraints.",
            )
        )
    return problems


def _too_many(field: str, count: int, most: int) -> Problem:
    return Problem(loc=(field,), message=f"has {count} entries", remedy=f"List at most {most}.")


def objective_vector(
    objectives: Iterable[Objective], metrics: Mapping[str, float]
) -> tuple[float, ...] | None:
    """The values of all objectives, or None where one is missing or not finite."""
    values = [metrics.get(objective.metric) for objective in objectives]
    known = [value for value in values if value is not None and isfinite(value)]
    return tuple(known) if len(known) == len(values) else None


def is_feasible(constraints: Iterable[Constraint], metrics: Mapping[str, float]) -> bool:
    """Whether the metrics meet every constraint."""
    return all(constraint.excess(metrics.get(constraint.metric)) <= 0 for constraint in constraints)


def unread_constraints(constraints: Iterable[Constraint], metrics: Mapping[str, float]) -> list[str]:
    """The metrics that constraints read and that are not among these, each once."""
    return list(dict.fromkeys(one.metric for one in constraints if one.metric not in metrics))
