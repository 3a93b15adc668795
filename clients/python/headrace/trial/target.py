"""Finds the function that a `module:function` names, or says clearly why it cannot."""

import difflib
import importlib
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any


class TargetError(ImportError):
    """The callable of a study does not exist. The message says where it was looked for and what is there."""


def import_target(target: str, working_dir: str = "") -> Callable[..., Any]:
    """The function that `module:function` names, with `working_dir` first on the path.

    Raises `TargetError`; an exception inside the module itself passes through with its own traceback.
    """
    module_name, colon, function_name = target.partition(":")
    if not (colon and module_name and function_name):
        raise TargetError(f"callable {target!r} is not of the form module:function, such as train:train")
    if working_dir and working_dir not in sys.path[:1]:
        sys.path.insert(0, working_dir)
    module = _import_module(module_name, target, working_dir)
    function: Any = module
    for part in function_name.split("."):
        if not hasattr(function, part):
            raise TargetError(_no_such_function(target, module, part, function))
        function = getattr(function, part)
    if not callable(function):
        raise TargetError(
            f"callable {target!r} is a {type(function).__name__} in {module.__file__}, not a function"
        )
    return function  # type: ignore[no-any-return]  # callable() does not narrow Any


def _import_module(name: str, target: str, working_dir: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or (name != error.name and not name.startswith(f"{error.name}.")):
            raise  # a module that the module itself imports
        folder = Path(working_dir or ".").resolve()
        there = sorted(path.stem for path in folder.glob("*.py")) if folder.is_dir() else []
        listing = f"there are {', '.join(there)}" if there else "there is no Python file"
        raise TargetError(f"callable {target!r}: no module {error.name!r} in {folder}; {listing}") from None


def _no_such_function(target: str, module: ModuleType, part: str, holder: Any) -> str:
    own = inspect.getmembers(
        holder, lambda member: callable(member) and getattr(member, "__module__", "") == module.__name__
    )
    names = [name for name, _ in own if not name.startswith("_")]
    close = difflib.get_close_matches(part, names, n=1)
    hint = (
        f"did you mean {close[0]!r}?" if close else f"it has {', '.join(names) or 'no functions of its own'}"
    )
    return f"callable {target!r}: {module.__name__} ({module.__file__}) has no {part!r}; {hint}"
