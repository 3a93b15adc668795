"""A model over configuration and budget: it learns from the results at all rungs, as MOBSTER does (Klein et al., arXiv
2003.10865).

It distinguishes good from bad by rank, not by value: over all rungs together the results are replaced by the
quantiles of a normal distribution. So a loss that explodes weighs no more than one that is merely bad, infeasible
results rank behind feasible ones, and the goal of the study is only an order.

A proposal maximizes the expected improvement at the *aim*, the highest rung with more results than there are
parameters. Pending trials count as if they had their expected results, so that the next proposal is elsewhere.

The Gaussian process is our own (`gaussian_process`), as those of libraries take 0.3 to 1 s for each proposal
(decision 0122).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite, log
from typing import Any

import numpy as np
from scipy.special import erfcx, log_ndtr, ndtri
from scipy.stats import rankdata

from headrace.spec import MultiFidelitySampler, StudySpec
from headrace_services.scheduler.core.records import Params
from headrace_services.scheduler.samplers.cube import Cube, View
from headrace_services.scheduler.samplers.gaussian_process import Inputs, Posterior, Scales, fitted
from headrace_services.scheduler.samplers.history import Result
from headrace_services.scheduler.samplers.protocol import Suggestion
from headrace_services.scheduler.samplers.random import RandomSampler

Array = np.ndarray[Any, np.dtype[Any]]
_FITTED_TO = 128
"""The length scales are fitted to this many results: the cost grows with the cube."""
_GROWTH = 1.2
"""They are fitted again when the number of results has grown by this factor."""
_DRAWN, _NEAR, _REFINED = 400, 400, 100
"""Candidates: independent ones, neighbours of the best results, and in each of two rounds neighbours of the best
candidates."""
_BEST = 8
_EXPLORES = 2
"""One in this many proposals has the largest expected improvement. The others have the best expected value."""
_WIDTHS = (0.03, 0.1, 0.2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The data for a proposal."""

    view: View
    posterior: Posterior
    rows: Array
    """(n, parameters): the results that the model uses, and the pending trials."""
    aim: int
    """The level at which the value should be good."""


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
        """By result: by how much the constraints were missed, then the value; the lowest is the best."""
        self._scales: Array | None = None
        self._fitted_at = 0
        self._warm = len(warm)
        self.learn(warm)

    @property
    def learnt(self) -> int:
        """How many results it was given, not counting those of an earlier study."""
        return len(self._rows) - self._warm

    def learn(self, results: Sequence[Result]) -> None:
        """Add further results, in the order of their arrival."""
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
        values = _normal_scores(self._order)
        kept = self._kept(values)
        rows, levels, told = self._rows_at(kept), np.array(self._levels)[kept], values[kept]
        latest = pending[-self._sampler.max_results :]
        waiting = np.array([self._cube.row(params) for params in latest]).reshape(-1, self._cube.parameters)
        view = View(self._cube, np.concatenate([rows, waiting]))
        scales = Scales(groups=view.groups, values=self._scaled())
        known = self._inputs(view, rows, levels)
        posterior = Posterior(scales, known, told)
        if len(waiting):
            coming = self._inputs(view, waiting, np.full(len(waiting), self._first))
            told = np.concatenate([told, posterior.mean(coming)])
            known = known.joined(coming)
            posterior = Posterior(scales, known, told)
        seen = Seen(view=view, posterior=posterior, rows=np.concatenate([rows, waiting]), aim=self._aim())
        row = self._best(seen, generator, explores=number % _EXPLORES == 0)
        return Suggestion(params=self._cube.configuration(row))

    def _best(self, seen: "Seen", generator: np.random.Generator, *, explores: bool) -> Array:
        """The candidate with the best expected value or, if `explores`, with the largest expected improvement.

        It is one that was not tried before, if there is any. Otherwise the best one so far would be proposed again
        and again if there are few parameters, or few values.
        """

        def inputs(rows: Array) -> Inputs:
            return self._inputs(seen.view, rows, np.full(len(rows), seen.aim))

        def gains(rows: Array) -> Array:
            if not explores:
                return -seen.posterior.mean(inputs(rows))
            mean, deviation = seen.posterior.predict(inputs(rows))
            return log_expected_improvement(mean, deviation, least)

        means = seen.posterior.mean(inputs(seen.rows))
        least = float(means.min())
        best = seen.rows[np.argsort(means, kind="stable")[:_BEST]]
        widths = generator.choice(_WIDTHS, size=_NEAR)
        near = self._cube.near(best[generator.integers(len(best), size=_NEAR)], widths, generator)
        candidates = np.concatenate([self._cube.drawn(_DRAWN, generator), near])
        gained = gains(candidates)
        for _ in range(2):
            best = candidates[np.argsort(-gained, kind="stable")[:_BEST]]
            from_best = best[generator.integers(len(best), size=_REFINED)]
            finer = self._cube.near(from_best, np.full(_REFINED, _WIDTHS[0]), generator)
            candidates, gained = np.concatenate([candidates, finer]), np.concatenate([gained, gains(finer)])
        chosen: Array = candidates[int(np.where(_are_new(seen, candidates), gained, -inf).argmax())]
        return chosen

    def _aim(self) -> int:
        counts = Counter(self._levels)
        rich = [level for level, count in counts.items() if count > self._cube.parameters]
        return max(rich or counts)

    def _rows_at(self, places: Array) -> Array:
        """(n, parameters): the rows of some results. Two copies of all rows may not fit into memory."""
        return np.array([self._rows[place] for place in places])

    def _inputs(self, view: View, rows: Array, levels: Array) -> Inputs:
        """The inputs of a model. A budget is its share on a log scale between the first rung and the full budget."""
        span = log(self._top / self._first)
        budgets = np.log(levels / self._first) / span if span > 0 else np.zeros(len(levels))
        return Inputs(points=view.points(rows), budgets=np.clip(budgets, 0.0, 1.0))

    def _scaled(self) -> Array:
        """The hyperparameters of the process. They depend only on the first results up to some number, whichever
        process fits them."""
        count = 1
        while (grown := max(count + 1, int(_GROWTH * count))) <= len(self._rows):
            count = grown
        if self._scales is None or self._fitted_at != count:
            values = _normal_scores(self._order[:count])
            some = np.random.default_rng(count).permutation(count)[:_FITTED_TO]
            rows = self._rows_at(some)
            view = View(self._cube, rows)
            inputs = self._inputs(view, rows, np.array(self._levels)[some])
            self._scales = fitted(view.groups, inputs, values[some]).values
            self._fitted_at = count
        return self._scales

    def _kept(self, values: Array) -> Array:
        """The indices of at most `max_results` results: the latest half, and the best of the others."""
        most = self._sampler.max_results
        if len(values) <= most:
            return np.arange(len(values))
        latest = len(values) - most // 2
        best = np.argsort(values[:latest], kind="stable")[: most - most // 2]
        return np.concatenate([np.sort(best), np.arange(latest, len(values))])


def _are_new(seen: Seen, rows: Array) -> Array:
    """(n,): which rows are not the configuration of a result or of a pending trial; all of them if none is new."""
    tried = {point.tobytes() for point in seen.view.points(seen.rows)}
    found = np.array([point.tobytes() not in tried for point in seen.view.points(rows)])
    return found if found.any() else ~found


def _normal_scores(order: Sequence[tuple[float, float]]) -> Array:
    """(n,): the quantile of each result in a normal distribution, by rank; equal ones share their quantile."""
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
