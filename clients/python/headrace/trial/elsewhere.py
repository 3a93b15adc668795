"""Hints for a script that is ported from another tuner; `headrace.elsewhere` has the names."""

from typing import Final

from headrace.elsewhere import MODULE, SAVE, TRIAL, no_attribute, of_trial

REPORT: Final = (
    "t.report(...) takes metrics by name, as in t.report(loss=0.2) or t.report({'val/loss': 0.2}, step=3); "
    "steps count from 1"
)


def no_name_of_module(name: str, trial: type) -> str:
    """The error's text for a name that the module `headrace.trial` does not have."""
    own = hasattr(trial, name) or name in ("params", "state")
    return no_attribute(
        "module 'headrace.trial'", name, {name: of_trial(name)} if own else {**MODULE, **TRIAL}
    )


def no_parameter_attribute(name: str) -> str:
    """The error's text for a parameter that is read as an attribute."""
    return f"a parameter is read as t.params[{name!r}]"


def metric_hint(name: str) -> str:
    """The equivalent of a metric in another tuner's report; empty for any other metric."""
    return f"; {SAVE}" if name == "checkpoint" else ""
