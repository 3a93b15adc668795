"""What a script's source shows before it runs: which function trains, and which parameters it reads.

A script that asks for its trial itself (`trial.main`, `trial.current`) runs unchanged. In a script that only
defines a function for a study, that function is recognized by how it uses its trial.
"""

import ast
from collections.abc import Collection, Iterator
from pathlib import Path

_TRAINS = "train"
_ASKING = {
    "headrace": (".trial.main", ".trial.current"),
    "headrace.trial": (".main", ".current"),
    "headrace.trial.main": ("",),
    "headrace.trial.current": ("",),
}
"""The rest of a call that asks for the trial, after the imported name."""
_ASKS = ("main", "current")


def training_function(script: Path) -> str | None:
    """The function that takes a trial, in a script that never asks for one; None if that is ambiguous."""
    tree = parsed(script)
    if tree is None or _asks(tree):
        return None
    found = [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and _takes_a_trial(node)]
    if len(found) > 1 and _TRAINS in found:
        return _TRAINS
    return found[0] if len(found) == 1 else None


def parameters_read(script: Path) -> tuple[str, ...]:
    """The parameters that the script reads as `….params["name"]`, in order of appearance."""
    tree = parsed(script)
    reads = [(node.lineno, node.col_offset, name) for node, name in _reads(tree)] if tree is not None else []
    return tuple(dict.fromkeys(name for _, _, name in sorted(reads)))


def unknown_parameters(script: Path, given: Collection[str], defaults: Collection[str]) -> tuple[str, ...]:
    """The given parameters that a script with these defaults cannot know: its text also has no such string, as in
    `t.params.get("width", 32)`. A script without defaults does not declare its parameters, so none is unknown.
    """
    tree = parsed(script)
    if not defaults or tree is None:
        return ()
    strings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    return tuple(name for name in given if name not in defaults and name not in strings)


def stop_of(script: Path) -> tuple[str, str] | None:
    """How the script leaves its loop after a report, as `break` or `return`, and the condition as code; None if it
    does not do so in exactly one `if` of the loop's own body.
    """
    tree = parsed(script)
    loops = [node for node in ast.walk(tree) if isinstance(node, ast.For)] if tree is not None else []
    found = [stop for loop in loops for stop in _stops(loop)]
    return found[0] if len(found) == 1 else None


def parsed(script: Path) -> ast.Module | None:
    """The script's syntax tree; None if it has none."""
    try:
        return ast.parse(script.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, SyntaxError, ValueError):
        return None  # running the script shows what is wrong


def _asks(tree: ast.Module) -> bool:
    """Whether the script calls `main` or `current` of `headrace.trial`, under any imported name."""
    called = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    return not called.isdisjoint(names_to_ask_by(tree))


def names_to_ask_by(tree: ast.Module) -> Iterator[str]:
    """How the script may write `trial.main` and `trial.current`, by its imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            package = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names:
                name = alias.asname or alias.name
                if name == "*":  # it may bring any name; these are the usual ones
                    yield from (f"{trial}.{asks}" for trial in ("trial", "headrace.trial") for asks in _ASKS)
                    yield from _ASKS if package == "headrace.trial." else ()
                yield from (name + rest for rest in _ASKING.get(package + alias.name, ()))


def _stops(loop: ast.For) -> Iterator[tuple[str, str]]:
    has_reported = False
    for node in loop.body:
        if has_reported and isinstance(node, ast.If) and not node.orelse:
            match node.body[-1]:
                case ast.Break() | ast.Return(value=None):
                    yield ast.unparse(node.body[-1]), ast.unparse(node.test)
        has_reported = has_reported or any(
            isinstance(part, ast.Attribute) and part.attr == "report" for part in ast.walk(node)
        )


def _takes_a_trial(function: ast.FunctionDef) -> bool:
    """Whether the function's only required argument is a trial, judging by the attributes used."""
    given = [*function.args.posonlyargs, *function.args.args]
    if len(given) - len(function.args.defaults) != 1:
        return False
    name = given[0].arg
    return any(
        isinstance(node, ast.Attribute)
        and node.attr in ("report", "steps", "track", "params")
        and isinstance(node.value, ast.Name)
        and node.value.id == name
        for node in ast.walk(function)
    )


def _reads(tree: ast.Module) -> Iterator[tuple[ast.Subscript, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(value=ast.Attribute(attr="params"), slice=ast.Constant(value=str(name))):
                yield node, name
