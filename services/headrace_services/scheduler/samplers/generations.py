"""The state that evolutionary samplers keep between proposals, derived from the results alone.

Optuna keeps the optimizer of CMA-ES with the trial that was asked for when a generation was over, and the parents
of NSGA's generations with the study. Here a requested trial may never exist (another replica's proposal is used
instead), so the optimizer is kept with the result that completed the generation. The table holds the results in
the order of arrival, so it gives the same optimizer in whatever process it is filled.
"""

from collections.abc import Sequence
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.samplers import (
    BaseGASampler,
    BaseSampler,
    CmaEsSampler,
    NSGAIIISampler,
    NSGAIISampler,
    TPESampler,
)
from optuna.study import Study
from optuna.trial import FrozenTrial

from headrace.spec import CmaEsSampler as CmaEs
from headrace.spec import ModelBased, Nsga2Sampler, Nsga3Sampler

_CMA_GENERATION = "cma:generation"
_CMA_OPTIMIZER = "cma:optimizer"
_GENETIC: dict[type[ModelBased], type[BaseGASampler]] = {
    Nsga2Sampler: NSGAIISampler,
    Nsga3Sampler: NSGAIIISampler,
}


class FixedSpaceCmaEs(CmaEsSampler):
    """CMA-ES that knows its space before the first result, so that the results of an earlier study can be used at
    once."""

    def __init__(self, space: dict[str, BaseDistribution], **options: Any) -> None:
        super().__init__(**options)
        self._fixed = space

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:  # noqa: ARG002
        """The numeric parameters that always exist and have more than one value."""
        return self._fixed


class FixedSpaceTpe(TPESampler):
    """TPE that knows its space: all parameters, if none has a condition.

    Optuna finds it by reading every result, and a sampler that is made for each proposal would do so each time.
    """

    def __init__(self, space: dict[str, BaseDistribution], **options: Any) -> None:
        super().__init__(**options)
        self._fixed = {name: space[name] for name in sorted(space) if not space[name].single()}

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """The parameters with more than one value, if Optuna would look for them at all."""
        if self._group or not self._is_multivariate(study):
            return super().infer_relative_search_space(study, trial)
        return self._fixed


def attrs_of(sampler: ModelBased, generation: int | None) -> dict[str, object]:
    """The attributes that Optuna's sampler wrote to a trial that it proposed for a generation."""
    if generation is None:
        return {}
    if isinstance(sampler, CmaEs):
        return {_CMA_GENERATION: generation}
    genetic = _GENETIC.get(type(sampler))
    return {genetic._get_generation_key(): generation} if genetic else {}


def generation_of(sampler: BaseSampler, trial: FrozenTrial) -> int | None:
    """The generation for which a sampler has just proposed a trial."""
    if isinstance(sampler, CmaEsSampler):
        generation = trial.system_attrs.get(_CMA_GENERATION)
        return None if generation is None else int(generation)
    if isinstance(sampler, BaseGASampler):
        generation = trial.system_attrs.get(
            sampler._get_generation_key()
        )  # absent if there is nothing to choose
        return None if generation is None else int(generation)
    return None


class Generations:
    """The state of CMA-ES: the generation whose results are awaited, and the result that holds the optimizer.

    The optimizer after a generation depends only on that generation's first results, as many as its population
    has. So only those and the holder are shown to the sampler, however long the study is.
    """

    def __init__(self, population: int) -> None:
        self._population = population
        self._places: dict[int, list[int]] = {}
        self._awaited = 0
        self._holder: int | None = None

    def add(self, place: int, generation: int | None) -> None:
        """Add the next result."""
        if generation is not None and generation >= self._awaited:
            self._places.setdefault(generation, []).append(place)

    def shown(self) -> list[int]:
        """The indices of the results that the next proposal depends on."""
        places = self._places.get(self._awaited, [])
        return places if self._holder is None else sorted([self._holder, *places])

    def keep_optimizer(self, finished: Sequence[FrozenTrial], asked: FrozenTrial) -> bool:
        """Keep the optimizer that was just given a generation, with the result that completed the generation.

        Returns False if it was given no generation: then the proposal is valid. If it was, a further generation may
        already have all its results.
        """
        kept = {key: value for key, value in asked.system_attrs.items() if key.startswith(_CMA_OPTIMIZER)}
        if not kept:
            return False
        if self._holder is not None:
            before = finished[self._holder].system_attrs
            for key in [key for key in before if key.startswith(_CMA_OPTIMIZER)]:
                del before[key]
        self._holder = self._places.pop(self._awaited)[self._population - 1]
        self._awaited += 1
        finished[self._holder].system_attrs.update(kept)
        return True


def forget_parents(attrs: dict[str, Any], generation: int | None) -> None:
    """Forget the parents of all generations after one that got a late result."""
    if generation is None:
        return
    for key in [key for key in attrs if ":parent:" in key]:
        if int(key.rpartition(":")[2]) > generation:
            del attrs[key]
