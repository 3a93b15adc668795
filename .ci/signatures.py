"""Classes and functions of the SDK as tables: calls, arguments and results."""

import dataclasses
import inspect
import re
import typing
from collections.abc import Callable, Generator
from typing import Any

from tables import table

from headrace import optimize, trial
from headrace.client import events, identities, machines, model
from headrace.client.plots import Plots
from headrace.client.result import Result
from headrace.client.sync import AskedTrial, Client, Study, Trial

VALUES = (
    model.StudyInfo,
    model.TrialInfo,
    model.RungResult,
    model.Report,
    model.Checkpoint,
    model.Preview,
    model.Retried,
    machines.Worker,
    machines.Slot,
    identities.WhoIs,
    identities.NewToken,
    identities.TokenInfo,
    events.Decision,
    events.TrialStory,
    events.Update,
    events.Event,
)
"""The types that the SDK's methods return, in the order of the document."""


def sdk() -> str:
    """The only function, and the blocking client's classes; the async ones have the same methods."""
    rows = [(f"`headrace.{_call(optimize)}`", _summary(optimize))]
    parts = ["### Functions", table(("call", "meaning"), rows)]
    for kind in (Client, Study, Plots, Trial, AskedTrial, Result):
        parts += [f"### {kind.__name__}", _summary(kind), members(kind)]
    return "\n\n".join(parts)


def values() -> str:
    """The values that the client returns, field by field."""
    parts = []
    for kind in VALUES:
        names = [field.name for field in dataclasses.fields(kind)]
        names += [name for name, of in vars(kind).items() if isinstance(of, property)]
        fields = ", ".join(f"`{name}`" for name in names)
        parts += [f"**{kind.__name__}.** {_summary(kind)} {fields}."]
    return "\n\n".join(parts)


def trial_api() -> str:
    """The API of a training script."""
    rows = [
        (f"`trial.{_call(function)}`", _summary(function))
        for function in (trial.main, trial.current, trial.read_checkpoint)
    ]
    parts = ["### Functions", table(("call", "meaning"), rows)]
    for kind in (trial.Trial, trial.Bundle, trial.ResumableBatches):
        parts += [f"### trial.{kind.__name__}", _summary(kind), members(kind)]
    return "\n\n".join(parts)


def members(kind: type) -> str:
    """The public methods and properties of a class, in the order of their definition."""
    names = [name for base in reversed(kind.__mro__) for name in vars(base) if not name.startswith("_")]
    rows = []
    for name in dict.fromkeys(names):
        member = inspect.getattr_static(kind, name)
        if isinstance(member, property):
            rows.append((f"`{name}`", _summary(member)))
        elif inspect.isfunction(found := getattr(kind, name)):
            rows.append((f"`{_call(found, name=name, bound=True)}`", _summary(found)))
    return table(("member", "meaning"), rows)


def _call(function: Callable[..., object], *, name: str | None = None, bound: bool = False) -> str:
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())[bound:]
    plain = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in parameters]
    shown = str(inspect.Signature(plain))
    returned = _type_name(signature.return_annotation)
    return f"{name or function.__name__}{shown}" + (f" → {returned}" if returned != "None" else "")


def _type_name(annotation: Any) -> str:
    """A type without its modules; for a flow, the type of its result."""
    if typing.get_origin(annotation) is Generator:
        annotation = typing.get_args(annotation)[-1]
    name = (
        annotation.__name__
        if isinstance(annotation, type) and not typing.get_args(annotation)
        else str(annotation)
    )
    return re.sub(r"\b(?:\w+\.)+(?=\w)", "", name.strip("'")).replace("NoneType", "None")


def _summary(item: object) -> str:
    """The first paragraph of a docstring."""
    return " ".join((inspect.getdoc(item) or "").partition("\n\n")[0].split())
