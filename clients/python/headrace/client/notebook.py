"""A notebook's function, for trials: they run in their own processes, which cannot import a notebook.

cloudpickle writes the function by value, with everything that it uses from the notebook (other functions,
values, imported names). Next to it is a module that reads it back, so a study names it as `module:function` like
any other. Both are in `functions/` of Headrace's home, one folder per content: the same function is written only
once.
"""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from headrace.client.missing import require
from headrace.errors import InvalidFieldError, Violation, show_value
from headrace.home import home_dir, make_private

MODULE: Final = "notebook_function"
_READ_BACK: Final = '''"""Written by Headrace: a function of a notebook, and all that it uses."""

import pickle
from pathlib import Path

function = pickle.loads(Path(__file__).with_suffix(".pkl").read_bytes())
'''


def written(function: Callable[..., Any]) -> tuple[str, Path]:
    """`module:function`, and the folder from which the module is imported. Raises MissingExtraError without
    cloudpickle, and InvalidFieldError for a function that it cannot write.
    """
    require("A function of a notebook, run on workers,", "notebook", "cloudpickle")
    import cloudpickle

    try:
        data = cloudpickle.dumps(function)
    except Exception as error:
        violation = Violation(
            field="function",
            value=show_value(function),
            message=f"cannot be sent to workers: {type(error).__name__}: {error}",
            remedy="Let it open files, connections and devices itself, or save it in a file of its own and import it.",
        )
        raise InvalidFieldError([violation]) from error
    folder = home_dir() / "functions" / hashlib.sha256(data).hexdigest()[:16]
    make_private(folder)
    _write(folder / f"{MODULE}.pkl", data)
    _write(folder / f"{MODULE}.py", _READ_BACK.encode())
    return f"{MODULE}:function", folder


def _write(file: Path, data: bytes) -> None:
    """Written for this user only, and atomically: a trial may already be reading the same content."""
    new = file.with_suffix(f".{os.getpid()}")
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as opened:
        opened.write(data)
    new.replace(file)
