"""Means and shares over seeds with their 95% confidence intervals, and the expected cost of reaching a target.

A seed that never reached the target has no cost of reaching it, so means over the other seeds flatter a policy
that gives up. The expected running time includes what such seeds spent: all cost up to the target, or to the end
if it was missed, divided by the number of seeds that reached it. It is what a user pays who starts again after a
miss (Price 1997, "Differential evolution vs. the functions of the second ICEO"; the ERT of the COCO benchmarks).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

LEVEL = 0.95
RESAMPLES = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A figure over seeds with its interval; None if no seed has a value."""

    mean: float | None
    low: float | None
    high: float | None
    seeds: int


def mean(values: Sequence[float | None]) -> Estimate:
    """The mean over the seeds that have a value, with Student's t interval."""
    known = np.array([value for value in values if value is not None], dtype=float)
    if not known.size:
        return Estimate(mean=None, low=None, high=None, seeds=0)
    middle = float(known.mean())
    if known.size == 1:
        return Estimate(mean=middle, low=None, high=None, seeds=1)
    half = float(stats.t.ppf((1 + LEVEL) / 2, known.size - 1) * known.std(ddof=1) / math.sqrt(known.size))
    return Estimate(mean=middle, low=middle - half, high=middle + half, seeds=int(known.size))


def bootstrapped(values: Sequence[float | None]) -> Estimate:
    """The mean with a bootstrap interval, for figures that are often 0 and never negative."""
    known = np.array([value for value in values if value is not None], dtype=float)
    if known.size < 2:
        return mean(values)
    picks = np.random.default_rng(0).integers(known.size, size=(RESAMPLES, known.size))
    low, high = np.percentile(known[picks].mean(axis=1), [50 * (1 - LEVEL), 50 * (1 + LEVEL)])
    return Estimate(mean=float(known.mean()), low=float(low), high=float(high), seeds=int(known.size))


def share(hits: Sequence[bool]) -> Estimate:
    """How often something was true, with Wilson's interval."""
    if not hits:
        return Estimate(mean=None, low=None, high=None, seeds=0)
    interval = stats.binomtest(sum(hits), len(hits)).proportion_ci(LEVEL, method="wilson")
    return Estimate(
        mean=sum(hits) / len(hits), low=float(interval.low), high=float(interval.high), seeds=len(hits)
    )


def expected_cost(reached: Sequence[float | None], spent: Sequence[float]) -> Estimate:
    """The expected running time, with a bootstrap interval over seeds (percentiles of 4000 resamples, seeded).

    `reached` is a seed's cost up to the target, or None if it was missed; `spent` is its total cost. The result is
    None if no seed reached the target. Its upper end is None if resamples without a hit are among the most
    expensive ones.
    """
    hits = np.array([value is not None for value in reached])
    if not hits.any():
        return Estimate(mean=None, low=None, high=None, seeds=0)
    costs = np.array([all_ if value is None else value for value, all_ in zip(reached, spent, strict=True)])
    middle = float(costs.sum() / hits.sum())
    if hits.size == 1:
        return Estimate(mean=middle, low=None, high=None, seeds=1)
    picks = np.random.default_rng(0).integers(hits.size, size=(RESAMPLES, hits.size))
    counts = hits[picks].sum(axis=1)
    with np.errstate(divide="ignore"):
        resampled = np.sort(np.where(counts > 0, costs[picks].sum(axis=1) / counts, np.inf))
    low = float(resampled[int(RESAMPLES * (1 - LEVEL) / 2)])
    high = float(resampled[int(RESAMPLES * (1 + LEVEL) / 2)])
    return Estimate(mean=middle, low=low, high=high if math.isfinite(high) else None, seeds=int(hits.size))
