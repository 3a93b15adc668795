"""Optuna's samplers as learners: an adapter, not an algorithm.

For each proposal a new Optuna sampler is made, seeded with the study's seed and the proposal's number, and applied
to the trial table. So a proposal is a function of the seed, the number, the results and the pending trials, and
nothing is lost with the process that computed it. What evolutionary samplers keep between proposals is in the
table, derived from the results:

- CMA-ES (`generations`): the optimizer after a generation is kept with the result that completed the generation;
- NSGA-II and III: the parents of a generation are kept for the study, and forgotten when a late result belongs to an
  earlier generation.

Results whose objective is missing or not finite count as the worst possible, so that a sampler learns to avoid
regions where trials diverge. (Optuna's own `optimize` fails such trials, and its samplers never see them.)
"""

import math
import warnings
from collections.abc import Callable, Sequence
from typing import assert_never

import numpy as np
import optuna
from optuna.distributions import IntDistribution
from optuna.samplers import BaseSampler, GPSampler, NSGAIIISampler, NSGAIISampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState

from headrace.spec import (
    CategoricalDomain,
    Domain,
    GpSampler,
    Nsga2Sampler,
    Nsga3Sampler,
    StudySpec,
    TpeSampler,
)
from headrace.spec import CmaEsSampler as CmaEs
from headrace.spec.space import draw
from headrace_services.scheduler.core.records import Params
from headrace_services.scheduler.samplers import generations
from headrace_services.scheduler.samplers.dimensions import Scalar, dimensions
from headrace_services.scheduler.samplers.history import Ranked, Result
from headrace_services.scheduler.samplers.protocol import Suggestion
from headrace_services.scheduler.samplers.random import RandomSampler
from headrace_services.scheduler.samplers.trial_table import TrialTable, frozen

Backed = TpeSampler | GpSampler | CmaEs | Nsga2Sampler | Nsga3Sampler
"""The samplers that Optuna implements."""
_LARGEST = 1e100
"""Values are clipped here, because models square them."""
_WARM_ENOUGH = 10
"""Warm-starting CMA-ES takes the best tenth of an earlier study's results, so it needs ten."""


class OptunaLearner:
    """A model-based sampler of a study, at one level."""

    def __init__(self, spec: StudySpec, sampler: Backed, warm: Sequence[Result]) -> None:
        self._spec = spec
        self._sampler = sampler
        self._signs = [objective.sign for objective in spec.objectives]
        self._dimensions = dimensions(spec)
        fixed = isinstance(sampler, CmaEs)  # its dimensions must be the same in every trial
        self._shown = {
            name: dimension
            for name, dimension in self._dimensions.items()
            if not (fixed and dimension.domain.conditions)
        }
        directions = [
            StudyDirection.MAXIMIZE if sign < 0 else StudyDirection.MINIMIZE for sign in self._signs
        ]
        self._table = TrialTable(directions)
        self._numeric = {
            name: dimension.distribution
            for name, dimension in self._shown.items()
            if not isinstance(dimension.domain, CategoricalDomain) and not dimension.distribution.single()
        }
        given = sampler.population if isinstance(sampler, CmaEs) else None
        self._population = given or 4 + int(3 * math.log(max(len(self._numeric), 1)))
        self._ranked = Ranked(self._signs[0])
        self._generations = generations.Generations(self._population)
        self._warm = len(warm)
        self._sources: list[FrozenTrial] = []
        if isinstance(sampler, CmaEs):
            self._sources = [self._finished(result, place) for place, result in enumerate(warm)]
            self._warm = 0
        else:
            self._learn(warm)

    @property
    def learnt(self) -> int:
        """How many results it was given, not counting those of an earlier study."""
        return len(self._table.finished) - self._warm

    def learn(self, results: Sequence[Result]) -> None:
        """Add further results, in the order of their arrival."""
        self._learn(results)

    def suggest(self, number: int, pending: Sequence[Params], *, attempt: int = 0) -> Suggestion:
        """Proposal `number`. Raises whatever Optuna raises."""
        sampler = self._sampler
        startup = 0 if isinstance(sampler, Nsga2Sampler | Nsga3Sampler) else sampler.startup_trials
        finished = len(self._table.finished)
        if finished < startup and not self._sources:
            return Suggestion(params=RandomSampler(self._spec).suggest(number), is_draw=True)
        running = [self._running(params, finished + place) for place, params in enumerate(pending)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about options that Optuna calls experimental
            return self._ask(number, attempt, running)

    def _ask(self, number: int, attempt: int, running: Sequence[FrozenTrial]) -> Suggestion:
        key = (number, attempt) if attempt else (number,)
        state = np.random.SeedSequence(self._spec.seed, spawn_key=key).generate_state(1)
        while True:
            self._table.show(self._places(), running)
            sampler = self._optuna_sampler(int(state[0]))
            study = optuna.load_study(
                study_name=self._table.get_study_name_from_id(0),
                storage=self._table,
                sampler=sampler,
                pruner=optuna.pruners.NopPruner(),
            )
            trial = study.ask()
            params = draw(self._spec.space, self._choosing(trial))
            asked = self._table.get_trial(trial._trial_id)
            self._table.land()
            if not self._generations.keep_optimizer(self._table.finished, asked):
                return Suggestion(params=params, generation=generations.generation_of(sampler, asked))

    def _places(self) -> Sequence[int] | None:
        """The results that the sampler is shown; None for all."""
        match self._sampler:
            case TpeSampler(max_results=most) | GpSampler(max_results=most):
                return self._ranked.kept(most)
            case CmaEs():
                return self._generations.shown()
            case _:
                return None

    def _choosing(self, trial: Trial) -> Callable[[str, Domain], Scalar]:
        return lambda name, _: self._drawn(trial, name)

    def _drawn(self, trial: Trial, name: str) -> Scalar:
        dimension = self._dimensions[name]
        match dimension.distribution:
            case IntDistribution() as whole:
                inside: float = trial.suggest_int(name, whole.low, whole.high, step=whole.step, log=whole.log)
            case optuna.distributions.FloatDistribution() as real:
                inside = trial.suggest_float(name, real.low, real.high, log=real.log)
            case optuna.distributions.CategoricalDistribution() as choice:
                inside = trial.suggest_categorical(name, choice.choices)  # type: ignore[assignment]  # places
            case other:
                raise TypeError(f"no dimension has a {type(other).__name__}")
        return dimension.outside(inside)

    def _optuna_sampler(self, seed: int) -> BaseSampler:
        match self._sampler:
            # Startup draws are made before Optuna is asked, so it must make none.
            case TpeSampler(candidates=candidates):
                # Optuna's defaults, except for conditions: then a group for each set of parameters that exist
                # together.
                grouped = any(domain.conditions for domain in self._spec.space.values())
                return generations.FixedSpaceTpe(
                    {name: dimension.distribution for name, dimension in self._dimensions.items()},
                    n_startup_trials=0,
                    n_ei_candidates=candidates,
                    multivariate=True if grouped else None,
                    group=grouped,
                    seed=seed,
                )
            case GpSampler():
                return GPSampler(n_startup_trials=0, seed=seed, warn_independent_sampling=False)
            case CmaEs():
                return generations.FixedSpaceCmaEs(
                    self._numeric,
                    n_startup_trials=0,
                    popsize=self._population,
                    seed=seed,
                    warn_independent_sampling=False,
                    source_trials=self._sources if len(self._sources) >= _WARM_ENOUGH else None,
                )
            case Nsga2Sampler(population=population):
                return NSGAIISampler(population_size=population, seed=seed)
            case Nsga3Sampler(population=population):
                return NSGAIIISampler(population_size=population, seed=seed)
            case never:
                assert_never(never)

    # --- trials in Optuna's form -------------------------------------------------------------------------

    def _learn(self, results: Sequence[Result]) -> None:
        for result in results:
            self._table.append(self._finished(result, len(self._table.finished)))
            self._ranked.add(result)
            self._generations.add(len(self._table.finished) - 1, result.generation)
            generations.forget_parents(self._table.attrs, result.generation)

    def _finished(self, result: Result, number: int) -> FrozenTrial:
        diverged = not result.finite
        # TPE ranks a pruned trial without values behind all others; the other samplers use only complete trials.
        pruned = diverged and isinstance(self._sampler, TpeSampler)
        values = [
            sign * math.inf if diverged else min(max(value, -_LARGEST), _LARGEST)
            for sign, value in zip(self._signs, result.values, strict=True)
        ]
        attrs = {f"constraints:{place}": excess for place, excess in enumerate(result.excesses)}
        return frozen(
            number,
            TrialState.PRUNED if pruned else TrialState.COMPLETE,
            values=None if pruned else values,
            params=result.params,
            shown=self._shown,
            attrs=attrs | generations.attrs_of(self._sampler, result.generation),
        )

    def _running(self, params: Params, number: int) -> FrozenTrial:
        return frozen(number, TrialState.RUNNING, params=params, shown=self._shown)
