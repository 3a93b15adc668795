"""Studies for tests of samplers, and a loop that plays them without a server."""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from headrace.spec import StudySpec
from headrace_services.scheduler.samplers import (
    Params,
    Result,
    Suggestion,
    is_pooled,
    make_learner,
    make_sampler,
)

KINDS = ("random", "grid", "sobol", "tpe", "gp", "multi_fidelity", "cmaes", "nsga2", "nsga3")
POOLED = KINDS[2:]
SMALL: dict[str, dict[str, Any]] = {
    "random": {},
    "grid": {},
    "sobol": {},
    "tpe": {"startup_trials": 4},
    "gp": {"startup_trials": 4},
    "multi_fidelity": {"startup_trials": 4},
    "cmaes": {"population": 4},
    "nsga2": {"population": 4},
    "nsga3": {"population": 4},
}
"""Settings with which a sampler leaves its startup phase after few results."""

MIXED = {
    "lr": {"type": "float", "low": 1e-5, "high": 1e-1, "log": True},
    "drop": {"type": "float", "low": 0.0, "high": 0.9, "step": 0.1},
    "width": {"type": "int", "low": 8, "high": 512, "log": True},
    "depth": {"type": "int", "low": 2, "high": 9},
    "even": {"type": "int", "low": 2, "high": 11, "step": 3},
    "kind": {"type": "categorical", "values": ["a", 1, True, 2.5, "1"]},
}
CONDITIONAL = {
    "opt": {"type": "categorical", "values": ["sgd", "adam"]},
    "lr": {"type": "float", "low": 1e-4, "high": 1.0, "log": True},
    "momentum": {
        "type": "float",
        "low": 0.1,
        "high": 0.99,
        "conditions": [{"parameter": "opt", "values": ["sgd"]}],
    },
    "nesterov": {
        "type": "categorical",
        "values": [True, False],
        "conditions": [{"parameter": "opt", "values": ["sgd"]}],
    },
    "beta": {
        "type": "float",
        "low": 0.8,
        "high": 0.999,
        "conditions": [{"parameter": "opt", "values": ["adam"]}],
    },
}
ODD: dict[str, dict[str, Any]] = {
    "widest floats": {"x": {"type": "float", "low": -1.7e308, "high": 1.7e308}},
    "widest log": {"x": {"type": "float", "low": 1e-308, "high": 1.7e308, "log": True}},
    "narrowest": {"x": {"type": "float", "low": 1.0, "high": 1.0000000000000002}},
    "all integers": {"x": {"type": "int", "low": -(2**63), "high": 2**63 - 1}},
    "log integers": {"x": {"type": "int", "low": 1, "high": 2**63 - 1, "log": True}},
    "wide steps": {"x": {"type": "int", "low": -(2**62), "high": 2**62, "step": 2**40}},
    "one integer": {"x": {"type": "int", "low": 3, "high": 3}, "y": {"type": "float", "low": 0, "high": 1}},
    "one choice": {"x": {"type": "categorical", "values": ["only"]}},
    "choices only": {
        "x": {"type": "categorical", "values": ["a", "b"]},
        "y": {"type": "categorical", "values": [0, False]},
    },
    "ragged step": {"x": {"type": "float", "low": 0.0, "high": 1.0, "step": 0.3}},
    "tiny step": {"x": {"type": "float", "low": 0.0, "high": 1.0, "step": 1e-12}},
    "deep": {
        "a": {"type": "categorical", "values": [0, 1]},
        "b": {"type": "categorical", "values": [0, 1], "conditions": [{"parameter": "a", "values": [1]}]},
        "c": {
            "type": "float",
            "low": 0.0,
            "high": 1.0,
            "conditions": [{"parameter": "b", "values": [1]}],
        },
    },
    "names": {
        "a.b-c": {"type": "float", "low": 0.0, "high": 1.0},
        "_": {"type": "int", "low": 0, "high": 1},
    },
}


def spec_of(kind: str, space: Mapping[str, Any] = MIXED, **changes: Any) -> StudySpec:
    """A study with the sampler of a kind."""
    sampler: dict[str, Any] = {"kind": kind, **SMALL[kind]}
    if kind == "grid":
        continuous = [n for n, d in space.items() if d["type"] == "float" and "step" not in d]
        wide = [n for n, d in space.items() if d["type"] == "int" and d["high"] - d["low"] > 100]
        sampler["points"] = dict.fromkeys([*continuous, *wide], 3)
    fields: dict[str, Any] = {
        "objective": {"metric": "loss", "goal": "minimize"},
        "space": space,
        "sampler": sampler,
        "policy": {"kind": "run_all"},
        "max_trials": 1000,
        "max_steps": 1,
        "seed": 5,
    }
    return StudySpec.model_validate({**fields, **changes})


def play(
    spec: StudySpec,
    trials: int,
    measure: Callable[[Params], Result],
    *,
    in_flight: int = 1,
) -> list[Suggestion]:
    """Request `trials` proposals with `in_flight` trials at a time; results arrive in the order of the starts."""
    if not is_pooled(spec):
        sampler = make_sampler(spec)
        drawn = [sampler.suggest(number) for number in range(trials)]
        return [Suggestion(params=params) for params in drawn if params is not None]
    learner = make_learner(spec)
    flying: deque[Suggestion] = deque()
    made: list[Suggestion] = []
    for number in range(trials):
        if len(flying) == in_flight:
            first = flying.popleft()
            result = measure(first.params)
            learner.learn(
                [
                    Result(
                        params=result.params,
                        values=result.values,
                        excesses=result.excesses,
                        generation=first.generation,
                    )
                ]
            )
        suggestion = learner.suggest(number, [one.params for one in flying])
        flying.append(suggestion)
        made.append(suggestion)
    return made


def by_position(params: Params) -> Result:
    """A smooth value for any configuration: how far its numbers are from an arbitrary middle."""
    total = 0.0
    for name, value in params.items():
        total += (len(str(value)) % 5) + (hash_of(name, value) % 97) / 97
    return Result(params=params, values=(total,))


def hash_of(name: str, value: object) -> int:
    """A number that is the same in every process."""
    return sum(map(ord, f"{name}{value!r}"))
