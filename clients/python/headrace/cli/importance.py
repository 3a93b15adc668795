"""The importance of parameters as a table, or why there is none."""

from collections.abc import Sequence

from headrace.cli.output import Output, clean
from headrace.client import wording
from headrace.client.importance import about
from headrace.client.model import Importance

BAR_WIDTH = 24
ROWS = 12
"""The most parameters that are shown: the most important ones."""


def show_importance(found: Sequence[Importance], output: Output) -> None:
    """Print the importance of parameters for each objective."""
    for one in found:
        output.line()
        if one.reason:
            of_metric = f" for {one.metric}" if len(found) > 1 else ""
            _say(f"Importance of parameters{of_metric}: not known, {one.reason}.", output)
            continue
        _say(f"Importance of parameters for being {about(one)}:", output)
        some = any(part.trials < one.trials for part in one.parameters)
        columns = [
            "PARAMETER",
            "IMPORTANCE",
            *(["TRIALS"] if some else []),
            *([""] if output.is_terminal else []),
        ]
        output.table(
            columns,
            [
                [
                    part.parameter,
                    wording.percent(part.share, 1),
                    *([str(part.trials)] if some else []),
                    *(["█" * round(part.share * BAR_WIDTH)] if output.is_terminal else []),
                ]
                for part in one.parameters[:ROWS]
            ],
            right=["IMPORTANCE", "TRIALS"],
        )
        if len(one.parameters) > ROWS:
            rest = wording.percent(sum(part.share for part in one.parameters[ROWS:]), 1)
            output.line(f"{len(one.parameters) - ROWS} more with {rest} together: --json lists them")


def _say(text: str, output: Output) -> None:
    """Print a sentence: wrapped on a terminal, one line for a program."""
    if output.is_terminal:
        output.show(clean(text))
    else:
        output.line(text)
