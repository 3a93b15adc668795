"""`headrace export`: trials or reports as CSV or JSON, in the columns of `headrace.client.records`."""

import csv
import io
import json
import re
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli import wording
from headrace.cli.failure import USAGE, CommandError
from headrace.cli.output import jsonable
from headrace.cli.session import Session, StudyArgument
from headrace.cli.unshown import note_unshown
from headrace.client.records import Row, report_rows, trial_rows

_BEGINS_A_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"""Spreadsheets run text cells that start with these as formulas."""


class Format(StrEnum):
    """The format to write."""

    CSV = "csv"
    JSON = "json"


def export(
    context: typer.Context,
    study: StudyArgument,
    form: Annotated[
        Format | None,
        typer.Option(
            "--format", help="The format. Default: by the extension of FILE, else csv.", show_default=False
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="FILE", help="The file to write. Default: stdout.", show_default=False
        ),
    ] = None,
    reports: Annotated[
        bool, typer.Option("--reports", help="One row per report instead of one per trial.")
    ] = False,
) -> None:
    """Write a study's trials (or every report) as CSV or JSON.

    A trial's row has its state, values, times, a column `param.NAME` for each parameter, a column `counted.NAME`
    for each objective and constraint, with the value that counts, and a column `metric.NAME` for each metric,
    with the value that the trial last reported: a trial that got worse after an extension counts with an earlier
    result. A parameter has its value at the trial's best step; if a member of a population has changed it since,
    `last_param.NAME` has the later value. `sound` is false if the trial failed or diverged: `headrace best`
    skips it as long as another trial has a value. With several objectives, `front` says whether the trial is on
    the Pareto front. A report's row has a column `metric.NAME` for each metric; a step that was
    trained again after an interruption has a row for each attempt. A value that does not exist is empty in CSV and
    null in JSON.

    In CSV, a text that a spreadsheet would run as a formula (it starts with =, +, - or @) is prefixed with an
    apostrophe. Numbers stay numbers. JSON has every value unchanged, but NaN and infinities as
    texts, as it has no such numbers.

    [bold]Examples[/bold]

    headrace export digits -o trials.csv

    headrace export digits --reports --format json | jq length
    """
    session = Session.of(context)
    form = form or _format_of(out)
    with session.client() as client:
        handle = client.study(study)
        info = handle.status()
        if reports:
            stored = handle.reports()
            note_unshown(session.output, stored)
            rows = report_rows(info, stored)
        else:
            trials = handle.trials()
            note_unshown(session.output, trials)
            rows = trial_rows(info, trials)
    text = (
        _csv(rows) if form is Format.CSV else json.dumps(jsonable(rows), indent=2, ensure_ascii=False) + "\n"
    )
    if out is None:
        session.output.raw(text.encode())
        return
    try:
        out.write_text(text, encoding="utf-8", newline="")
    except OSError as error:
        raise CommandError(
            f"{out} cannot be written: {error.strerror}.", remedy="Give another file with -o."
        ) from None
    session.output.note(f"{wording.plural(len(rows), 'row')} in {out}")


def _format_of(out: Path | None) -> Format:
    ending = out.suffix.lower().removeprefix(".") if out is not None else ""
    if ending and ending not in [*Format]:
        raise CommandError(
            f"{out} ends in .{ending}, but an export is CSV or JSON.",
            remedy="Give a file that ends in .csv or .json, or set the format with --format.",
            code=USAGE,
        )
    return Format(ending or Format.CSV)


class _Lines(io.StringIO):
    """Ends rows with a bare line feed. The writer is told `\r\n`, because it quotes cells that contain its
    line-end characters.
    """

    def write(self, row: str, /) -> int:
        """Writes one row."""
        return super().write(row.removesuffix("\r\n") + "\n")


def _csv(rows: list[Row]) -> str:
    if not rows:
        return ""
    text = _Lines(newline="")
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\r\n")
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def _cell(value: object) -> object:
    match value:
        case bool():
            return str(value).lower()
        case datetime():
            return value.isoformat()
        case str() if value.startswith(_BEGINS_A_FORMULA) and not _is_number(value):
            return f"'{value}"
        case _:
            return value


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?|[-+]?(inf|nan)", text, re.ASCII) is not None
