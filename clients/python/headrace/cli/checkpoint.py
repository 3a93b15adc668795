"""`headrace checkpoint get`: copies a checkpoint's files from the store into a folder."""

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli import wording
from headrace.cli.control import OptionalTrial
from headrace.cli.failure import USAGE, CommandError
from headrace.cli.session import AsJson, Session, StudyArgument
from headrace.client import kept
from headrace.client.outcome import Outcome
from headrace.spec import Keep, Scope

checkpoint = typer.Typer(help="Copy a trial's checkpoints.", no_args_is_help=True)


@checkpoint.callback()
def _group() -> None:
    """Copy a trial's checkpoints."""


@checkpoint.command()
def get(
    context: typer.Context,
    study: StudyArgument,
    trial: OptionalTrial = None,
    rung: Annotated[
        int | None,
        typer.Option(
            metavar="STEP", min=1, help="The checkpoint of the rung at this step.", show_default=False
        ),
    ] = None,
    best: Annotated[
        bool, typer.Option("--best", help="Only the checkpoint of the best value: see `keep: best`.")
    ] = False,
    last: Annotated[bool, typer.Option("--last", help="The last checkpoint.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="The folder to copy to. Default: ./STUDY-TRIAL-stepN.", show_default=False
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Copy a checkpoint's files into a folder, and verify each of them. Default: the best trial's.

    Without an option, this is the checkpoint of the trial's best value if the study's `objective` has `keep:
    best`, else the last one. A study keeps few others: the last `checkpoints_kept`.

    The files come from the workers' store: a folder that this machine can read, or S3, with the same AWS_* variables.
    If the store is a local folder of another machine, run this command there.

    In Python, `headrace.load("STUDY", TRIAL)` returns the states themselves.

    [bold]Examples[/bold]

    headrace checkpoint get digits                     # the best trial's

    headrace checkpoint get digits 7 --rung 9 --out model

    headrace checkpoint get digits --best --json | jq -r .folder
    """
    session = Session.of(context)
    if (rung is not None) + best + last > 1:
        raise CommandError(
            "--rung, --best and --last cannot be combined.", remedy="Give one of them.", code=USAGE
        )
    if out is not None:
        _check_empty(out)
    with session.client() as client:
        status, info, found = kept.find(client, study, trial, rung=rung, best=best, last=last)
    folder = out or Path(f"{info.study}-{info.number}-step{found[0].step}")
    _check_empty(folder)
    try:
        copied = kept.copy(info, found, folder)
    except OSError as error:
        raise CommandError(
            f"--out {folder}: the checkpoint cannot be copied there: {error.strerror or error}.",
            remedy="Give another --out DIR.",
        ) from error
    value = info.best_value if copied.step == info.best_step else Outcome.value_at(info, copied.step)
    if as_json:
        session.output.json(
            {
                "study": info.study,
                "trial": info.number,
                "step": copied.step,
                "value": value,
                "best_value": info.best_value,
                "best_step": info.best_step,
                "folder": folder.absolute(),
                "size_bytes": copied.size_bytes,
                "uri": copied.uri,
            }
        )
        return
    session.output.line(str(folder))
    metric = status.spec.objective.metric
    at = "" if value is None else f", where {metric} is {wording.number(value)}"
    session.output.note(
        f"Trial {info.number} of study {info.study}, step {copied.step}{at}; {wording.size(copied.size_bytes)}."
    )
    objective = status.spec.objective
    not_kept = objective.scope is Scope.BEST and objective.keep is Keep.LAST
    if not_kept and info.best_step is not None and copied.step != info.best_step and rung is None:
        session.output.note(
            f"Its best value, {wording.number(info.best_value)}, is of step {info.best_step}: "
            "`objective: {…, keep: best}` in a study file keeps that checkpoint too."
        )
    session.output.note(
        f'Load it in Python: `headrace.trial.read_checkpoint("{folder}").{_where_saved(folder)}`.'
    )


def _where_saved(folder: Path) -> str:
    """The attribute of the copy to read; if another program has written it, what most trials save."""
    from headrace.trial.contents import where_saved

    try:
        return where_saved(folder)
    except (OSError, ValueError):
        return "tracked"


def _check_empty(folder: Path) -> None:
    """Raises CommandError if the folder is not empty, before anything is requested or copied."""
    try:
        full = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    except OSError as error:
        raise CommandError(
            f"--out {folder} cannot be read: {error.strerror}.", remedy="Give another --out DIR.", code=USAGE
        ) from None
    if full:
        raise CommandError(
            f"--out {folder} exists and is not an empty folder.",
            remedy="Give another --out DIR; nothing is overwritten.",
            code=USAGE,
        )
