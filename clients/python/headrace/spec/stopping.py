"""Rules that stop trials on the way, as a user names them."""

from typing import Annotated, Literal

from pydantic import AfterValidator

from headrace.spec.problems import fault
from headrace.spec.rungs import EvenPolicy
from headrace.spec.scalars import Count, Flag, Real


def _tolerance(value: float) -> float:
    if not 0 <= value < 1:
        raise fault("must be at least 0 and below 1", "0.05 is 5% of the median.")
    return value


def _chance(value: float) -> float:
    if not 0 <= value < 1:
        raise fault("must be at least 0 and below 1", "0.05 stops what has less than a 5% chance.")
    return value


class MedianPolicy(EvenPolicy):
    """Median stopping as in Vizier: best value so far against the median of the others' running averages."""

    kind: Literal["median"] = "median"
    completed_only: Flag = False
    min_peers: Count = 3


class RungMedianPolicy(EvenPolicy):
    """The value at a rung against the median of the values at that rung, with a tolerance."""

    kind: Literal["rung_median"] = "rung_median"
    tolerance: Annotated[Real, AfterValidator(_tolerance)] = 0.05
    min_results: Count = 3


class LearningCurvePolicy(EvenPolicy):
    """The extrapolated curve against the best value at the full budget."""

    kind: Literal["learning_curve"] = "learning_curve"
    threshold: Annotated[Real, AfterValidator(_chance)] = 0.05
    min_points: Count = 4
