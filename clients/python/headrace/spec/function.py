"""How a local function is named for trials, and why some functions cannot be.

Each trial is a process of its own. It imports the function from its module, which must therefore be in a file
with a module's name. In the trial, `__main__` is a different program.
"""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from headrace.errors import InvalidFieldError, Violation, show_value

MAIN: Final = "__main__"
CALLABLE: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
"""`module:function`."""
_NAME: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def is_of_notebook(function: Callable[..., Any]) -> bool:
    """Whether a function was written in a notebook or at a prompt, so that it is in no file that could be
    imported.
    """
    return getattr(function, "__module__", None) == MAIN and _script() is None


def located(function: Callable[..., Any]) -> tuple[str, Path]:
    """`module:function`, and the folder from which the module is imported. A function in the running script is
    named by its file. Raises `InvalidFieldError` for a function that another process could not import.
    """
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    found = sys.modules.get(str(module))
    if not (isinstance(name, str) and _NAME.fullmatch(name)) or _named(found, name) is not function:
        raise _not_located(
            function, "has no name in a module, by which a trial could import it", how_to_name(function)
        )
    if module == MAIN:
        script = _script()
        if script is None:
            raise _not_located(function, "is in no file that a trial could import", how_to_name_main(name))
        return f"{script.stem}:{name}", script.parent
    file = getattr(found, "__file__", None)
    if file is None:
        raise _not_located(
            function, f"is in {module}, which has no file", "Write a function around it in a file."
        )
    if getattr(getattr(found, "__spec__", None), "_initializing", False):
        raise _not_located(
            function,
            f"is run by {module} itself, whenever a trial imports it",
            'Put the call below `if __name__ == "__main__":`.',
        )
    depth = str(module).count(".") + (Path(file).stem == "__init__")
    return f"{module}:{name}", Path(file).absolute().parents[depth]


def _named(module: object, name: str) -> object:
    for part in name.split("."):
        module = getattr(module, part, None)
    return module


def _not_located(function: object, message: str, remedy: str) -> InvalidFieldError:
    return InvalidFieldError(
        [Violation(field="function", value=show_value(function), message=message, remedy=remedy)]
    )


def how_to_name(function: Callable[..., Any]) -> str:
    """The remedy for a function that was passed as an object."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not (isinstance(module, str) and isinstance(name, str) and _NAME.fullmatch(name)):
        return (
            "It has no name in a module: write a function with `def` at the top level of a file, save that as "
            "train.py, and name it as `module:function`, such as `train:train`."
        )
    return how_to_name_main(name) if module == MAIN else f"Write it as `{module}:{name}`."


def how_to_name_main(name: str) -> str:
    """The remedy for a function in the running script or notebook."""
    script = _script() if hasattr(sys.modules.get(MAIN), name.partition(".")[0]) else None
    if script is None:
        return f"Save the function in a file of its own, such as train.py, and write `train:{name}`."
    return (
        f"Write it as `{script.stem}:{name}`, with `working_dir: {script.parent}`, and the rest of the script below "
        '`if __name__ == "__main__":`, so that a trial runs only the function.'
    )


def _script() -> Path | None:
    """The running script, if it can be imported as a module from its folder; None for a notebook, and for a file
    whose name is not a module's.
    """
    file = getattr(sys.modules.get(MAIN), "__file__", None)
    path = Path(file).absolute() if isinstance(file, str) else None
    return path if path and path.suffix == ".py" and path.stem.isidentifier() and path.stem != MAIN else None
