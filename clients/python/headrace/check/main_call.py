"""The call of `trial.main` that a script ends with: the function, its defaults and its steps.

A process that is reused imports the script as a module, as a study's `callable` does, so the call itself does not
run. Its arguments are evaluated among the module's variables.
"""

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.check.source import names_to_ask_by, parsed
from headrace.trial.script import Defaults


@dataclass(frozen=True, slots=True)
class MainCall:
    """The call, as it is written."""

    function: str
    arguments: Mapping[str, ast.expr]

    def defaults(self, variables: Mapping[str, Any]) -> Defaults:
        """The values of its arguments. One that needs more than the module's variables counts as left out."""
        return Defaults(
            params=self._value("defaults", variables, {}),
            steps=self._value("steps", variables, 1),
            seed=self._value("seed", variables, 0),
        )

    def _value(self, name: str, variables: Mapping[str, Any], otherwise: Any) -> Any:
        if name not in self.arguments:
            return otherwise
        code = compile(ast.Expression(self.arguments[name]), f"<{name} of trial.main>", "eval")
        try:
            return eval(code, dict(variables))  # noqa: S307 - the script's own text
        except (Exception, SystemExit):  # noqa: BLE001 - such as of sys.argv, which a worker does not pass
            return otherwise


def main_call(script: Path) -> MainCall | None:
    """The script's call of `trial.main` with a function of its own; None if there is none."""
    tree = parsed(script)
    asking = set(names_to_ask_by(tree)) if tree is not None else set()
    for node in ast.walk(tree) if tree is not None else ():
        match node:
            case ast.Call(func=called, args=[ast.Name(id=function), *_]) if ast.unparse(called) in asking:
                return MainCall(function, {one.arg: one.value for one in node.keywords if one.arg})
    return None
