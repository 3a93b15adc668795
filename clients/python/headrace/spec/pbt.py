"""Population-based training as a user names it (Jaderberg et al., arXiv 1711.09846)."""

from collections.abc import Collection, Iterator
from fractions import Fraction
from typing import Annotated, Literal

from pydantic import AfterValidator

from headrace.bounds import numbers
from headrace.spec.domains import SpecModel
from headrace.spec.problems import Problem, Unknown, fault
from headrace.spec.rungs import further
from headrace.spec.scalars import Real, Steps, Text


def _share(value: float) -> float:
    if not 0 < value <= 0.5:
        raise fault("must be above 0 and at most 0.5", "0.25 is usual: the worst quarter copies the best.")
    return value


def _probability(value: float) -> float:
    if not 0 <= value <= 1:
        raise fault("must be from 0 to 1", "0.25 is usual.")
    return value


def _factors(values: tuple[float, ...]) -> tuple[float, ...]:
    if not values or any(value <= 0 for value in values) or all(value == 1 for value in values):
        raise fault("must be numbers above 0 that are not all 1", "[1.2, 0.8] is usual.")
    return values


class PbtPolicy(SpecModel):
    """Members of a population of `max_trials` copy better ones every `interval` steps, and mutate what they copied."""

    kind: Literal["pbt"] = "pbt"
    interval: Steps | None = None
    quantile: Annotated[Real, AfterValidator(_share)] = 0.25
    resample_probability: Annotated[Real, AfterValidator(_probability)] = 0.25
    factors: Annotated[tuple[Real, ...], AfterValidator(_factors)] = (1.2, 0.8)
    mutable: tuple[Text, ...] = ()

    @property
    def pauses(self) -> bool:
        """Whether a trial may have to wait and continue later."""
        return True

    def every(self, max_steps: int) -> int:
        """The steps between two comparisons: by default a tenth of the budget."""
        return self.interval or max(1, max_steps // 10)

    def ladder(self, max_steps: int) -> tuple[int, ...]:
        """The multiples of the interval below max_steps, and max_steps."""
        return (*range(self.every(max_steps), max_steps, self.every(max_steps)), max_steps)

    def beyond(self, before: int, max_steps: int, *, first: int) -> tuple[int, ...]:
        """The milestones after a full budget that was extended: the multiples of the interval, and max_steps."""
        return (*further(self.interval, self.every(first), before, max_steps), max_steps)

    def count_beyond(self, before: int, max_steps: int, *, first: int) -> int:
        """The number of milestones of `beyond`, without listing them."""
        return len(further(self.interval, self.every(first), before, max_steps)) + 1


def pbt_problems(policy: PbtPolicy, max_steps: int) -> list[Problem]:
    """Conflicts between the policy and the full budget."""
    interval = policy.every(max_steps)
    if interval >= max_steps:
        return [
            Problem(
                loc=("policy", "interval"),
                value=policy.interval,
                message=f"leaves no comparison within the full budget of {max_steps} steps",
                remedy=f"Choose less than {max_steps}; a tenth of it is usual.",
            )
        ]
    if max_steps // interval > numbers.RUNGS:
        return [
            Problem(
                loc=("policy", "interval"),
                value=policy.interval,
                message=f"makes more than {numbers.RUNGS} comparisons in {max_steps} steps",
                remedy=f"Choose at least {-(-max_steps // numbers.RUNGS)}.",
            )
        ]
    return []


def population_problems(policy: PbtPolicy, max_trials: int) -> list[Problem]:
    """Conflicts between the policy and the size of the population."""
    share = Fraction(repr(policy.quantile))
    if max_trials * share >= 1:
        return []
    return [
        Problem(
            loc=("max_trials",),
            value=max_trials,
            message=f"is too small a population: no member is among the worst {policy.quantile:g} of it",
            remedy=f"Try at least {-(-share.denominator // share.numerator)}, or raise policy.quantile.",
        )
    ]


def mutable_problems(policy: PbtPolicy, declared: Collection[str]) -> Iterator[Problem]:
    """Names that are not parameters."""
    for place, name in enumerate(policy.mutable):
        if name not in declared:
            unknown = Unknown(word=name, known=declared, noun="parameter")
            yield Problem(
                loc=("policy", "mutable", place), value=name, message="is not a parameter", unknown=unknown
            )
