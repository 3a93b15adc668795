"""A Gaussian process over configuration and training budget.

The covariance of two results is a² M(x, x') exp(−|t − t'| / τ) + 4 exp(−|t − t'|), and s² more for a result with
itself: two results of one configuration at one budget differ by their noise. M is the Matérn covariance of order
5/2 with a length scale for each parameter (Rasmussen and Williams, *Gaussian Processes for Machine Learning*,
2006, eq. 4.17), and t the budget. The second term gives each budget its own mean, with a prior standard deviation
of 2. Values are near 0 with a spread near 1.

The length scales, a, s and τ maximize the posterior density under broad log-normal priors. That of a length scale grows
with √d, so that distances in d dimensions stay comparable (Hvarfner et al., ICML 2024).
"""

from dataclasses import dataclass
from math import log, sqrt
from typing import Any

import numpy as np
from scipy.linalg import cho_solve, cholesky, solve_triangular
from scipy.optimize import minimize

Array = np.ndarray[Any, np.dtype[Any]]
_ROOT5 = sqrt(5.0)
_MEAN_VARIANCE = 4.0
_JITTER = 1e-6
_FIT_STEPS = 25
_WIDEST = 3.0
"""How far a hyperparameter may move, in standard deviations of the prior."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """The points of results, or of predictions."""

    points: Array
    """(n, k): coordinates, each in [0, 1]."""
    budgets: Array
    """(n,): in [0, 1]; 0 is the first rung, 1 the full budget."""

    def __len__(self) -> int:
        return len(self.budgets)

    def at(self, places: Array) -> "Inputs":
        """The inputs at these indices."""
        return Inputs(points=self.points[places], budgets=self.budgets[places])

    def joined(self, other: "Inputs") -> "Inputs":
        """These inputs, then the others."""
        return Inputs(
            points=np.concatenate([self.points, other.points]),
            budgets=np.concatenate([self.budgets, other.budgets]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scales:
    """The hyperparameters, as logarithms."""

    groups: Array
    """(k,): the index of each coordinate's length scale. The coordinates of one parameter share one."""
    values: Array
    """The length scales, then a, s and τ."""

    @property
    def lengths(self) -> Array:
        """(k,): the length scale of each coordinate."""
        found: Array = np.exp(self.values[:-3][self.groups])
        return found

    @property
    def amplitude(self) -> float:
        """a² of the module docstring."""
        return float(np.exp(2 * self.values[-3]))

    @property
    def noise(self) -> float:
        """s² of the module docstring."""
        return float(np.exp(2 * self.values[-2]))

    @property
    def reach(self) -> float:
        """τ of the module docstring."""
        return float(np.exp(self.values[-1]))


def prior(groups: Array) -> tuple[Scales, Array]:
    """The median of the prior, and its standard deviations on a log scale."""
    parameters = int(groups.max()) + 1 if len(groups) else 0
    lengths = np.full(parameters, log(0.35 * sqrt(max(parameters, 1))))
    centre = np.concatenate([lengths, [0.0, log(0.15), 0.0]])
    spread = np.concatenate([np.ones(parameters), [0.5, 0.7, 0.7]])
    return Scales(groups=groups, values=centre), spread


def fitted(groups: Array, inputs: Inputs, values: Array) -> Scales:
    """The most probable hyperparameters, given (n,) values."""
    centre, spread = prior(groups)
    parameters = len(centre.values) - 3
    gaps = np.abs(inputs.budgets[:, None] - inputs.budgets[None])
    squares = np.zeros((parameters, len(inputs), len(inputs)))
    for coordinate, group in enumerate(groups):
        column = inputs.points[:, coordinate]
        squares[group] += (column[:, None] - column[None]) ** 2
    flat = squares.reshape(parameters, -1)
    means = _MEAN_VARIANCE * np.exp(-gaps)
    diagonal = np.diag_indices(len(inputs))

    def loss(theta: Array) -> tuple[float, Array]:
        """The negative logarithm of the density, and its gradient (Rasmussen and Williams, eq. 5.9)."""
        scales = Scales(groups=groups, values=theta)
        inverse_squares = np.exp(-2 * theta[:-3])
        distances = np.sqrt(np.maximum(inverse_squares @ flat, 0.0)).reshape(gaps.shape)
        decay = np.exp(-_ROOT5 * distances)
        over_budgets = scales.amplitude * np.exp(-gaps / scales.reach)
        signal = (1 + _ROOT5 * distances + 5 / 3 * distances**2) * decay * over_budgets
        matrix = signal + means
        matrix[diagonal] += scales.noise + _JITTER
        try:
            factor = cholesky(matrix, lower=True, check_finite=False)
        except np.linalg.LinAlgError:
            return 1e10, np.zeros_like(theta)
        weights = cho_solve((factor, True), values, check_finite=False)
        slope = cho_solve((factor, True), np.eye(len(values)), check_finite=False)
        slope -= np.outer(weights, weights)
        along = (slope * over_budgets * (5 / 3) * (1 + _ROOT5 * distances) * decay).reshape(-1)
        gradient = np.empty_like(theta)
        gradient[:-3] = 0.5 * inverse_squares * (flat @ along)
        gradient[-3] = (slope * signal).sum()
        gradient[-2] = np.trace(slope) * scales.noise
        gradient[-1] = 0.5 * (slope * signal * gaps).sum() / scales.reach
        away = (theta - centre.values) / spread
        density = 0.5 * values @ weights + np.log(np.diag(factor)).sum()
        return density + 0.5 * away @ away, gradient + away / spread

    bounds = np.stack([centre.values - _WIDEST * spread, centre.values + _WIDEST * spread], axis=1)
    found = minimize(
        loss, centre.values, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": _FIT_STEPS}
    )
    return Scales(groups=groups, values=found.x)


class Posterior:
    """The distribution of values elsewhere, given those at some inputs."""

    def __init__(self, scales: Scales, inputs: Inputs, values: Array) -> None:
        self._scales = scales
        self._inputs = inputs
        matrix = self._covariance(inputs, inputs)
        matrix[np.diag_indices(len(inputs))] += scales.noise + _JITTER
        self._factor = cholesky(matrix, lower=True, overwrite_a=True, check_finite=False)
        self._weights = cho_solve((self._factor, True), values, check_finite=False)

    def mean(self, inputs: Inputs) -> Array:
        """(n,): the expected values."""
        found: Array = self._covariance(inputs, self._inputs) @ self._weights
        return found

    def predict(self, inputs: Inputs) -> tuple[Array, Array]:
        """(n,), (n,): the expected values and their standard deviations, without the noise."""
        across = self._covariance(inputs, self._inputs)
        known = solve_triangular(self._factor, across.T, lower=True, check_finite=False)
        variance = self._scales.amplitude + _MEAN_VARIANCE - (known**2).sum(axis=0)
        return across @ self._weights, np.sqrt(np.maximum(variance, 1e-9))

    def _covariance(self, one: Inputs, other: Inputs) -> Array:
        """(n, m): the covariance between two sets of inputs, without the noise."""
        lengths = self._scales.lengths / _ROOT5
        left, right = one.points / lengths, other.points / lengths
        squares = left @ (-2 * right.T)
        squares += (left**2).sum(axis=1)[:, None]
        squares += (right**2).sum(axis=1)
        np.maximum(squares, 0.0, out=squares)
        distances = np.sqrt(squares)
        squares /= 3
        squares += distances
        squares += 1
        np.negative(distances, out=distances)
        squares *= np.exp(distances, out=distances)
        # few distinct ones: exponentials cost most
        distinct, rows = np.unique(one.budgets, return_inverse=True)
        gaps = np.abs(distinct[:, None] - other.budgets)
        squares *= (self._scales.amplitude * np.exp(-gaps / self._scales.reach))[rows]
        squares += (_MEAN_VARIANCE * np.exp(-gaps))[rows]
        return squares
