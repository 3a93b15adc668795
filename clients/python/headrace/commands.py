"""What a command runs, as far as its words show: a Python script with arguments, or something else. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Final

_PYTHON: Final = re.compile(r"python(\d+(\.\d+)?)?")
_FLAGS: Final = re.compile(r"-[bBdEiIOPqsSuvx]+")
_WITH_VALUE: Final = ("-W", "-X", "--check-hash-based-pycs")


@dataclass(frozen=True, slots=True)
class Program:
    """A Python script and its arguments."""

    script: Path
    arguments: tuple[str, ...]
    # The module name for `python -m`; empty: the script is given by its path.
    module: str = ""


def python_program(args: Sequence[str], folder: Path) -> Program | str:
    """The Python program that a command starts in this folder; or, in words, why it cannot be determined.

    It recognizes `python SCRIPT ...` and `python -m MODULE ...`, with interpreter options, and a script called
    by its own name. A program that starts another, such as a shell, `torchrun` or `uv run`, does not count.
    """
    program, *rest = args
    if program.endswith(".py"):
        return _script(program, rest, folder)
    if _PYTHON.fullmatch(PurePath(program).name) is None:
        return (
            f"{PurePath(program).name} is no Python interpreter, and what it starts is a process of its own"
        )
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if option.startswith("-m"):
            module = option.removeprefix("-m") or (rest.pop(0) if rest else "")
            return _module(module, rest, folder)
        if option in _WITH_VALUE:
            rest = rest[1:]
        elif _FLAGS.fullmatch(option) is None and not option.startswith(_WITH_VALUE):
            what = "code in an argument" if option.startswith("-c") else f"Python with {option}"
            return f"it runs {what}, not a script"
    return _script(rest[0], rest[1:], folder) if rest else "it names no script"


def _script(name: str, arguments: Sequence[str], folder: Path) -> Program | str:
    script = folder / name
    if script.is_dir():
        script /= "__main__.py"
    return Program(script, tuple(arguments)) if script.is_file() else f"there is no {name} in {folder}"


def _module(name: str, arguments: Sequence[str], folder: Path) -> Program | str:
    path = folder.joinpath(*name.split("."))
    found = next((file for file in (path.with_suffix(".py"), path / "__main__.py") if file.is_file()), None)
    if not name or found is None:
        return f"-m names {name or 'nothing'}, which is no module in {folder}"
    return Program(found, tuple(arguments), name)
