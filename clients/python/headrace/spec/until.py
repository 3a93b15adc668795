"""What ends a study before all its trials have ended: a target value, wall time, or trials without improvement."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Self

from pydantic import AfterValidator, PlainValidator, model_validator

from headrace.bests import reached
from headrace.bounds import numbers
from headrace.spec.domains import SpecModel, show_real
from headrace.spec.objective import Goal, Objective
from headrace.spec.pbt import PbtPolicy
from headrace.spec.problems import Problem, fault, reject
from headrace.spec.scalars import Real, integer_within


def _hours(value: float) -> float:
    if not 0 < value <= numbers.HOURS:
        raise fault(f"must be above 0 and at most {numbers.HOURS}", "Write hours, such as 2 or 0.5.")
    return value


class Until(SpecModel):
    """The study completes as soon as one of these is true."""

    value: Real | None = None
    hours: Annotated[Real, AfterValidator(_hours)] | None = None
    no_improvement: Annotated[int, PlainValidator(integer_within(1, numbers.TRIALS))] | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.value is None and self.hours is None and self.no_improvement is None:
            remedy = "Give some of value, hours and no_improvement, or leave until out."
            reject([Problem(loc=(), message="ends nothing", remedy=remedy)])
        return self

    def reached(self, value: float, goal: Goal) -> bool:
        """Whether a value of the objective reaches the target."""
        return self.value is not None and reached(value, self.value, maximize=goal is Goal.MAXIMIZE)

    def named(self) -> list[str]:
        """The fields that are set."""
        return [name for name in type(self).model_fields if getattr(self, name) is not None]

    def conditions(self, objective: Objective, *, tried: int | None = None) -> list[str]:
        """What ends the study, in words: one text for each field that is set. `tried` is how many trials in a
        row have not improved on the best one.
        """
        found: list[str] = []
        if self.value is not None:
            found.append(f"{objective.metric} {_sign(objective)} {show_real(self.value)}")
        if self.hours is not None:
            found.append(f"{self.hours:g} hour{'s' * (self.hours != 1)}")
        if self.no_improvement is not None:
            now = "" if tried is None else f" ({tried} now)"
            found.append(
                f"{self.no_improvement} trial{'s' * (self.no_improvement > 1)} without improvement{now}"
            )
        return found


def _sign(objective: Objective) -> str:
    return "≥" if objective.goal is Goal.MAXIMIZE else "≤"


def until_problems(until: Until, known: Mapping[str, Any]) -> Iterator[Problem]:
    """Conflicts between `until` and the study's other valid fields."""
    further: Sequence[Objective] = known.get("further_objectives", ())
    for name in ("value", "no_improvement") if further else ():
        if getattr(until, name) is not None:
            yield Problem(
                loc=("until", name),
                value=getattr(until, name),
                message="needs one objective: with several there is no best value",
                remedy="Leave it out, or all objectives but one.",
            )
    if isinstance(known.get("policy"), PbtPolicy) and until.no_improvement is not None:
        yield Problem(
            loc=("until", "no_improvement"),
            value=until.no_improvement,
            message="counts configurations, and a population tries no further ones",
            remedy="Leave it out, or give hours.",
        )
