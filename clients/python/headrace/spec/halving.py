"""Successive halving in its variants, as a user names them."""

from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, PlainValidator, model_validator

from headrace.bounds import numbers
from headrace.spec.problems import Problem, fault, reject
from headrace.spec.rungs import GeometricPolicy, from_the_top
from headrace.spec.scalars import Count, Real, integer_within

Brackets = Annotated[int, PlainValidator(integer_within(1, numbers.BRACKETS))]


def _spread(value: float) -> float:
    if value < 0:
        raise fault("must be 0 or more", "Leave it out to have it estimated.")
    return value


def share(value: float) -> float:
    """The value, which must be a fraction of run-all's cost."""
    if not 0 <= value <= 1:
        raise fault(
            "is a share of what all trials would cost at the full budget", "Choose 0 (none) to 1 (all)."
        )
    return value


class AshaVariant(StrEnum):
    """What happens to a trial outside the best 1/η of its rung: it is paused or stopped."""

    PROMOTION = "promotion"
    STOPPING = "stopping"


class AshaArrival(StrEnum):
    """What happens to a trial among the best 1/η so far: it waits for its turn, or continues at once."""

    CAUTIOUS = "cautious"
    OPTIMISTIC = "optimistic"


class AshaPolicy(GeometricPolicy):
    """Asynchronous successive halving (Li et al., arXiv 1810.05934)."""

    kind: Literal["asha"] = "asha"
    variant: AshaVariant = AshaVariant.PROMOTION
    brackets: Brackets = 1
    arrival: AshaArrival = AshaArrival.CAUTIOUS
    effort: Annotated[Real, AfterValidator(share)] = 0.0

    @model_validator(mode="after")
    def _only_who_waits_can_go_on_later(self) -> Self:
        if self.variant is AshaVariant.STOPPING:
            said: dict[str, object] = {
                "price_pauses": self.price_pauses,
                "arrival": self.arrival.value if self.arrival is AshaArrival.OPTIMISTIC else None,
                "effort": self.effort,
            }
            reject(
                [
                    Problem(
                        loc=(name,),
                        value=value,
                        message="has no meaning for the stopping variant, which never pauses",
                        remedy="Remove it, or choose the variant promotion.",
                    )
                    for name, value in said.items()
                    if value
                ]
            )
        return self

    @property
    def pauses(self) -> bool:
        """Whether a trial may have to wait and continue later. False for the variant that stops."""
        return self.variant is AshaVariant.PROMOTION

    def problems(self, max_steps: int) -> list[Problem]:
        """Conflicts between the policy and the full budget."""
        found = super().problems(max_steps)
        levels = len(self.ladder(max_steps))
        if not found and self.brackets > levels:
            found = [
                Problem(
                    loc=("policy", "brackets"),
                    value=self.brackets,
                    message=f"is more than there are rungs, which is {levels}",
                    remedy=f"Choose at most {levels}: bracket s skips the first s rungs.",
                )
            ]
        return found


class AshaFromTheTop(AshaPolicy):
    """ASHA whose rungs are counted down from the full budget. Users do not name it; `auto` may use it."""

    def ladder(self, max_steps: int) -> tuple[int, ...]:
        """The milestones of bracket 0, the last of which is max_steps."""
        return self.rungs or from_the_top(self.min_steps or 1, self.eta, max_steps)


class SuccessiveHalvingPolicy(GeometricPolicy):
    """Synchronous successive halving (Jamieson and Talwalkar, arXiv 1502.07943), in cohorts of `cohort` trials."""

    kind: Literal["successive_halving"] = "successive_halving"
    cohort: Count | None = None

    def cohort_size(self, max_steps: int) -> int:
        """How many trials compete. By default, as many as leave one at the top."""
        return self.cohort or self.eta ** (len(self.ladder(max_steps)) - 1)


class HyperbandPolicy(GeometricPolicy):
    """Hyperband (Li et al., JMLR 18): successive halving with one bracket per rung."""

    kind: Literal["hyperband"] = "hyperband"

    def ladder(self, max_steps: int) -> tuple[int, ...]:
        """The milestones of bracket 0: ⌊max_steps/η^k⌋ for k = s_max, …, 0, where min_steps·η^s_max ≤ max_steps."""
        if self.rungs:
            return self.rungs
        s_max = 0
        level = (self.min_steps or 1) * self.eta
        while level <= max_steps:
            s_max += 1
            level *= self.eta
        return tuple(max_steps // self.eta**power for power in range(s_max, -1, -1))


class PashaPolicy(GeometricPolicy):
    """PASHA (Bohdal et al., arXiv 2207.06940): ASHA whose top rung grows while rankings disagree."""

    kind: Literal["pasha"] = "pasha"
    epsilon: Annotated[Real, AfterValidator(_spread)] | None = None
