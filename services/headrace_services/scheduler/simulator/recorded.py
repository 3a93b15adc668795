"""Recorded curves: runs that were trained before, from a CSV file (plain or gzipped).

The file has a header line and one row for each report, with the rows of a curve in the order of its steps.
Columns:

| column | what |
|---|---|
| `curve` | which run the row is of: any text |
| `value` | the objective's value; empty: none was reported; `nan` and `inf` are taken as such |
| `seconds` | seconds of training since the run started; if the file has none, each report costs a second |
| `step`, or `global_step` | the run's own step; only needed with `--curve-steps column` |
| `hyperparameters` | a JSON object, on the curve's first row; optional |
| `metric`, `goal` | the metric's name, and minimize or maximize; optional, compared with the study |

Other columns are ignored. A study's step is a report of the curve, where the n-th report is step n, or the step in
the file. A curve that ends before the study's full budget is a program that ends by itself.

A file has at most a million reports and 64 MiB, counted after decompression.
"""

import csv
import gzip
import json
import math
import random
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, cast

from headrace.errors import HeadraceError, show_value
from headrace.userfile import MIB, UserFile, UserFileError, parse_json
from headrace_services.scheduler.core.records import Params
from headrace_services.scheduler.simulator.curves import Curve

REPORTS, COLUMN = "reports", "column"
"""What a study's step is: the number of the curve's report, or the file's own column."""


FILE: Final = UserFile(largest_bytes=64 * MIB, remedy="Name a CSV file of curves.")
"""The limit holds both for the compressed size and for the decompressed size."""
MOST_REPORTS: Final = 1_000_000
ALL_OR_NONE: Final = "Give every report its time, or none: then each costs a second."
LARGEST_STEP: Final = 2**53
"""Up to here a float represents every whole number."""


class CurveFileError(HeadraceError):
    """A file of curves cannot be used."""

    def __init__(self, path: Path, line: int | None, message: str, *, remedy: str = "") -> None:
        where = f"{path}" if line is None else f"{path}, line {line}"
        super().__init__(f"{where}: {message}", remedy=remedy)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCurve:
    """One run: its reports in order. Times are cumulative."""

    name: str
    steps: tuple[int, ...]
    seconds: tuple[float, ...]
    values: tuple[float | None, ...]
    params: Params

    @property
    def last_step(self) -> int | None:
        return self.steps[-1]

    def report_step(self, after: int, milestone: int) -> int:
        place = max(bisect_left(self.steps, milestone), bisect_right(self.steps, after))
        return self.steps[min(place, len(self.steps) - 1)]

    def value(self, step: int) -> float | None:
        place = bisect_right(self.steps, step)
        return self.values[place - 1] if place else None

    def train_s(self, start: int, end: int) -> float:
        return self._at(end) - self._at(start)

    def points(self, start: int, end: int) -> tuple[tuple[int, float], ...]:
        first, last = bisect_right(self.steps, start), bisect_right(self.steps, end)
        return tuple(
            (self.steps[place], value)
            for place in range(first, last)
            if (value := self.values[place]) is not None and math.isfinite(value)
        )

    def truth(self, step: int) -> float | None:
        return self.value(step)

    def _at(self, step: int) -> float:
        """Seconds from the start to a step, interpolated between two reports."""
        place = bisect_left(self.steps, step)
        if place == len(self.steps):
            return self.seconds[-1]
        before_step, before_s = (self.steps[place - 1], self.seconds[place - 1]) if place else (0, 0.0)
        share = (step - before_step) / (self.steps[place] - before_step)
        return before_s + share * (self.seconds[place] - before_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveFile:
    """All runs of a file."""

    path: Path
    curves: tuple[RecordedCurve, ...]
    metric: str | None
    goal: str | None

    @property
    def longest(self) -> int:
        """The last step of the longest run."""
        return max(curve.steps[-1] for curve in self.curves)


@dataclass(frozen=True, slots=True)
class RecordedCurves:
    """The runs of a file, in the order in which a study gets to them."""

    order: tuple[RecordedCurve, ...]

    @classmethod
    def shuffled(cls, file: CurveFile, *, seed: int | None, trials: int) -> "RecordedCurves":
        """At most `trials` of the file's runs, in random order; without a seed, in the file's own order."""
        order = list(file.curves)
        if seed is not None:
            random.Random(f"headrace curves {seed}").shuffle(order)  # noqa: S311  (no secret)
        return cls(tuple(order[:trials]))

    @property
    def size(self) -> int | None:
        return len(self.order)

    def curve(self, number: int) -> Curve:
        return self.order[number]

    def params(self, number: int) -> Params | None:
        return dict(self.order[number].params)

    def fork(self) -> "RecordedCurves":
        return self


def read_curves(path: Path, *, steps: str = REPORTS) -> CurveFile:
    """The runs of a file. Raises CurveFileError with the line and what is wrong there."""
    try:
        with FILE.open(path) as file:
            stream = cast("BinaryIO", gzip.GzipFile(fileobj=file)) if path.suffix == ".gz" else file
            return _read(path, FILE.lines(path, stream), steps)
    except UserFileError as error:
        raise CurveFileError(path, error.line, f"cannot be read: {error.reason}") from error
    except (OSError, EOFError, zlib.error, csv.Error) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise CurveFileError(path, None, f"cannot be read: {why}") from error


@dataclass(slots=True)
class _Rows:
    """A curve while it is being read."""

    params: Params
    steps: list[int]
    seconds: list[float]
    values: list[float | None]


def _read(path: Path, text: Iterable[str], steps: str) -> CurveFile:
    reader = csv.DictReader(text)
    header = list(reader.fieldnames or ())
    column = next((name for name in ("step", "global_step") if name in header), None)
    missing = [name for name in ("curve", "value") if name not in header]
    if steps == COLUMN and column is None:
        missing.append("step")
    if missing:
        raise CurveFileError(
            path, 1, f"has no column {' and no column '.join(missing)}",
            remedy="The format is described in docs/reference/curve-file.md.",
        )  # fmt: skip
    found: dict[str, _Rows] = {}
    said: dict[str, str | None] = {"metric": None, "goal": None}
    timed: bool | None = None
    for count, row in enumerate(reader):
        line = reader.line_num
        if count == MOST_REPORTS:
            raise CurveFileError(path, line, f"has more than {MOST_REPORTS} reports")
        rows = found.get(row["curve"])
        if rows is None:
            rows = found[row["curve"]] = _Rows(_params(path, line, row.get("hyperparameters")), [], [], [])
        step = len(rows.steps) + 1 if steps == REPORTS else _whole(path, line, row[column or "step"])
        seconds = _number(path, line, "seconds", row.get("seconds"))
        if timed is None:
            timed = seconds is not None
        if not timed:
            if seconds is not None:
                raise CurveFileError(
                    path, line, "has seconds, and the reports above have none", remedy=ALL_OR_NONE
                )
            seconds = len(rows.steps) + 1.0
        elif seconds is None or not math.isfinite(seconds):
            raise CurveFileError(path, line, "has no seconds", remedy=ALL_OR_NONE)
        if rows.steps and (step <= rows.steps[-1] or seconds < rows.seconds[-1]):
            raise CurveFileError(
                path, line, f"goes back in the steps or the seconds of curve {row['curve']}",
                remedy="List the reports of a curve in order, a step once; seconds count from the run's beginning.",
            )  # fmt: skip
        rows.steps.append(step)
        rows.seconds.append(seconds)
        rows.values.append(_number(path, line, "value", row["value"]))
        for name in said:
            _agree(path, line, name, said, row.get(name))
    if not found:
        raise CurveFileError(path, None, "has no rows below the header")
    curves = tuple(
        RecordedCurve(
            name=name,
            steps=tuple(rows.steps),
            seconds=tuple(rows.seconds),
            values=tuple(rows.values),
            params=rows.params,
        )
        for name, rows in found.items()
    )
    return CurveFile(path=path, curves=curves, metric=said["metric"], goal=said["goal"])


def _agree(path: Path, line: int, name: str, said: dict[str, str | None], text: str | None) -> None:
    if text and said[name] not in (None, text):
        raise CurveFileError(path, line, f"has the {name} {text}, above it was {said[name]}")
    said[name] = said[name] or text or None


def _params(path: Path, line: int, text: str | None) -> Params:
    if not text:
        return {}
    try:
        params = parse_json(text)
    except ValueError as error:
        raise CurveFileError(path, line, f"has hyperparameters that are not JSON: {error}") from None
    if not isinstance(params, dict):
        raise CurveFileError(path, line, "has hyperparameters that are not a JSON object")
    return {
        str(name): value if isinstance(value, bool | int | float | str) else json.dumps(value)
        for name, value in params.items()
    }


def _whole(path: Path, line: int, text: str | None) -> int:
    number = _number(path, line, "step", text)
    if number is None or not 1 <= number < LARGEST_STEP or number != int(number):
        raise CurveFileError(
            path, line, f"has the step {show_value(text)}, which is not a whole number above 0"
        )
    return int(number)


def _number(path: Path, line: int, name: str, text: str | None) -> float | None:
    if text is None or not text.strip():
        return None
    try:
        return float(text)
    except ValueError:
        raise CurveFileError(path, line, f"has the {name} {text!r}, which is not a number") from None
