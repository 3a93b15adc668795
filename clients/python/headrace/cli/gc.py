"""`headrace gc`: what ended studies have left on disk, and what is due in the scheduler's database."""

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
from headrace.errors import InternalError, PermissionDeniedError


def gc(
    context: typer.Context,
    studies: Annotated[
        list[str] | None,
        typer.Argument(metavar="STUDY", help="Ended studies. Default: all.", show_default=False),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List what could be deleted; delete nothing.")
    ] = False,
    best_too: Annotated[
        bool,
        typer.Option(
            "--best-too", help="Delete the checkpoints of the best trials and of Pareto fronts too."
        ),
    ] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete what ended studies left on disk: checkpoints, logs, reports. Asks first; without a terminal, give --yes.

    The studies themselves stay, with all results and events; `headrace delete` removes those. The checkpoints of a
    study's best trial, or of the trials on its Pareto front, stay unless you say --best-too. A live study is never
    touched, and only the folders that carry the name and the uid of an ended one are. A study that goes on while this
    runs is left alone from then on.

    Schedulers and workers delete by themselves what has lasted for its age. This lists the ages (they are set with
    `headrace scheduler --keep`) and what is due of your project, and has the scheduler delete that now, if you are an
    admin. With STUDY it does not.

    A trial whose checkpoint was deleted begins anew when `headrace retry` or `headrace extend` lets it go on.

    Only what this machine sees is listed: folders here or shared, and checkpoints on S3, with the workers' AWS_*
    variables. Run it on each machine that keeps files of its own. The files of a deleted study go by themselves,
    within the hour, wherever a worker runs.

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
        output.line("Nothing is left to delete on this machine.")
    for line in failed:
        output.note(line)
    if failed:
        raise typer.Exit(FAILED)


def _upkeep(client: Client, output: Output) -> Upkeep | None:
    """The scheduler's side; None where it is of a release that says nothing of it."""
    try:
        return client.upkeep()
    except InternalError as error:
        output.note(f"What is due in the scheduler is not shown, and not deleted now: {error}")
        return None


def _clean_up(client: Client, output: Output) -> None:
    try:
        client.clean_up()
    except PermissionDeniedError:
        output.note(
            "The scheduler deletes what is due by itself, within minutes. An admin may have it begin at once."
        )


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
    """Deletes it all; returns the bytes of what was deleted as a whole, and what was not, and why."""
    gone, failed = 0, []
    for one in found.leftovers:
        try:
            one.delete(client)
        except (leftovers.StudyMovedError, OSError) as error:
            why = error.strerror or error if isinstance(error, OSError) else error
            failed.append(f"{one.what} of {one.study} in {one.where} are not deleted, or not all: {why}.")
        else:
            gone += one.size_bytes
    return gone, failed
