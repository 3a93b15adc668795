"""Names that programs for other tuners use, and their equivalents here, for the errors of users who port a
program.

The names are those of Optuna and Ray Tune. `headrace.spec.elsewhere` has the keys of a study file.
"""

from typing import Final

_LOG_FLOAT: Final = "Write `type: float` with `log: true`."
_FLOAT_STEP: Final = "Write `type: float` with `step`."
_INT: Final = "Write `type: int`."
_CHOICE: Final = "Write `type: categorical` with `values: [a, b, …]`."

TYPES: Final = {
    "loguniform": _LOG_FLOAT,
    "log_uniform": _LOG_FLOAT,
    "logfloat": _LOG_FLOAT,
    "uniform": "Write `type: float`.",
    "double": "Write `type: float`.",
    "quniform": _FLOAT_STEP,
    "discrete_uniform": _FLOAT_STEP,
    "integer": _INT,
    "randint": _INT,
    "lograndint": "Write `type: int` with `log: true`.",
    "qrandint": "Write `type: int` with `step`.",
    "choice": _CHOICE,
    "choices": _CHOICE,
    "category": _CHOICE,
    "bool": "Write `type: categorical` with `values: [true, false]`.",
}
"""Types of a parameter."""

_NEW: Final = "use Client().create_study(name, spec), where spec has the keys of a study file"
_SAMPLER: Final = "use the study's `sampler`, as in `sampler: tpe`"
_POLICY: Final = "use the study's `policy`, as in `policy: asha`"
_DRAWN: Final = (
    "choice",
    "uniform",
    "loguniform",
    "quniform",
    "randint",
    "lograndint",
    "qrandint",
)
"""Those of `TYPES` that are functions in Ray Tune."""


def of_trial(name: str) -> str:
    """The text for a trial's attribute that is looked up in a module."""
    return f"it is the trial's, t.{name}, and `t` is what the training function gets, or trial.current()"


MODULE: Final = {
    "create_study": _NEW,
    "load_study": "use Client().study(name)",
    "delete_study": "use Client().study(name).delete()",
    "get_all_study_summaries": "use Client().studies()",
    "get_all_study_names": "use Client().studies()",
    "samplers": _SAMPLER,
    "pruners": _POLICY,
    "distributions": "use the study's `space`",
    "tune": "use `from headrace import trial` in a training script, and a study file for the rest: "
    "docs/how-to/coming-from-ray-tune.md",
    "run": "use `headrace run STUDY.yaml`, Client().run(function, space, trials=...), or Client().create_study(name, "
    "spec).wait()",
    "Tuner": _NEW,
    "TuneConfig": "its settings are the study's `objective`, `trials`, `parallel`, `sampler` and `policy`",
    "RunConfig": "its settings are the study's `name`, `steps` and `retries`",
    "FailureConfig": "use the study's `retries`",
    "with_resources": "use the study's `resources`, as in `resources: {gpus: 1}`",
    "with_parameters": "load the data in the script: the module is imported once for each process",
    "schedulers": _POLICY,
    "search": _SAMPLER,
    "grid_search": "use `sampler: grid`, for all parameters together",
    "sample_from": "a parameter that depends on another has a `when` in the study's `space`",
    **{
        name: f"name the parameter in the study's `space`. {TYPES[name]} Its value is t.params['NAME']"
        for name in _DRAWN
    },
}
"""Names of a whole library."""

_PARAMS: Final = "the study file's space says what to try, and t.params['NAME'] is the value"
_PRUNE: Final = (
    "t.report(...) asks the study's policy; the loop over t.steps() ends where the trial is to leave"
)
_METRIC: Final = "report numbers as further metrics, which show, export and the report list"
SAVE: Final = "t.track(model=..., optimizer=...) names what a pause saves and puts back"

_NAME: Final = "use t.id, t.number, or t.name"
_FOLDER: Final = (
    "all trials share the study's working_dir, so put t.id into a file's name; a checkpoint is t.track's"
)

TRIAL: Final = {
    "suggest_float": _PARAMS,
    "suggest_int": _PARAMS,
    "suggest_categorical": _PARAMS,
    "suggest_uniform": _PARAMS,
    "suggest_loguniform": _PARAMS,
    "suggest_discrete_uniform": _PARAMS,
    "distributions": _PARAMS,
    "should_prune": _PRUNE,
    "should_stop": _PRUNE,
    "TrialPruned": _PRUNE,
    "set_user_attr": _METRIC,
    "set_system_attr": _METRIC,
    "user_attrs": _METRIC,
    "config": "the configuration is t.params",
    "get_checkpoint": SAVE,
    "save_checkpoint": SAVE,
    "load_checkpoint": SAVE,
    "checkpoint": SAVE,
    "Checkpoint": SAVE,
    "get_trial_id": _NAME,
    "get_trial_name": _NAME,
    "get_trial_dir": _FOLDER,
    "trial_dir": _FOLDER,
    "trial_name": _NAME,
    "trial_id": _NAME,
    "get_context": "t.number, t.rank and t.world_size say which process this is",
}
"""Names of a trial."""


STUDY: Final = {
    "best_params": "use best().params",
    "best_value": "use best().score",
    "best_trial": "use best()",
    "best_trials": "use front()",
    "get_trials": "use trials()",
    "trials_dataframe": "use dataframe()",
    "enqueue_trial": "use add_trials([{...}])",
    "get_best_result": "use best()",
    "get_dataframe": "use dataframe()",
    "optimize": "use headrace.optimize(function, space) in this process, client.run(function, space) on workers, or a "
    "loop over ask_all()",
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
    "set_user_attr": _METRIC,
    "set_system_attr": _METRIC,
    "user_attrs": _METRIC,
}
"""Names of an ask/tell trial."""


def no_attribute(owner: str, name: str, table: dict[str, str]) -> str:
    """The error's text for a name that one of our classes (`Study`) does not have."""
    hint = table.get(name)
    return f"{owner} has no attribute {name!r}" + (f": {hint}" if hint else "")
