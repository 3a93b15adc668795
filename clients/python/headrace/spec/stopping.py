"""Rules that stop trials early, as a user names them."""

from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, model_validator

from headrace.bounds import numbers
from headrace.spec.problems import Problem, fault, reject
from headrace.spec.rungs import EvenPolicy
from headrace.spec.scalars import Count, Flag, Real


def _tolerance(value: float) -> float:
    if not 0 <= value < 1:
        raise fault("must be at least 0 and below 1", "0.05 is 5% of the median.")
    return value


class MedianVariant(StrEnum):
    """What is compared with the other trials' running averages: the trial's own average, or its best value so
    far (Vizier).
    """

    AVERAGE = "average"
    VIZIER = "vizier"


class MedianPolicy(EvenPolicy):
    """Median stopping. `min_peers` is None for the variant's own: 4 others, or 3 with Vizier's rule."""

    kind: Literal["median"] = "median"
    variant: MedianVariant = MedianVariant.AVERAGE
    completed_only: Flag = False
    min_peers: Count | None = None

    @model_validator(mode="after")
    def _only_vizier_asks_who_completed(self) -> Self:
        if self.completed_only and self.variant is MedianVariant.AVERAGE:
            reject(
                [
                    Problem(
                        loc=("completed_only",),
                        value=True,
                        message="belongs to the variant vizier",
                        remedy="Remove it, or write variant: vizier.",
                    )
                ]
            )
        return self

    def every(self, max_steps: int) -> int:
        """The steps between two checks: as few as the limit on rungs allows, or a hundredth of the budget with
        Vizier's rule.
        """
        if self.variant is MedianVariant.AVERAGE:
            return self.interval or -(-max_steps // numbers.RUNGS)
        return super().every(max_steps)

    @property
    def peers(self) -> int:
        """How many other trials there must be before a trial is stopped."""
        return self.min_peers or (4 if self.variant is MedianVariant.AVERAGE else 3)

    def grace(self, max_steps: int) -> int:
        """The first step at which a trial may be stopped: the first check, or a tenth of the budget with
        Vizier's rule.
        """
        if self.variant is MedianVariant.AVERAGE:
            return self.grace_steps or 1
        return super().grace(max_steps)


class RungMedianPolicy(EvenPolicy):
    """Compares the value at a rung with the median of the values at that rung, with a tolerance."""

    kind: Literal["rung_median"] = "rung_median"
    tolerance: Annotated[Real, AfterValidator(_tolerance)] = 0.05
    min_results: Count = 3
