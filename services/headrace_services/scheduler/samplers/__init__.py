"""Samplers, by the kind that a spec names. A new sampler needs its own file and one case here.

`make_sampler` returns a sampler that depends only on the proposal's number. If a study's sampler learns from
results, that is one of random draws, which are its startup draws and replace failed proposals. `make_learner`
returns the model: our own over all rungs, and Optuna's for the other kinds. NumPy, SciPy and Optuna are imported
only when they are needed, the last two only in the processes of the pool.
"""

from collections.abc import Sequence
from typing import assert_never

from headrace.spec import (
    BestOfSampler,
    CmaEsSampler,
    GpSampler,
    GridSampler,
    ModelBased,
    MultiFidelitySampler,
    Nsga2Sampler,
    Nsga3Sampler,
    OwnPolicy,
    OwnSampler,
    SobolSampler,
    StudySpec,
    TpeSampler,
)
from headrace.spec import RandomSampler as RandomSpec
from headrace.spec.grid import Grid
from headrace.spec.repeats import expected_trials, has_points
from headrace_services.scheduler.core.policies import make_policy
from headrace_services.scheduler.core.records import Params
from headrace_services.scheduler.core.sampling import Points, Sampler, is_pooled, pooled_from
from headrace_services.scheduler.samplers.history import History, Result
from headrace_services.scheduler.samplers.protocol import ByNumber, Learner, Suggestion
from headrace_services.scheduler.samplers.random import RandomSampler

__all__ = [
    "History",
    "Learner",
    "Params",
    "Result",
    "Sampler",
    "Suggestion",
    "expected_trials",
    "is_pooled",
    "make_learner",
    "make_sampler",
    "points_of",
    "pooled_from",
    "propose",
    "require_own",
]


def make_sampler(spec: StudySpec) -> Sampler:
    """The sampler of a study whose proposals depend only on their number."""
    match spec.sampler:
        case GridSampler() as grid:
            return Grid(spec, grid)
        case SobolSampler():
            from headrace_services.scheduler.samplers.sobol import SobolSampler as Sobol

            return Sobol(spec)
        case (
            RandomSpec()
            | BestOfSampler()
            | TpeSampler()
            | GpSampler()
            | MultiFidelitySampler()
            | CmaEsSampler()
            | Nsga2Sampler()
            | Nsga3Sampler()
            | OwnSampler()
        ):
            return RandomSampler(spec)
        case never:
            assert_never(never)


def points_of(spec: StudySpec) -> Points | None:
    """The points of a finite space; None for a study without them (`headrace.spec.repeats`)."""
    if not has_points(spec):
        return None
    from headrace_services.scheduler.samplers.points import SpacePoints

    return SpacePoints(spec)


def make_learner(spec: StudySpec, warm: Sequence[Result] = ()) -> Learner:
    """The model that proposes for a study of the pool, knowing only the results of an earlier study so far."""
    if isinstance(spec.sampler, OwnSampler):
        from headrace_services.scheduler.samplers.own import OwnLearner

        return OwnLearner(spec, spec.sampler)
    if not isinstance(spec.sampler, ModelBased):
        return ByNumber(make_sampler(spec))
    if isinstance(spec.sampler, MultiFidelitySampler):
        from headrace_services.scheduler.samplers.multi_fidelity import MultiFidelityLearner

        return MultiFidelityLearner(spec, spec.sampler, warm)
    from headrace_services.scheduler.samplers.learning import OptunaLearner

    return OptunaLearner(spec, spec.sampler, warm)


def require_own(spec: StudySpec) -> None:
    """Raise InvalidFieldError if a study names a policy or a sampler of an installed package that is not
    available."""
    if isinstance(spec.policy, OwnPolicy):
        make_policy(spec)
    if isinstance(spec.sampler, OwnSampler):
        from headrace_services.scheduler.samplers.own import make_own_sampler

        make_own_sampler(spec, spec.sampler)


def propose(spec: StudySpec, history: History, number: int) -> Suggestion | None:
    """Proposal `number` of any sampler, computed on the spot; None if there are no more.

    For the simulator and for tests. Frequent callers should keep a learner instead of filling one each time.
    """
    if not is_pooled(spec):
        params = make_sampler(spec).suggest(number)
        return None if params is None else Suggestion(params=params)
    learner = make_learner(spec, history.warm)
    learner.learn(history.results)
    return learner.suggest(number, history.pending)
