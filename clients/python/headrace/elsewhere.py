"""What other tuners' programs call, and what it is here: for the error of whoever moves one over.

The names are those of Optuna and Ray Tune; `headrace.trial.elsewhere` has those of its trials.
"""

from typing import Final

_NEW: Final = "use Client().create_study(name, spec), where spec has the keys of a study file"

MODULE: Final = {
    "create_study": _NEW,
    "load_study": "use Client().study(name)",
    "delete_study": "use Client().study(name).delete()",
    "get_all_study_summaries": "use Client().studies()",
    "get_all_study_names": "use Client().studies()",
    "samplers": "use the study's `sampler`, as in `sampler: tpe`",
    "pruners": "use the study's `policy`, as in `policy: asha`",
    "distributions": "use the study's `space`",
    "Tuner": _NEW,
    "tune": "use `from headrace import trial` in a training script, and a study file for the rest: "
    "docs/how-to/coming-from-ray-tune.md",
}
"""Names of the whole library."""

STUDY: Final = {
    "best_params": "use best().params",
    "best_value": "use best().best_value",
    "best_trial": "use best()",
    "best_trials": "use front()",
    "get_trials": "use trials()",
    "trials_dataframe": "use dataframe()",
    "enqueue_trial": "use add_trials([{...}])",
    "get_best_result": "use best()",
    "get_dataframe": "use dataframe()",
    "optimize": "use a loop over ask_all(), or a worker for a study with a `trial`",
    "tell": "use report(step, NAME=value) of the trial that ask() returns",
    "direction": "use status().spec.objective",
    "directions": "use status().spec.objectives",
}
"""Names of a study."""

_SPACE: Final = "the study's `space` says what to try, and params['NAME'] is the value"
_DECISION: Final = "report(...) returns what to do"

ASKED: Final = {
    "suggest_float": _SPACE,
    "suggest_int": _SPACE,
    "suggest_categorical": _SPACE,
    "tell": "use report(step, NAME=value); complete() ends the trial before its full budget",
    "should_prune": _DECISION,
    "should_stop": _DECISION,
}
"""Names of a trial that is asked and told."""


def no_attribute(owner: str, name: str, table: dict[str, str]) -> str:
    """The error's text for a name that something of ours (`Study`) does not have."""
    hint = table.get(name)
    return f"{owner} has no attribute {name!r}" + (f": {hint}" if hint else "")
