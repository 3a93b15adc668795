"""By how much steps with trials are slower than control steps without trials, with its interval.

It is the ratio of two means. Its variance comes from the delta method, with Student's t and Welch's degrees of
freedom. Control steps are drawn at random, so a drift of the job affects both kinds equally.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, variance
from typing import Final

from scipy.stats import t as student

LEAST: Final = 20
"""How many steps of each kind are needed for an estimate."""
ONE_SIDED: Final = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowdown:
    """A slowdown as a share of the control steps' time: 0.01 is one percent slower.

    Attributes:
        mean: the estimate.
        low, high: one-sided 95 % bounds.
        filled, control: how many steps of each kind it is based on.
    """

    mean: float
    low: float
    high: float
    filled: int
    control: int


def slowdown(filled: Sequence[float], control: Sequence[float]) -> Slowdown | None:
    """Returns the slowdown, or None with fewer than `LEAST` steps of either kind. Times are positive."""
    if min(len(filled), len(control)) < LEAST:
        return None
    ours, theirs = fmean(filled), fmean(control)
    parts = [variance(filled) / len(filled) / ours**2, variance(control) / len(control) / theirs**2]
    ratio, spread = ours / theirs, sum(parts)
    if spread == 0:
        width = 0.0
    else:
        freedom = spread**2 / (parts[0] ** 2 / (len(filled) - 1) + parts[1] ** 2 / (len(control) - 1))
        width = ratio * sqrt(spread) * float(student.ppf(ONE_SIDED, freedom))
    mean = ratio - 1
    return Slowdown(mean=mean, low=mean - width, high=mean + width, filled=len(filled), control=len(control))
