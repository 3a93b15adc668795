"""`headrace gc`: data that ended studies have left on disk, and data due for deletion in the scheduler's
database.
"""

from dataclasses import asdict
from typing import Annotated

import typer

from headrace.cli import wording
from headrace.cli.control import Yes, confirm
from headrace.cli.failure import FAILED
from headrace.cli.output import Output
from headrace.cli.session import AsJson, Session
from headrace.client import Client, leftovers
from headrace.client.upkeep import Upkeep
from headrace.errors import HeadraceError, InternalError, PermissionDeniedError


def gc(
    context: typer.Context,
    studies: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="STUDY", help="Ended studies. Default: all ended studies.", show_default=False
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List what could be deleted; delete nothing.")
    ] = False,
    best_too: Annotated[
        bool,
        typer.Option(
            "--best-too", help="Also delete the checkpoints of the best trials and of Pareto fronts."
        ),
    ] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete what ended studies left on disk: checkpoints, logs, reports. Asks for confirmation; without a
    terminal, add --yes.

    The studies themselves stay, with all results and events; `headrace delete` removes those. The checkpoints
    of a study's best trial, or of the trials on its Pareto front, stay unless you add --best-too. Only folders
    with the name and the uid of an ended study are deleted, never those of a live one. A study that is reopened
    meanwhile is left alone from then on.

    Schedulers and workers delete data that exceeds its retention age on their own. Without STUDY, this
    lists the ages (set with `headrace scheduler --keep`) and what is due in your project, and if you are an admin,
    the scheduler deletes that now.

    The scheduler forgets the checkpoints that this deletes, so that no command shows their addresses any more. A
    trial whose checkpoint was deleted starts from scratch when `headrace retry` or `headrace extend` continues it.

    Only what this machine can access is listed: local and shared folders, and checkpoints on S3, with the
    workers' AWS_* variables. Run it on each machine that has its own files. The files of a deleted study are
    removed within the hour wherever a worker runs.

    [bold]Examples[/bold]

    headrace gc --dry-run

    headrace gc digits --yes

    headrace gc --dry-run --json | jq .size_bytes
    """
    session = Session.of(context)
    output = session.output
    with session.client() as client:
        found = leftovers.find(client, studies or (), best_too=best_too)
        upkeep = None if studies else _upkeep(client, output)
    total = gone = sum(one.size_bytes for one in found.leftovers)
    names = {one.study for one in found.leftovers}
    failed: list[str] = []
    if not as_json:
        _show(found, output)
        if upkeep is not None:
            _show_upkeep(upkeep, output)
    if found.leftovers and not dry_run:
        of = wording.plural(len(names), "ended study", "ended studies")
        confirm(f"Delete {wording.size(total)} of {of}?", yes=yes)
        with session.client() as client:
            gone, failed = _delete(client, found)
    if upkeep is not None and not dry_run and (upkeep.due or upkeep.deleted_studies):
        with session.client() as client:
            _clean_up(client, output)
    if as_json:
        output.json(
            {
                "deleted": not dry_run and not failed,
                "size_bytes": total,
                "kept_bytes": found.kept_bytes,
                "leftovers": [
                    {
                        "study": one.study,
                        "what": one.what,
                        "size_bytes": one.size_bytes,
                        "trials": len(one.trials) if one.what == "checkpoints" else None,
                        "where": one.where,
                    }
                    for one in found.leftovers
                ],
                "elsewhere": found.elsewhere,
                "failures": failed,
                "scheduler": None if upkeep is None else asdict(upkeep),
            }
        )
    elif found.leftovers:
        done = "could be deleted; nothing was" if dry_run else "deleted"
        output.line(f"{wording.size(gone)} {done}.")
    else:
        output.line("There is nothing to delete on this machine.")
    for line in failed:
        output.note(line)
    if failed:
        raise typer.Exit(FAILED)


def _upkeep(client: Client, output: Output) -> Upkeep | None:
    """The scheduler's side; None if its release does not report it."""
    try:
        return client.upkeep()
    except InternalError as error:
        output.note(f"Data that is due in the scheduler is neither listed nor deleted now: {error}")
        return None


def _clean_up(client: Client, output: Output) -> None:
    try:
        client.clean_up()
    except PermissionDeniedError:
        output.note("The scheduler deletes what is due within minutes. An admin can start it at once.")


def _show(found: leftovers.Found, output: Output) -> None:
    if found.leftovers:
        output.table(
            ["STUDY", "WHAT", "SIZE", "WHERE"],
            [[one.study, one.what, wording.size(one.size_bytes), one.where] for one in found.leftovers],
            right=["SIZE"],
        )
    if found.kept_bytes:
        output.note(
            f"{wording.size(found.kept_bytes)} of checkpoints of the best trials stay: --best-too deletes them."
        )
    for place in found.elsewhere:
        output.note(f"{place} cannot be read from here: run this on the machine that has it.")


def _show_upkeep(upkeep: Upkeep, output: Output) -> None:
    output.table(
        ["IN THE SCHEDULER", "KEPT FOR", "DUE", "WHAT"],
        [[one.kind, one.age, str(one.due), one.what] for one in upkeep.kinds],
        right=["DUE"],
    )
    if upkeep.tables:
        tables = ", ".join(f"{one.table} {wording.size(one.size_bytes)}" for one in upkeep.tables[:4])
        output.note(f"The database takes {wording.size(upkeep.size_bytes)}: {tables}.")
    if upkeep.deleted_studies:
        studies = wording.plural(upkeep.deleted_studies, "deleted study", "deleted studies")
        output.note(f"The rows of {studies} are still to be removed.")


def _delete(client: Client, found: leftovers.Found) -> tuple[int, list[str]]:
    """Deletes everything; returns the bytes of what was completely deleted, and what was not deleted and why."""
    gone, failed = 0, []
    for one in found.leftovers:
        try:
            one.delete(client)
        except (leftovers.StudyMovedError, HeadraceError, OSError) as error:
            why = error.strerror or error if isinstance(error, OSError) else error
            failed.append(f"{one.what} of {one.study} in {one.where} are not deleted, or not all: {why}.")
        else:
            gone += one.size_bytes
    return gone, failed
