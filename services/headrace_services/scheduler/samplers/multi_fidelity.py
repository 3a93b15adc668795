"""A model over configuration and budget: it learns from the results at all rungs, as MOBSTER does (Klein et al., arXiv
2003.10865).

It tells apart good and bad by rank, not by value: over all rungs together the results are replaced by the quantiles of
a normal distribution. So a loss that explodes weighs no more than one that is merely bad, infeasible results stand
behind feasible ones, and the goal of the study is nothing but an order.

A proposal maximizes the expected improvement at the *aim*, the highest rung with more results than there are
parameters. Pending trials count as if what is expected of them had come true, so that the next proposal lies elsewhere.

The Gaussian process is our own (`gaussian_process`), as those of libraries take 0.3 to 1 s a proposal (decision 0122).
"""

from collections import Counter
from collections.abc import Sequence
from math import inf, isfinite, log
from typing import Any

import numpy as np
from scipy.special import erfcx, log_ndtr, ndtri
from scipy.stats import rankdata

from headrace.spec import MultiFidelitySampler, StudySpec
from headrace_services.scheduler.core.records import Params
from headrace_services.scheduler.samplers.cube import Cube
from headrace_services.scheduler.samplers.gaussian_process import Inputs, Posterior, Scales, fitted
from headrace_services.scheduler.samplers.history import Result
from headrace_services.scheduler.samplers.protocol import Suggestion
from headrace_services.scheduler.samplers.random import RandomSampler

Array = np.ndarray[Any, np.dtype[Any]]
_FITTED_TO = 128
"""The length scales are fitted to so many results: the cost grows with the cube."""
_GROWTH = 1.2
"""They are fitted anew when there are so many times as many results."""
_DRAWN, _NEAR, _REFINED = 400, 400, 100
"""Candidates: independent ones, neighbours of the best results, and in each of two rounds neighbours of the best
candidates."""
_BEST = 8
_EXPLORES = 2
"""Every second proposal has the largest expected improvement. The others have the best expected value."""
_WIDTHS = (0.03, 0.1, 0.2)


class MultiFidelityLearner:
    """The model of a study."""

    def __init__(self, spec: StudySpec, sampler: MultiFidelitySampler, warm: Sequence[Result]) -> None:
        self._spec = spec
        self._sampler = sampler
        self._cube = Cube(spec)
        rungs = spec.rungs()
        self._first, self._top = rungs[0], rungs[-1]
        self._rows: list[Array] = []
        self._levels: list[int] = []
        self._order: list[tuple[float, float]] = []
        """By result: by how much the constraints were missed, then the value; the smallest is the best."""
        self._scales: Scales | None = None
        self._fitted_at = 0
        self._warm = len(warm)
        self.learn(warm)

    @property
    def learnt(self) -> int:
        """How many results it was told, those of an earlier study not counted."""
        return len(self._rows) - self._warm

    def learn(self, results: Sequence[Result]) -> None:
        """Take in further results, in the order of their arrival."""
        sign = self._spec.objective.sign
        for result in results:
            excess = sum(max(0.0, by) for by in result.excesses)
            self._rows.append(self._cube.row(result.params))
            self._levels.append(result.level or self._first)
            self._order.append(
                (excess if isfinite(excess) else inf, sign * result.values[0] if result.finite else inf)
            )

    def suggest(self, number: int, pending: Sequence[Params], *, attempt: int = 0) -> Suggestion:
        """Proposal `number`."""
        if len(self._rows) < self._sampler.startup_trials:
            return Suggestion(params=RandomSampler(self._spec).suggest(number), is_draw=True)
        key = (number, attempt) if attempt else (number,)
        generator = np.random.default_rng(np.random.SeedSequence(self._spec.seed, spawn_key=key))
        rows, levels = np.array(self._rows), np.array(self._levels)
        values = _normal_scores(self._order)
        scales = self._scaled(rows, levels)
        kept = self._kept(levels, values)
        known, told = self._inputs(rows[kept], levels[kept]), values[kept]
        posterior = Posterior(scales, known, told)
        waiting = np.array([self._cube.row(params) for params in pending]).reshape(-1, self._cube.parameters)
        if len(waiting):
            coming = self._inputs(waiting, np.full(len(waiting), self._first))
            told = np.concatenate([told, posterior.mean(coming)])
            known = known.joined(coming)
            posterior = Posterior(scales, known, told)
        explores = number % _EXPLORES == 0
        row = self._best(posterior, np.concatenate([rows[kept], waiting]), self._aim(), generator, explores)
        return Suggestion(params=self._cube.configuration(row))

    def _best(
        self, posterior: Posterior, rows: Array, aim: int, generator: np.random.Generator, explores: bool
    ) -> Array:
        """The candidate with the best expected value, or with the largest expected improvement on what is known."""

        def expected(rows: Array) -> Array:
            return posterior.mean(self._inputs(rows, np.full(len(rows), aim)))

        def gains(rows: Array) -> Array:
            if not explores:
                return -expected(rows)
            mean, deviation = posterior.predict(self._inputs(rows, np.full(len(rows), aim)))
            return log_expected_improvement(mean, deviation, least)

        means = expected(rows)
        least = float(means.min())
        best = rows[np.argsort(means, kind="stable")[:_BEST]]
        widths = generator.choice(_WIDTHS, size=_NEAR)
        near = self._cube.near(best[generator.integers(len(best), size=_NEAR)], widths, generator)
        candidates = np.concatenate([self._cube.drawn(_DRAWN, generator), near])
        gained = gains(candidates)
        for _ in range(2):
            best = candidates[np.argsort(-gained, kind="stable")[:_BEST]]
            from_best = best[generator.integers(len(best), size=_REFINED)]
            finer = self._cube.near(from_best, np.full(_REFINED, _WIDTHS[0]), generator)
            candidates, gained = np.concatenate([candidates, finer]), np.concatenate([gained, gains(finer)])
        chosen: Array = candidates[int(gained.argmax())]
        return chosen

    def _aim(self) -> int:
        counts = Counter(self._levels)
        rich = [level for level, count in counts.items() if count > self._cube.parameters]
        return max(rich or counts)

    def _inputs(self, rows: Array, levels: Array) -> Inputs:
        """A budget is the share of the logarithm between the first rung and the full budget."""
        span = log(self._top / self._first)
        budgets = np.log(levels / self._first) / span if span > 0 else np.zeros(len(levels))
        return Inputs(points=self._cube.points(rows), budgets=np.clip(budgets, 0.0, 1.0))

    def _scaled(self, rows: Array, levels: Array) -> Scales:
        """The hyperparameters of the process. They follow from the first so many results alone, whoever fits them."""
        count = 1
        while (grown := max(count + 1, int(_GROWTH * count))) <= len(rows):
            count = grown
        if self._scales is None or self._fitted_at != count:
            values = _normal_scores(self._order[:count])
            some = np.random.default_rng(count).permutation(count)[:_FITTED_TO]
            self._scales = fitted(self._cube.groups, self._inputs(rows[some], levels[some]), values[some])
            self._fitted_at = count
        return self._scales

    def _kept(self, levels: Array, values: Array) -> Array:
        """The places of at most `max_results` results: the latest half, and the best of the others."""
        most = self._sampler.max_results
        if len(levels) <= most:
            return np.arange(len(levels))
        latest = len(levels) - most // 2
        best = np.argsort(values[:latest], kind="stable")[: most - most // 2]
        return np.concatenate([np.sort(best), np.arange(latest, len(levels))])


def _normal_scores(order: Sequence[tuple[float, float]]) -> Array:
    """(n,): the quantile of each result in a normal distribution, by rank; equal ones share theirs."""
    places = {one: place for place, one in enumerate(sorted(set(order)))}
    ranks = rankdata([places[one] for one in order])
    scores: Array = ndtri((ranks - 0.5) / len(order))
    return scores


def log_expected_improvement(mean: Array, deviation: Array, least: float) -> Array:
    """(n,): the logarithm of E[max(0, least − Y)], Y normal (Ament et al., NeurIPS 2023, eq. 9, without its limits)."""
    away = (least - mean) / deviation
    density = -0.5 * away**2 - 0.5 * np.log(2 * np.pi)
    near = np.maximum(away, -1.0)
    inside = np.log(np.exp(-0.5 * near**2 - 0.5 * np.log(2 * np.pi)) + near * np.exp(log_ndtr(near)))
    far = np.minimum(away, -1.0)
    ratio = np.sqrt(np.pi / 2) * erfcx(-far / np.sqrt(2)) * far
    outside = density + np.log(np.maximum(1.0 + ratio, 1e-300))
    gains: Array = np.where(away > -1.0, inside, outside) + np.log(deviation)
    return gains
