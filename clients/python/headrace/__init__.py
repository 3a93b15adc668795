"""Headrace tunes hyperparameters on GPU time that is already paid for.

    from headrace import optimize        # a function, tuned in this process
    from headrace import Client          # studies: create, watch, read
    from headrace import load         # the checkpoints that a trial saved
    from headrace import trial           # inside a training script

Names are imported on first use: a training script that only needs `headrace.trial` does not load the gRPC
client, pydantic or YAML.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from headrace.elsewhere import MODULE, TRIAL, no_attribute

if TYPE_CHECKING:
    from headrace import errors
    from headrace.client import AsyncClient, Client
    from headrace.client.kept import load
    from headrace.client.missing import MissingExtraError
    from headrace.client.result import Result
    from headrace.errors import HeadraceError, InvalidFieldError
    from headrace.in_process import optimize
    from headrace.spec import StudySpec, load_study_file

__all__ = [
    "AsyncClient",
    "Client",
    "HeadraceError",
    "InvalidFieldError",
    "MissingExtraError",
    "Result",
    "StudySpec",
    "errors",
    "load",
    "load_study_file",
    "optimize",
]

_HOMES = {
    "AsyncClient": "headrace.client",
    "Client": "headrace.client",
    "HeadraceError": "headrace.errors",
    "InvalidFieldError": "headrace.errors",
    "MissingExtraError": "headrace.client.missing",
    "Result": "headrace.client.result",
    "StudySpec": "headrace.spec",
    "load": "headrace.client.kept",
    "load_study_file": "headrace.spec",
    "optimize": "headrace.in_process",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    elif name in ("errors", "trial"):
        value = import_module(f"headrace.{name}")
    else:
        raise AttributeError(no_attribute("module 'headrace'", name, {**TRIAL, **MODULE}), name=name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
