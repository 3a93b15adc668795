"""What other tuners' programs call, and what it is here: for the error of whoever moves one over.

The names are those of Optuna and Ray Tune; `headrace.trial.elsewhere` has those of its trials.
"""

from typing import Final

_NEW: Final = "Client().create_study(name, spec), where spec has the keys of a study file"

MODULE: Final = {
    "create_study": _NEW,
    "load_study": "Client().study(name)",
    "delete_study": "Client().study(name).delete()",
    "get_all_study_summaries": "Client().studies()",
    "get_all_study_names": "Client().studies()",
    "samplers": "the study's `sampler`, as in `sampler: tpe`",
    "pruners": "the study's `policy`, as in `policy: asha`",
    "distributions": "the study's `space`",
    "tune": "`from headrace import trial` in a training script, and a study file for the rest",
}
"""Names of the whole library."""

STUDY: Final = {
    "best_params": "best().params",
    "best_value": "best().best_value",
    "best_trial": "best()",
    "best_trials": "front()",
    "get_trials": "trials()",
    "trials_dataframe": "dataframe()",
    "enqueue_trial": "add_trials([{...}])",
    "optimize": "a loop over ask_all(), or a worker for a study with a `trial`",
    "tell": "report(step, NAME=value) of the trial that ask() returns",
    "direction": "status().spec.objective",
    "directions": "status().spec.objectives",
}
"""Names of a study."""

_SPACE: Final = "the study's `space` says what to try, and params['NAME'] is the value"
_DECISION: Final = "report(...) returns what to do"

ASKED: Final = {
    "suggest_float": _SPACE,
    "suggest_int": _SPACE,
    "suggest_categorical": _SPACE,
    "tell": "report(step, NAME=value); complete() ends the trial before its full budget",
    "should_prune": _DECISION,
    "should_stop": _DECISION,
}
"""Names of a trial that is asked and told."""


def no_attribute(owner: str, name: str, table: dict[str, str]) -> str:
    """The error's text for a name that something of ours (`Study`) does not have."""
    hint = table.get(name)
    return f"{owner} has no attribute {name!r}" + (f": use {hint}" if hint else "")
