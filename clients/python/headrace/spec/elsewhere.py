"""Words from other tuners, and the words of a study file, for hints to users who port a study.

The words are those of Optuna, Ray Tune and similar tools.
"""

from collections.abc import Mapping
from typing import Any, Final

from headrace.elsewhere import TYPES

SEVERAL: Final = (
    "Write the first one as `objective: {metric: NAME, goal: …}`, and the others as "
    "`further_objectives: [{metric: NAME, goal: …}]`."
)

_HOURS: Final = "Write `until: {hours: 2}`, which ends the study once its trials have run for so long."
_STOPS: Final = (
    "`steps` is the full budget, and the policy stops trials. Write `until: {value: 0.1}` to end the study once it "
    "is good enough."
)

TOP: Final = {
    "direction": "Write `objective: {metric: NAME, goal: …}`, with the goal minimize or maximize.",
    "directions": SEVERAL,
    "objectives": SEVERAL,
    "metric": "Write `objective: {metric: NAME, goal: …}`, with the goal minimize or maximize.",
    "mode": "Write `objective: {metric: NAME, goal: …}`, with the goal minimize or maximize.",
    "goal": "Write `objective: {metric: NAME, goal: …}`, with the goal minimize or maximize.",
    "pruner": "Write `policy: {kind: asha}`, or another kind of policy.",
    "scheduler": "Write `policy: {kind: asha}`, or another kind of policy.",
    "search_alg": "Write `sampler: {kind: tpe}`, or another kind of sampler.",
    "n_trials": "Did you mean `trials`?",
    "num_samples": "Did you mean `trials`?",
    "n_jobs": "Did you mean `parallel`?",
    "max_concurrent": "Did you mean `parallel`?",
    "max_concurrent_trials": "Did you mean `parallel`?",
    "max_t": "Did you mean `steps`?",
    "max_resource": "Did you mean `steps`?",
    "training_iteration": "Did you mean `steps`?",
    "config": "Did you mean `space`?",
    "param_space": "Did you mean `space`?",
    "search_space": "Did you mean `space`?",
    "parameters": "Did you mean `space`?",
    "study_name": "Did you mean `name`?",
    "points_to_evaluate": "Did you mean `enqueue`?",
    "enqueue_trial": "Did you mean `enqueue`?",
    "max_failures": "Did you mean `retries`?",
    "catch": "Did you mean `retries`?",
    "resources_per_trial": "Did you mean `resources`?",
    "stop": _STOPS,
    "early_stopping": _STOPS,
    "cpu": "Write `resources: {cpus: 1}`.",
    "gpu": "Write `resources: {gpus: 1}`.",
    "num_gpus": "Write `resources: {gpus: 1}`.",
    "num_cpus": "Write `resources: {cpus: 1}`.",
    "time_budget_s": _HOURS,
    "fail_fast": "Leave it out: a study continues without its failed trials; `retries` says how often one is retried.",
    "max_time": _HOURS,
    "timeout_s": _HOURS,
    "stop_at": _STOPS,
    "timeout": _HOURS,
    "num_to_keep": "Did you mean `checkpoints_kept`?",
    "checkpoint_score_attribute": "Write `objective: {metric: NAME, goal: …, keep: best}`.",
    "load_if_exists": "Leave it out: `headrace attach STUDY` shows a study again, `run --suffix` starts a new one.",
    "storage": "Leave it out: the service keeps every study.",
}
"""Keys of the whole file."""

OBJECTIVE: Final = {
    "mode": "Write `goal: minimize` or `goal: maximize`.",
    "direction": "Write `goal: minimize` or `goal: maximize`.",
    "last_k": "Did you mean `k`?",
}
"""Keys of the objective."""

CHOICES: Final = "Write the choices as `{type: categorical, values: [a, b, …]}`."

DOMAIN: Final = {
    "choices": "Did you mean `values`?",
    "min": "Did you mean `low`?",
    "lower": "Did you mean `low`?",
    "max": "Did you mean `high`?",
    "upper": "Did you mean `high`?",
    "q": "Did you mean `step`?",
    "distribution": "Did you mean `type`?",
}
"""Keys of a parameter."""

POLICY: Final = {
    "reduction_factor": "Did you mean `eta`?",
    "grace_period": "Did you mean `min_steps`?",
    "min_resource": "Did you mean `min_steps`?",
    "grace": "Did you mean `min_steps`?",
    "hyperparam_mutations": "Name the parameters that mutate in `mutable: [lr, …]`.",
    "perturbation_interval": "Did you mean `interval`?",
    "quantile_fraction": "Did you mean `quantile`?",
    "perturbation_factors": "Did you mean `factors`?",
    "n_startup_trials": "Did you mean `min_peers`?",
    "n_warmup_steps": "Did you mean `grace_steps`?",
    "interval_steps": "Did you mean `interval`?",
    "max_t": "Leave it out, and write `steps` at the top: the full budget.",
    "max_resource": "Leave it out, and write `steps` at the top: the full budget.",
}
"""Keys of a policy."""

KINDS: Final = {
    "none": "Did you mean `run_all`?",
    "nop": "Did you mean `run_all`?",
    "fifo": "Did you mean `run_all`?",
    "sha": "Did you mean `successive_halving`?",
    "ashascheduler": "Did you mean `asha`?",
}
"""Kinds of a policy."""

SAMPLERS: Final = {
    "tpesampler": "Did you mean `tpe`?",
    "gpsampler": "Did you mean `gp`?",
    "nsgaiisampler": "Did you mean `nsga2`?",
    "nsgaiiisampler": "Did you mean `nsga3`?",
    "qmcsampler": "Did you mean `sobol`?",
    "bayesian": "Did you mean `gp`?",
    "bayesopt": "Did you mean `gp`?",
    "bohb": "Write `sampler: tpe` with `policy: hyperband`.",
    "mobster": "Did you mean `multi_fidelity`?",
    "hypertune": "Did you mean `multi_fidelity`?",
    "hyperopt": "Did you mean `tpe`?",
}
"""Kinds of a sampler."""


def hint(loc: tuple[str | int, ...], word: str) -> str:
    """What to write instead of another tuner's key or kind; empty if unknown."""
    match loc:
        case (_,):
            table = TOP
        case ("space", _, "type"):
            table = TYPES
        case ("space", _, _):
            table = DOMAIN
        case ("policy", "kind"):
            table = KINDS
        case ("objective", _):
            table = OBJECTIVE
        case ("sampler", "kind"):
            table = SAMPLERS
        case ("policy", _):
            table = POLICY
        case _:
            return ""
    return table.get(word.lower(), "")


def space_hint(loc: tuple[str | int, ...], space: Mapping[str, Any]) -> str:
    """What to write instead of a constant, a nested space or a list as a choice; empty for anything else."""
    domain = space.get(str(loc[0])) if loc else None
    match loc, domain:
        case (_,), str() if domain.endswith(")"):
            return f"Write a range as `{{type: float, low: 1e-6, high: 1e-1, log: true}}`. {CHOICES}"
        case (_,), bool() | int() | float() | str():
            shown = str(domain).lower() if isinstance(domain, bool) else domain
            return f"Leave a constant to the script, or write `{{type: categorical, values: [{shown}]}}`."
        case (_,), [bool(), _]:
            return CHOICES
        case (_,), [int() | float() as low, int() | float() as high] if low < high:
            return f"Write a range as `{{type: float, low: {low}, high: {high}}}`. {CHOICES}"
        case (_,), list() | tuple():
            return CHOICES
        case (name, "type"), Mapping() if any(isinstance(value, Mapping) for value in domain.values()):
            inner = next(str(key) for key, value in domain.items() if isinstance(value, Mapping))
            return f"Spaces do not nest: write `{name}.{inner}: {{type: …}}`, or give it a `when`."
        case (_, "values", int() as index), {"values": list() as values} if isinstance(
            values[index], list | Mapping
        ):
            return (
                "Name each choice with a text, such as `64-32`, and look up in the script what it stands for."
            )
        case _:
            return ""
