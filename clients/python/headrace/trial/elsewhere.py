"""What other tuners' trials have, and what it is here: for the error of whoever moves a script over.

The names are those of Optuna's `Trial` and of Ray Tune's `tune`.
"""

from typing import Final

REPORT: Final = (
    "t.report(...) takes metrics by name, as in t.report(loss=0.2) or t.report({'val/loss': 0.2}, step=3); "
    "steps count from 1"
)

_SPACE: Final = "the study file's space says what to try, and t.params['NAME'] is the value"
_PRUNE: Final = (
    "t.report(...) asks the study's policy; the loop over t.steps() ends where the trial is to leave"
)
_METRIC: Final = "report numbers as further metrics, which show, export and the report list"
_SAVE: Final = "t.track(model=..., optimizer=...) names what a pause saves and puts back"

_NAME: Final = "use t.number, or t.name"
_FOLDER: Final = (
    "all trials share the study's working_dir, so put t.number into a file's name; a checkpoint is t.track's"
)

TRIAL: Final = {
    "suggest_float": _SPACE,
    "suggest_int": _SPACE,
    "suggest_categorical": _SPACE,
    "suggest_uniform": _SPACE,
    "suggest_loguniform": _SPACE,
    "suggest_discrete_uniform": _SPACE,
    "distributions": _SPACE,
    "should_prune": _PRUNE,
    "should_stop": _PRUNE,
    "set_user_attr": _METRIC,
    "set_system_attr": _METRIC,
    "user_attrs": _METRIC,
    "config": "the configuration is t.params",
    "get_checkpoint": _SAVE,
    "save_checkpoint": _SAVE,
    "load_checkpoint": _SAVE,
    "checkpoint": _SAVE,
    "get_trial_id": _NAME,
    "get_trial_name": _NAME,
    "get_trial_dir": _FOLDER,
    "trial_dir": _FOLDER,
    "trial_name": _NAME,
    "trial_id": _NAME,
    "get_context": "t.number, t.rank and t.world_size say which process this is",
}
"""Names of a trial."""


def no_name_of_module(name: str, trial: type) -> str:
    """The error's text for a name that the module `headrace.trial` does not have."""
    if name == "TrialPruned":
        return f"module 'headrace.trial' has no attribute {name!r}: {_PRUNE}"
    own = hasattr(trial, name) or name in ("params", "state")
    what = f": it is the trial's, t.{name}, and `t` is what the training function gets, or trial.current()"
    return f"module 'headrace.trial' has no attribute {name!r}" + (what if own else "")


def no_parameter_attribute(name: str) -> str:
    """The error's text for a parameter that is read as an attribute."""
    return f"a parameter is read as t.params[{name!r}]"


def no_item(name: object) -> str:
    """The error's text for a trial that is read as a dictionary."""
    return f"a Trial is no dictionary: its configuration is t.params, as in t.params[{name!r}]"


def metric_hint(name: str) -> str:
    """What a metric of another tuner's report is here; empty for any other."""
    return f"; {_SAVE}" if name == "checkpoint" else ""
