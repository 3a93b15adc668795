"""`headrace report`: a study as one self-contained HTML page."""

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.failure import CommandError
from headrace.cli.output import Output
from headrace.cli.session import Session, StudyArgument
from headrace.client.sync import Study


def report(
    context: typer.Context,
    study: StudyArgument,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE.html",
            help="Where to write it. Default: STUDY.html.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write a page with the study's learning curves, parameters, schedule and trials.

    The file is self-contained: it can be mailed and opened anywhere.

    [bold]Examples[/bold]

    headrace report digits

    headrace report digits -o figures/digits.html
    """
    session = Session.of(context)
    with session.client() as client:
        handle = client.study(study)
        written = write_report(handle, out or Path(f"{handle.name}.html"), session.output)
    session.output.line(str(written))


def write_report(study: Study, path: Path, output: Output) -> Path:
    """Writes the report and returns its absolute path."""
    from headrace.report import build_report

    output.note("Writing the report")
    page = build_report(study)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise CommandError(
            f"The report cannot be written to {path}: {error.strerror}.", remedy="Give another file."
        ) from None
    return path.absolute()
