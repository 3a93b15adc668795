"""Where a curve will end: two forecasts in closed form, and their mixture. Smaller is better throughout.

**From the curve itself** (`of_curve`). Twelve shapes φ_k, each from 1 at the first point to 0 at the horizon: powers
x^-c, exponentials e^(-x/τ) and a straight line, with x = step/horizon. For each, y = a + b·φ_k(x) + noise is a
Bayesian linear regression with a conjugate normal-inverse-gamma prior, so the posterior of the end point a is a
Student t and the evidence has a closed form; the shapes are averaged by their evidence. Points count by (x/x_n)², as
learning rates change on the way and the near past says most. Real curves leave these shapes, so the variance grows by
(κ·|a - y_n|)² + (κ₀·h·range)², where h is the share of the horizon that is still to come.

**From its peers** (`of_peers`). The final values of completed trials, regressed on their values at the same step,
with a slope that leans towards 1. Schedules and plateaus that all trials share show here and not in the curve.

**Both** (`mixed`): m peers have the weight m/(m + 3), below three peers none. The constants were calibrated on the
AlgoPerf curves (`benchmarks/policies/calibrate_forecast.py`); decision 0019 has the figures.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr

POWERS = (0.1, 0.25, 0.5, 1.0, 2.0)
TIMES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
RECENCY = 2.0
PRIOR_WEIGHT = 0.01
PRIOR_SHAPE = 1.0
CURVE_NOISE = 0.002
PEER_NOISE = 0.01
DRIFT_OF_GAIN = 0.5
"""κ."""
DRIFT_OF_TIME = 0.2
"""κ₀."""
MIN_PEERS = 3
PEER_HALF_WEIGHT = 3

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """A mixture of Student t distributions, in units of `unit`."""

    places: Floats
    scales: Floats
    freedom: Floats
    weights: Floats
    unit: float

    def probability_below(self, value: float) -> float:
        """The probability that the curve ends below a value."""
        gap = value / self.unit - self.places
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            below = stdtr(self.freedom, gap / self.scales)
        # Without any spread it is certain where the curve ends; at the value itself, nobody knows.
        certain = np.where(gap > 0, 1.0, np.where(gap < 0, 0.0, 0.5))
        return float(self.weights @ np.where(self.scales > 0, below, certain))

    @property
    def expected(self) -> float:
        """The mean."""
        return float(self.weights @ self.places) * self.unit

    @property
    def spread(self) -> float:
        """One standard deviation; every component has more than two degrees of freedom."""
        inner = self.scales**2 * self.freedom / (self.freedom - 2)
        centre = self.weights @ self.places
        return float(np.sqrt(self.weights @ (inner + (self.places - centre) ** 2))) * self.unit


def of_curve(steps: Sequence[int], values: Sequence[float], horizon: int) -> Forecast:
    """The forecast from at least two points, in order of steps below the horizon."""
    x = np.array(steps, dtype=np.float64) / horizon
    y = np.array(values, dtype=np.float64)
    unit = float(np.max(np.abs(y))) or 1.0
    y = y / unit
    scale = float(np.ptp(y)) or 1e-3
    z = (y - y[-1]) / scale
    shapes = _shapes(x)
    near = (x / x[-1]) ** RECENCY
    total = float(near.sum())
    f = shapes @ near
    ff = (shapes**2) @ near
    fz = shapes @ (near * z)
    zz = float(near @ z**2)
    # The prior: a is y_n and b the first point's distance from it, each with a hundredth of a point's weight.
    drop = z[0]
    aa = total + PRIOR_WEIGHT
    bb = ff + PRIOR_WEIGHT
    right_a = float(near @ z)
    right_b = fz + PRIOR_WEIGHT * drop
    determinant = aa * bb - f**2
    end = (bb * right_a - f * right_b) / determinant
    slope = (aa * right_b - f * right_a) / determinant
    shape = PRIOR_SHAPE + total / 2
    left_over = zz + PRIOR_WEIGHT * drop**2 - (end * right_a + slope * right_b)
    rate = CURVE_NOISE + np.maximum(left_over, 0.0) / 2
    evidence = -0.5 * np.log(determinant) - shape * np.log(rate)
    weights = np.exp(evidence - evidence.max())
    ahead = 1.0 - x[-1]
    variance = rate / shape * (1.0 + bb / determinant)
    variance += (DRIFT_OF_GAIN * end) ** 2 + (DRIFT_OF_TIME * ahead) ** 2
    return Forecast(
        places=y[-1] + scale * end,
        scales=scale * np.sqrt(variance),
        freedom=np.full(len(end), 2 * shape),
        weights=weights / weights.sum(),
        unit=unit,
    )


def of_peers(now: Sequence[float], final: Sequence[float], value: float) -> Forecast | None:
    """The forecast from peers' values at the same step and at the end; None for fewer than three of them."""
    if len(now) < MIN_PEERS:
        return None
    x, y = np.array(now, dtype=np.float64), np.array(final, dtype=np.float64)
    unit = float(max(np.max(np.abs(x)), np.max(np.abs(y)), abs(value))) or 1.0
    x, y, here = x / unit, y / unit, value / unit
    middle, ends = x.mean(), y.mean()
    u, g = x - middle, y - ends
    lean = max(float(np.mean(u**2)), 1e-12)
    weight = float(u @ u) + lean
    slope = (float(u @ g) + lean) / weight
    left_over = float(np.sum((g - slope * u) ** 2)) + lean * (slope - 1.0) ** 2
    shape = PRIOR_SHAPE + (len(x) - 1) / 2
    rate = PEER_NOISE * max(float(np.mean(g**2)), 1e-12) + left_over / 2
    variance = rate / shape * (1.0 + 1.0 / len(x) + (here - middle) ** 2 / weight)
    return Forecast(
        places=np.array([ends + slope * (here - middle)]),
        scales=np.sqrt([variance]),
        freedom=np.array([2 * shape]),
        weights=np.ones(1),
        unit=unit,
    )


def mixed(curve: Forecast, peers: Forecast | None, count: int) -> Forecast:
    """Both forecasts, with `count` peers."""
    if peers is None:
        return curve
    share = count / (count + PEER_HALF_WEIGHT)
    unit = max(curve.unit, peers.unit)
    parts = ((curve, 1.0 - share, curve.unit / unit), (peers, share, peers.unit / unit))
    return Forecast(
        places=np.concatenate([part.places * by for part, _, by in parts]),
        scales=np.concatenate([part.scales * by for part, _, by in parts]),
        freedom=np.concatenate([part.freedom for part, _, _ in parts]),
        weights=np.concatenate([part.weights * portion for part, portion, _ in parts]),
        unit=unit,
    )


def _shapes(x: Floats) -> Floats:
    """The twelve shapes at the points (shape KN): 1 at the first of them, 0 at the horizon."""
    points = np.append(x, 1.0)
    raw = [points**-power for power in POWERS]
    raw += [np.exp(-points / time) for time in TIMES]
    raw.append(-points)
    shapes = np.array(raw)
    ends = shapes[:, -1:]
    scaled: Floats = (shapes[:, :-1] - ends) / (shapes[:, :1] - ends)
    return scaled
