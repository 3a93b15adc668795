"""Examines a study's surrogate before anything is spent: can it be made, and what does its gate depend on?

Called by the preflight, in a separate process with the study's folder first on the path. Nothing is trained;
models are made for their shapes.
"""

import functools
import hashlib
import importlib
import inspect
import json
import sys
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from headrace_torch.hydro.coordinate_check.check import members_of
from headrace_torch.hydro.errors import HydroError
from headrace_torch.hydro.shrink.surrogate import Surrogate
from headrace_torch.hydro.study import batch_of, named, surrogate_of

_OURS = ("headrace", "headrace_torch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the study says about its surrogate, and a configuration of its space with each parameter's domain."""

    model: str
    width: int | None
    scale: int | None
    optimizer: str
    inputs: str
    widths: tuple[int, ...]
    gated: bool
    params: Mapping[str, Any]
    domains: Mapping[str, Any]
    scales: tuple[int, ...] | None = None
    """The scales of a pilot, the largest first; None if there is no pilot."""
    all_scales: bool = False
    """Whether the user chose them: then each must be possible."""


class _ProblemError(Exception):
    def __init__(self, field: str, error: BaseException | str) -> None:
        plain = isinstance(error, str | HydroError)
        super().__init__(str(error) if plain else f"{type(error).__name__}: {error}")
        self.field = field


def examine(asked: Asked) -> dict[str, Any]:
    """Returns the `key` of the gate; or a `field` of the study file, and the `error` that it has.

    With a pilot, the result also has the `scales` that the model can have, and the key is empty: what the gate
    will check is not known yet.
    """
    before = set(sys.modules)
    try:
        if asked.scales is not None:
            return {"key": "", "scales": _possible(asked, asked.scales)}
        needed = _made(asked)
    except _ProblemError as problem:
        return {"field": problem.field, "error": str(problem)}
    return {"key": _key(asked, needed, set(sys.modules) - before)}


def _possible(asked: Asked, scales: tuple[int, ...]) -> list[int]:
    """The pilot's scales that the model can have: all of them if the user chose them, else at least one."""
    found: list[int] = []
    refusal: _ProblemError | None = None
    for scale in scales:
        try:
            _made(replace(asked, scale=scale, scales=None))
        except _ProblemError as problem:
            if problem.field == "gate.widths" and asked.widths:
                raise
            if problem.field not in ("surrogate.scale", "gate.widths"):
                raise
            refusal = _ProblemError("surrogate.scale", f"finds no copy {scale} times narrower: {problem}")
            if asked.all_scales:
                raise _ProblemError("surrogate.pilot.scales", f"cannot be {scale}: {problem}") from problem
        else:
            found.append(scale)
    if not found and refusal is not None:
        raise refusal
    return found


def _made(asked: Asked) -> list[str]:
    """Makes the surrogate and the members that the gate compares; returns the arguments that come from parameters."""
    factory = _imported(asked.model, "surrogate.model")
    if asked.inputs:
        _imported(asked.inputs, "surrogate.inputs")
        try:
            batch_of(asked.inputs)
        except Exception as error:
            raise _ProblemError("surrogate.inputs", error) from error
    needed = _needed(factory)
    if missing := [name for name in needed if name not in asked.params]:
        raise _ProblemError(
            "surrogate.model", f"needs the argument {missing[0]}, which has no default and is no parameter"
        )
    whole = functools.partial(factory, **{name: asked.params[name] for name in needed})
    size = "surrogate.scale" if asked.width is None else "surrogate.width"
    try:
        surrogate = surrogate_of(
            whole, width=asked.width, scale=asked.scale, optimizer=asked.optimizer, inputs=asked.inputs
        )
        surrogate.parametrization(asked.optimizer)
    except Exception as error:
        raise _ProblemError(size, error) from error
    if asked.gated:
        _compared(surrogate, asked.widths)
    return needed


def _compared(surrogate: Surrogate, widths: tuple[int, ...]) -> None:
    try:
        members = members_of(surrogate, widths or None)
    except Exception as error:
        raise _ProblemError("gate.widths", error) from error
    if len(members) < 2:
        raise _ProblemError("gate.widths", "the check compares two sizes at least")


def _imported(target: str, field: str) -> Callable[..., Any]:
    module, _, name = target.partition(":")
    try:
        importlib.import_module(module)
    except BaseException as error:
        raise _ProblemError(field, error) from error
    try:
        found = named(target)
    except AttributeError:
        raise _ProblemError(field, f"module {module} has no {name}") from None
    if not callable(found):
        raise _ProblemError(field, f"is a {type(found).__name__}, not a function")
    return found  # type: ignore[no-any-return]  # callable() does not narrow Any


def _needed(factory: Callable[..., Any]) -> list[str]:
    plain = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(factory).parameters.values()
    return [one.name for one in parameters if one.kind in plain and one.default is one.empty]


def _key(asked: Asked, needed: list[str], modules: set[str]) -> str:
    """A digest of the imported sources that are not installed, of what was asked for, and of the versions.

    What a function imports when it is called counts too, since models were made. Data that it reads does not.
    """
    sources = {name: found for name in modules if (found := _source(name)) is not None}
    depends = {
        "sources": sources,
        "surrogate": [asked.model, asked.width, asked.scale, asked.optimizer, asked.inputs, asked.widths],
        "space": {name: asked.domains[name] for name in needed},
        "versions": [_version(), torch.__version__],
    }
    return hashlib.sha256(json.dumps(depends, sort_keys=True).encode()).hexdigest()


def _source(name: str) -> str | None:
    """The digest of a module's file, unless the module is installed."""
    file = getattr(sys.modules.get(name), "__file__", None)
    if not isinstance(file, str) or name.partition(".")[0] in _OURS:
        return None
    path = Path(file).resolve()
    installed = (sysconfig.get_paths()[place] for place in ("stdlib", "platstdlib", "purelib", "platlib"))
    if any(path.is_relative_to(Path(place).resolve()) for place in installed) or not path.is_file():
        return None
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _version() -> str:
    for name in ("headrace", "headrace-torch"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return ""
