"""How a command fails: one clear line and a remedy on stderr, and an exit code that scripts can tell apart.

| code | meaning |
|---|---|
| 0 | done; for `run` and `attach`: the study completed, with a result of a trial that did not fail |
| 1 | it failed: the study failed or was stopped, the scheduler refused or does not answer |
| 2 | the command line, the study file or the preflight is at fault; nothing was started |
| 130 | Ctrl-C; for `run` and `attach`: detached, the study keeps running |
"""

from typing import TYPE_CHECKING

from headrace.errors import HeadraceError, InvalidFieldError

if TYPE_CHECKING:
    from headrace.cli.output import Output

FAILED = 1
USAGE = 2
INTERRUPTED = 130
MOST_LINES = 50
"""The most lines that are shown of one error."""


class CommandError(HeadraceError):
    """A command cannot continue, for a reason of its own; `code` is the exit code."""

    def __init__(self, message: str, *, remedy: str = "", code: int = FAILED) -> None:
        super().__init__(message, remedy=remedy)
        self.code = code


def exit_code(error: HeadraceError) -> int:
    """The exit code of a failure."""
    match error:
        case CommandError():
            return error.code
        case InvalidFieldError():
            return USAGE
        case _:
            return FAILED


def tell(error: HeadraceError, output: "Output | None" = None) -> None:
    """Prints the error and its remedy; for invalid fields, each on its own line."""
    from headrace.cli.output import Output, clean  # imports rich, which service commands do not need

    errors = (output or Output()).errors
    lines = (
        [str(violation) for violation in error.violations]
        if isinstance(error, InvalidFieldError)
        else [error.message]
    )
    if len(lines) > MOST_LINES:
        lines = [*lines[:MOST_LINES], f"and {len(lines) - MOST_LINES} more like these"]
    for line in lines:
        errors.print("[bold red]error:[/] ", end="")
        errors.print(clean(line), markup=False)
    if error.remedy and not isinstance(error, InvalidFieldError):
        errors.print(clean(error.remedy), markup=False)
