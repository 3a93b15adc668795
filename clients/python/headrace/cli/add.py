"""`headrace add`: a user's own configurations for an existing study."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.cli import views, wording
from headrace.cli.failure import USAGE, CommandError
from headrace.cli.session import AsJson, Session, StudyArgument
from headrace.client.model import Value
from headrace.spec.problems import Problem
from headrace.spec.yaml import read_yaml


def add(
    context: typer.Context,
    study: StudyArgument,
    params: Annotated[
        list[str] | None,
        typer.Option(
            metavar="'{NAME: VALUE, ...}'",
            help="A configuration. Repeat the option for more.",
            show_default=False,
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A YAML or JSON list of configurations.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Add your own configurations to a study that has not ended, besides those that its sampler proposes.

    They are checked against the study's space, and either all are added or none.

    [bold]Examples[/bold]

    headrace add digits --params '{lr: 0.01, width: 64}' --params '{lr: 0.03, width: 64}'

    headrace add digits --file configurations.yaml
    """
    session = Session.of(context)
    given = [*_written(params or ()), *(_listed(file) if file else ())]
    if not given:
        raise CommandError(
            "No configuration given.",
            remedy="Give one with --params '{lr: 0.01}', or a --file.",
            code=USAGE,
        )
    with session.client() as client:
        trials = client.study(study).add_trials(given)
    if as_json:
        session.output.json([views.trial(trial) for trial in trials])
        return
    for trial, values in zip(trials, given, strict=True):
        session.output.line(f"Trial {trial.number} of study {study}: {wording.params(values)}")


def _written(texts: list[str] | tuple[()]) -> Iterator[dict[str, Value]]:
    for text in texts:
        data, problems = read_yaml(text, "--params")
        yield _configuration(data, f"--params {text}", problems)


def _listed(file: Path) -> Iterator[dict[str, Value]]:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise CommandError(
            f"{file} cannot be read: {why}.", remedy="Give another --file.", code=USAGE
        ) from None
    data, problems = read_yaml(text, str(file))
    if not isinstance(data, list):
        raise CommandError(
            f"{file} is not a list of configurations.",
            remedy="Write a list, one configuration per item: `- {lr: 0.01, width: 64}`.",
            code=USAGE,
        )
    for number, item in enumerate(data):
        yield _configuration(item, f"{file}, item {number}", problems)


def _configuration(data: Any, where: str, problems: Sequence[Problem]) -> dict[str, Value]:
    plain = isinstance(data, dict) and all(
        isinstance(value, bool | int | float | str) for value in data.values()
    )
    if not plain or not data or problems:
        said = f": {problems[0].message}" if problems else ""
        raise CommandError(
            f"{where} is not a configuration{said}.",
            remedy="Write the value of each parameter, as in {lr: 0.01, width: 64}.",
            code=USAGE,
        )
    return {str(name): value for name, value in data.items()}
