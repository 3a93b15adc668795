"""The record of a run: what was measured on which card, what was not, and why. Values in, values out."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any, Literal

from kit_lines import Line

State = Literal["running", "complete", "out of time", "failed", "cut off"]
"""From the best to the worst: a run is as its worst part. "cut off" is by a signal, and "running" in a record on
disk by a kill.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A GPU, and what drives it. The settings are read, and never changed."""

    name: str
    memory_bytes: int
    driver: str
    settings: dict[str, str]
    """Compute mode and MIG mode, as NVML shows them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """The versions that were measured."""

    commit: str
    headrace: str
    python: str
    torch: str
    cuda: str
    """The CUDA version that PyTorch was built with; empty for a CPU build."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A part of a run."""

    name: str
    asks: str
    state: State
    limit_s: float
    took_s: float = 0.0
    why: str = ""
    lines: tuple[Line, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A run so far."""

    card: Card | None
    """None: there is no usable GPU, so only the code was tested, and no figure means anything."""
    software: Software
    started: str
    minutes: float
    state: State = "running"
    notes: tuple[str, ...] = ()
    parts: tuple[Result, ...] = ()


def whole(parts: Sequence[Result]) -> State:
    """The state of a run whose parts have all had their turn."""
    worst: tuple[State, ...] = ("failed", "out of time")
    return next((state for state in worst if any(part.state == state for part in parts)), "complete")


def file_name(card: Card | None) -> str:
    """The record's file: named after the card; without one, so that it is never taken for a card's."""
    if card is None:
        return "no-card.json"
    return re.sub(r"[^a-z0-9]+", "-", card.name.lower()).strip("-") + ".json"


def as_json(record: Record) -> dict[str, Any]:
    """The record as JSON. A line shows only what it has."""
    told = asdict(record)
    for part in told["parts"]:
        part["lines"] = [
            {key: value for key, value in line.items() if value not in ("", None)} for line in part["lines"]
        ]
    if record.card is None:
        told = {"label": "CPU part only: no GPU was found, and these figures are no measurements", **told}
    return told


def table(record: Record) -> Iterator[str]:
    """What a run found, for people: each part, then its figures and everything that failed or was skipped."""
    where = record.card.name if record.card else "no GPU: the CPU part, which only shows that the code runs"
    software = record.software
    cuda = f", CUDA {software.cuda}" if software.cuda else ""
    yield f"{where}; torch {software.torch}{cuda}; Headrace {software.headrace} at {software.commit}; {record.state}"
    for part in record.parts:
        counts = Counter(line.outcome for line in part.lines)
        told = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
        yield f"{part.name:<8} {part.state:<11} {part.took_s:5.0f} of {part.limit_s:3.0f} s  {told or 'nothing'}"
        if part.why:
            yield from (f"         ! {line}" for line in part.why.splitlines())
        yield from (f"         {line}" for line in _shown(part.lines))
    yield from record.notes


def _shown(lines: Sequence[Line]) -> Iterator[str]:
    """Tests that passed are counted only; figures under the same conditions are one line."""
    told = [line for line in lines if line.outcome != "passed"]
    for (at, outcome), same in groupby(told, key=lambda line: (line.at, line.outcome)):
        if outcome == "measured":
            yield ": ".join(filter(None, [at, ", ".join(f"{line.name} {line.figure}" for line in same)]))
        else:
            yield from map(str, same)
