"""What a part of the kit has found, one JSON object a line, each written at once: a part that is killed loses none.

A part writes to the file that HEADRACE_GPU_LINES names, and to its output for people.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

FILE = "HEADRACE_GPU_LINES"

Outcome = Literal["measured", "passed", "failed", "skipped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A figure, or the outcome of a test.

    Attributes:
        name: what it is: "steps a second", or the name of a test.
        at: under which conditions: "bfloat16, batch 256, 16 members".
        outcome: "failed" and "skipped" have a reason in `why`.
        value: the figure; a test may have one too, such as the largest difference.
    """

    name: str
    outcome: Outcome = "measured"
    at: str = ""
    value: float | None = None
    unit: str = ""
    why: str = ""

    @property
    def figure(self) -> str:
        """The value with its unit, for people; empty if there is none."""
        return "" if self.value is None else f"{self.value:.4g} {self.unit}".rstrip()

    def __str__(self) -> str:
        said = "" if self.outcome == "measured" else self.outcome
        reason = self.why.partition("\n")[0]
        return ": ".join(
            filter(None, [self.at, self.name, " ".join(filter(None, [said, self.figure])), reason])
        )


def say(line: Line) -> None:
    """Prints a line, and adds it to the part's file if there is one."""
    print(line, flush=True)
    if path := os.environ.get(FILE):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(line)) + "\n")


def read(path: Path) -> Iterator[Line]:
    """The lines of a part's file so far; the last one may be incomplete and is then left out."""
    if path.exists():
        *complete, _ = path.read_text(encoding="utf-8").split("\n")
        for text in complete:
            yield Line(**json.loads(text))
