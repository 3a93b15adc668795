"""Between messages and the models of samplers, objectives, constraints and warm starts.

A number that is 0 in a message was not set: the model's default stands.
"""

from typing import Any, Final, assert_never

from headrace.spec.convert_values import options_data, params_to_proto
from headrace.spec.objective import Constraint, Goal, Keep, Objective, Scope, WarmStart
from headrace.spec.own import OwnSampler
from headrace.spec.sampler import (
    SAMPLERS,
    BestOfSampler,
    CmaEsSampler,
    GpSampler,
    GridSampler,
    MultiFidelitySampler,
    Nsga2Sampler,
    Nsga3Sampler,
    RandomSampler,
    Sampler,
    SobolSampler,
    TpeSampler,
)
from headrace.v1 import spec_pb2 as pb

GOALS: Final = {Goal.MINIMIZE: pb.GOAL_MINIMIZE, Goal.MAXIMIZE: pb.GOAL_MAXIMIZE}
KEEPS: Final = {Keep.LAST: pb.KEEP_LAST, Keep.BEST: pb.KEEP_BEST}
SCOPES: Final = {
    Scope.BEST: pb.SCOPE_BEST,
    Scope.LAST: pb.SCOPE_LAST,
    Scope.FULL_BUDGET: pb.SCOPE_FULL_BUDGET,
    Scope.MEAN_LAST_K: pb.SCOPE_MEAN_LAST_K,
}


def sampler_to_proto(sampler: Sampler) -> pb.Sampler:
    """The sampler as a message, with every number set."""
    match sampler:
        case RandomSampler():
            return pb.Sampler(random=pb.RandomSampler())
        case GridSampler(points=points):
            return pb.Sampler(grid=pb.GridSampler(points=points))
        case SobolSampler():
            return pb.Sampler(sobol=pb.SobolSampler())
        case BestOfSampler():
            return pb.Sampler(best_of=pb.BestOfSampler(study=sampler.study, eager=sampler.eager or 0.0))
        case TpeSampler():
            return pb.Sampler(
                tpe=pb.TpeSampler(
                    startup_trials=sampler.startup_trials,
                    candidates=sampler.candidates,
                    max_results=sampler.max_results,
                )
            )
        case GpSampler():
            return pb.Sampler(
                gp=pb.GpSampler(startup_trials=sampler.startup_trials, max_results=sampler.max_results)
            )
        case MultiFidelitySampler():
            return pb.Sampler(
                multi_fidelity=pb.MultiFidelitySampler(
                    startup_trials=sampler.startup_trials, max_results=sampler.max_results
                )
            )
        case CmaEsSampler():
            return pb.Sampler(
                cmaes=pb.CmaEsSampler(
                    startup_trials=sampler.startup_trials, population=sampler.population or 0
                )
            )
        case OwnSampler():
            return pb.Sampler(own=pb.OwnSampler(name=sampler.name, options=params_to_proto(sampler.options)))
        case Nsga2Sampler(population=population):
            return pb.Sampler(nsga2=pb.Nsga2Sampler(population=population))
        case Nsga3Sampler(population=population):
            return pb.Sampler(nsga3=pb.Nsga3Sampler(population=population))
        case never:
            assert_never(never)


def sampler_data(message: pb.Sampler) -> dict[str, Any] | None:
    """The plain data of a sampler; None where no kind is set."""
    kind = message.WhichOneof("kind")
    if kind is None:
        return None
    if kind == "grid":
        return {"kind": "grid", "points": dict(message.grid.points)}
    if kind == "own":
        return {"kind": kind, "name": message.own.name, "options": options_data(message.own.options)}
    given = getattr(message, kind)
    names = [name for name in SAMPLERS[kind].model_fields if name != "kind"]
    return {"kind": kind, **{name: number for name in names if (number := getattr(given, name))}}


def objective_to_proto(objective: Objective) -> pb.Objective:
    """One objective as a message."""
    return pb.Objective(
        metric=objective.metric,
        goal=GOALS[objective.goal],
        keep=KEEPS[objective.keep],
        scope=SCOPES[objective.scope],
        k=objective.k or 0,
    )


def objective_data(message: pb.Objective) -> dict[str, Any]:
    """The plain data of one objective."""
    goals = {number: goal for goal, number in GOALS.items()}
    data: dict[str, Any] = {"metric": message.metric}
    if message.goal != pb.GOAL_UNSPECIFIED:
        data["goal"] = goals.get(message.goal, str(message.goal))
    if message.keep != pb.KEEP_UNSPECIFIED:
        keeps = {number: keep for keep, number in KEEPS.items()}
        data["keep"] = keeps.get(message.keep, str(message.keep))
    if message.scope != pb.SCOPE_UNSPECIFIED:
        scopes = {number: scope for scope, number in SCOPES.items()}
        data["scope"] = scopes.get(message.scope, str(message.scope))
    if message.k:
        data["k"] = message.k
    return data


def constraint_to_proto(constraint: Constraint) -> pb.Constraint:
    """One constraint as a message."""
    if constraint.at_most is not None:
        return pb.Constraint(metric=constraint.metric, at_most=constraint.at_most)
    return pb.Constraint(metric=constraint.metric, at_least=constraint.at_least or 0.0)


def constraint_data(message: pb.Constraint) -> dict[str, Any]:
    """The plain data of one constraint."""
    bound = message.WhichOneof("bound")
    return {"metric": message.metric, **({bound: getattr(message, bound)} if bound else {})}


def warm_start_to_proto(warm_start: WarmStart) -> pb.WarmStart:
    """A warm start as a message."""
    return pb.WarmStart(study=warm_start.study, max_trials=warm_start.max_trials)


def warm_start_data(message: pb.WarmStart) -> dict[str, Any]:
    """The plain data of a warm start."""
    return {
        "study": message.study,
        **({"max_trials": message.max_trials} if message.max_trials else {}),
    }
