"""The Gaussian process against its definition: plain matrices, finite differences, and a function with a dead axis."""

import numpy as np
import pytest

from headrace_services.scheduler.samplers.gaussian_process import Inputs, Posterior, Scales, fitted, prior

GROUPS = np.array([0, 1, 1])


def some(count: int, seed: int = 0) -> Inputs:
    generator = np.random.default_rng(seed)
    return Inputs(points=generator.random((count, 3)), budgets=generator.choice([0.0, 0.4, 1.0], count))


def scales(*, lengths=(0.3, 0.8), amplitude=1.3, noise=0.2, reach=0.7) -> Scales:
    return Scales(groups=GROUPS, values=np.log([*lengths, amplitude, noise, reach]))


def covariance(one, other, by) -> np.ndarray:
    """The formula in the module's docstring, entry by entry."""
    lengths = np.exp(by.values[:2])[GROUPS]
    amplitude, _, reach = np.exp(by.values[2:])
    found = np.empty((len(one), len(other)))
    for row in range(len(one)):
        for column in range(len(other)):
            distance = np.linalg.norm((one.points[row] - other.points[column]) / lengths)
            gap = abs(one.budgets[row] - other.budgets[column])
            matern = (1 + 5**0.5 * distance + 5 / 3 * distance**2) * np.exp(-(5**0.5) * distance)
            found[row, column] = amplitude**2 * matern * np.exp(-gap / reach) + 4 * np.exp(-gap)
    return found


def test_the_posterior_is_that_of_the_formula():
    known, asked, by = some(20), some(7, seed=1), scales()
    values = np.random.default_rng(2).normal(size=20)
    inverse = np.linalg.inv(covariance(known, known, by) + (0.2**2 + 1e-6) * np.eye(20))
    across = covariance(asked, known, by)
    mean, deviation = Posterior(by, known, values).predict(asked)
    assert mean == pytest.approx(across @ inverse @ values, abs=1e-6)
    variance = np.diag(covariance(asked, asked, by) - across @ inverse @ across.T)
    assert deviation**2 == pytest.approx(variance, abs=1e-6)
    assert Posterior(by, known, values).mean(asked) == pytest.approx(mean)


def test_what_was_measured_is_believed_up_to_the_noise():
    known = some(15)
    values = np.random.default_rng(3).normal(size=15)
    mean, deviation = Posterior(scales(noise=0.01), known, values).predict(known)
    assert mean == pytest.approx(values, abs=0.01)
    assert deviation.max() < 0.02


def log_density(by: Scales, inputs: Inputs, values: np.ndarray) -> float:
    """The log density of values and hyperparameters together, up to a constant."""
    matrix = covariance(inputs, inputs, by) + (np.exp(2 * by.values[-2]) + 1e-6) * np.eye(len(inputs))
    centre, spread = prior(GROUPS)
    away = (by.values - centre.values) / spread
    _, size = np.linalg.slogdet(matrix)
    return float(-0.5 * values @ np.linalg.solve(matrix, values) - 0.5 * size - 0.5 * away @ away)


def test_no_neighbour_of_the_fitted_hyperparameters_is_more_probable():
    """A wrong gradient would have led elsewhere."""
    inputs = some(40, seed=4)
    noise = np.random.default_rng(6).normal(size=40)
    values = np.sin(6 * inputs.points[:, 0]) + 0.5 * inputs.budgets + 0.3 * noise
    found = fitted(GROUPS, inputs, values)
    best = log_density(found, inputs, values)
    assert best > log_density(prior(GROUPS)[0], inputs, values) + 1
    for place in range(len(found.values)):
        for by in (-0.05, 0.05):
            moved = found.values.copy()
            moved[place] += by
            assert log_density(Scales(groups=GROUPS, values=moved), inputs, values) < best + 1e-3


def test_an_axis_that_does_not_matter_gets_the_longer_scale():
    inputs = some(60, seed=5)
    values = np.sin(6 * inputs.points[:, 0])
    lengths = fitted(GROUPS, inputs, values).lengths
    assert lengths[1] > 3 * lengths[0]
    assert lengths[1] == lengths[2]  # coordinates of one parameter
