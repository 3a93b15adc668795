"""How commands print: one `Output` per process, which knows whether a person or a program reads it.

A terminal gets colours and tables. A pipe or a file gets the same text in aligned plain columns, without colour
and never shortened, so that `awk`, `grep` and `diff` work. `--json` prints only JSON. Results go to stdout,
everything else (progress, hints, errors) to stderr. Anything that comes from a study (names, values, log lines)
is printed as plain text: it is never interpreted as rich markup, and its control characters are shown, not
executed.
"""

import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final, TextIO

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.text import Text

from headrace.cli import states

Cell = str | Text
BELOW_INDENT = 4
_COMMANDS: Final = re.compile(r"\x1b(?!\[[0-9;:]*[ABCDGKm])|[\x00-\x07\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f]")
"""A terminal's control characters, except those for lines, colours and moving the cursor within the last lines."""


class Output:
    """Stdout and stderr."""

    def __init__(self, *, stdout: TextIO | None = None, stderr: TextIO | None = None) -> None:
        self._stdout = stdout or sys.stdout
        self.console = Console(file=self._stdout, highlight=False, soft_wrap=True)
        self.errors = Console(
            file=stderr or sys.stderr, highlight=False, soft_wrap=True, stderr=stderr is None
        )

    @property
    def is_terminal(self) -> bool:
        """True when a person reads stdout."""
        return self.console.is_terminal and not self.console.is_dumb_terminal

    def line(self, text: str | Text = "") -> None:
        """Print one line of the result."""
        self.console.print(clean(text), markup=False)

    def show(self, renderable: RenderableType) -> None:
        """Print a rich renderable, for a terminal."""
        self.console.print(renderable, soft_wrap=False)

    def note(self, text: str | Text) -> None:
        """Print one line that is not part of the result: progress, a hint."""
        self.errors.print(clean(text), markup=False, style="dim" if isinstance(text, str) else None)

    @contextmanager
    def status(self, text: str) -> Iterator[Callable[[str], None]]:
        """A line that changes while work is in progress, on a terminal's stderr; nothing elsewhere. Yields a
        function that changes it.
        """
        if not self.errors.is_terminal:
            yield lambda _: None
            return
        with self.errors.status(text) as shown:
            yield lambda more: shown.update(f"{text}: {more}")

    def state(self, word: str) -> Text:
        """A state as a table's cell: with its symbol on a terminal, as the bare word for `awk`."""
        return states.state(word) if self.is_terminal else Text(word)

    def raw(self, data: bytes) -> None:
        """Print bytes unchanged: a trial's own output with its own colours. A terminal gets colours and progress
        bars, but no sequences that do more: set a title, fill the clipboard, clear the screen.
        """
        text = data.decode("utf-8", errors="replace")
        self._stdout.write(
            _COMMANDS.sub(lambda found: repr(found[0])[1:-1], text) if self.is_terminal else text
        )
        self._stdout.flush()

    def json(self, value: Any, *, indent: int | None = 2) -> None:
        """Print a JSON document."""
        self._stdout.write(json.dumps(jsonable(value), indent=indent, ensure_ascii=False) + "\n")
        self._stdout.flush()

    def table(
        self,
        columns: Sequence[str],
        rows: Iterable[Sequence[Cell]],
        *,
        right: Iterable[str] = (),
        below: Iterable[str] = (),
    ) -> None:
        """Print a table with a header; `right` names the right-aligned columns.

        On a terminal that is too narrow, columns move to their own lines under each row, so that none is broken:
        first those in `below`, then the last ones.
        """
        body = [[clean(cell) for cell in row] for row in rows]
        widths = [
            max([cell_len(column), *(row[place].cell_len for row in body)])
            for place, column in enumerate(columns)
        ]
        kept, low = list(range(len(columns))), []
        if self._overflows(widths):
            low = [place for place in kept if columns[place] in set(below)]
            kept = [place for place in kept if place not in low]
        while len(kept) > 1 and self._overflows([widths[place] for place in kept]):
            low.insert(0, kept.pop())
        heads = [Text(column, "bold" if self.is_terminal else "") for column in columns]
        for row in [heads, *body]:
            line = Text("  ").join(
                _aligned(row[place], widths[place], right=columns[place] in set(right)) for place in kept
            )
            line.rstrip()
            self.console.print(line)
            for place in low if row is not heads else ():
                if row[place].plain.strip("- "):
                    text = Text.assemble((f"{columns[place].lower()}: ", "dim"), row[place])
                    self.show(Padding(text, (0, 0, 0, BELOW_INDENT)))

    def _overflows(self, widths: Sequence[int]) -> bool:
        return self.is_terminal and sum(widths) + 2 * (len(widths) - 1) > self.console.width


def _aligned(cell: Text, width: int, *, right: bool) -> Text:
    aligned = cell.copy()
    aligned.align("right" if right else "left", width)
    return aligned


def clean(text: Cell) -> Text:
    """The text with control characters made visible, never as markup."""
    if isinstance(text, Text):
        return text
    return Text("".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text))


def jsonable(value: Any) -> Any:
    """The value in JSON types: times in ISO 8601, and NaN and infinities, which JSON lacks, as `"NaN"`,
    `"Infinity"`, `"-Infinity"`.
    """
    match value:
        case datetime():
            return value.isoformat()
        case bool() | int() | None:
            return value
        case float():
            return value if math.isfinite(value) else _NON_FINITE[str(value)]
        case str():
            return str(value)
        case Mapping():
            return {str(key): jsonable(item) for key, item in value.items()}
        case os.PathLike():
            return os.fspath(value)
        case Iterable():
            return [jsonable(item) for item in value]
        case _:
            raise TypeError(f"{type(value).__name__} has no JSON form")


_NON_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
