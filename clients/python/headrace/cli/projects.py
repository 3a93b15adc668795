"""`headrace project create|list|set`: who shares the cluster, and how much each may use at once."""

from typing import Annotated, Any

import typer

from headrace.cli import wording
from headrace.cli.failure import USAGE, CommandError
from headrace.cli.output import Cell
from headrace.cli.session import AsJson, Session
from headrace.client.projects import UNCHANGED, ProjectInfo, Unchanged

NO_LIMIT = "none"

project = typer.Typer(help="Divide the cluster among projects.", no_args_is_help=True)

_Name = Annotated[str, typer.Argument(metavar="NAME", help="The project's name.", show_default=False)]


def _most_option(what: str) -> Any:
    return typer.Option(metavar="N", help=f"The most {what}.", show_default=False)


_Slots = Annotated[str | None, _most_option(f"slots that its studies may hold at once, or {NO_LIMIT}")]
_Studies = Annotated[str | None, _most_option(f"studies that have not ended, or {NO_LIMIT}")]
_CodeMib = Annotated[
    str | None,
    _most_option(
        f"MiB that the archives of its code may take in total, or {NO_LIMIT} for the default of 10240"
    ),
]


@project.callback()
def _group() -> None:
    """Divide the cluster among projects.

    A study belongs to one project, and its name is unique within it. A token selects the project of a command.
    If the scheduler requires no token, HEADRACE_PROJECT does; without it the project is `default`.
    """


@project.command()
def create(
    context: typer.Context,
    name: _Name,
    slots: _Slots = None,
    studies: _Studies = None,
    code_mib: _CodeMib = None,
    as_json: AsJson = False,
) -> None:
    """Create a project. Unless you say otherwise it may hold any number of slots and studies, and 10 GiB of code.

    For admins of the project `default`.

    [bold]Examples[/bold]

    headrace project create vision --slots 8

    headrace project create students --slots 2 --studies 10
    """
    session = Session.of(context)
    most_slots, most_studies = _new(_limit("--slots", slots)), _new(_limit("--studies", studies))
    most_code = _new(_limit("--code-mib", code_mib))
    with session.client() as client:
        made = client.create_project(name, slots=most_slots, studies=most_studies, code_mib=most_code)
    _show(session, made, f"Project {name} exists.", as_json=as_json)


@project.command("list")
def list_projects(context: typer.Context, as_json: AsJson = False) -> None:
    """List the projects, their limits, and their current use. Only admins see projects other than their own.

    [bold]Examples[/bold]

    headrace project list

    headrace project list --json | jq '.\\[] | {name, slots, slots_held}'
    """
    session = Session.of(context)
    with session.client() as client:
        found = client.projects()
    if as_json:
        session.output.json([_json(one) for one in found])
        return
    session.output.table(
        ["PROJECT", "SLOTS HELD", "OF AT MOST", "STUDIES", "OF AT MOST", "CODE MIB", "OF AT MOST"],
        [_row(one) for one in found],
        right=["SLOTS HELD", "OF AT MOST", "STUDIES", "CODE MIB"],
    )


@project.command("set")
def set_limits(
    context: typer.Context,
    name: _Name,
    slots: _Slots = None,
    studies: _Studies = None,
    code_mib: _CodeMib = None,
    as_json: AsJson = False,
) -> None:
    """Change limits of a project; the others stay. For admins of the project `default`.

    Nothing is stopped: a project above its limit gets nothing more until it is below it.

    [bold]Examples[/bold]

    headrace project set vision --slots 16

    headrace project set vision --slots none
    """
    if slots is None and studies is None and code_mib is None:
        raise CommandError(
            "None of --slots, --studies and --code-mib is given, so nothing would change.",
            remedy=f"Give one, as in `headrace project set {name} --slots 8`.",
            code=USAGE,
        )
    session = Session.of(context)
    most_slots, most_studies = _limit("--slots", slots), _limit("--studies", studies)
    most_code = _limit("--code-mib", code_mib)
    with session.client() as client:
        now = client.set_project(name, slots=most_slots, studies=most_studies, code_mib=most_code)
    _show(session, now, f"Project {name} is updated.", as_json=as_json)


def _limit(option: str, text: str | None) -> int | Unchanged | None:
    if text is None:
        return UNCHANGED
    if text == NO_LIMIT:
        return None
    if not text.isdecimal():
        raise CommandError(
            f"{option}: is neither a number from 0 on nor `{NO_LIMIT}` (got {text!r}).",
            remedy=f"Give a number, as in {option} 8, or {NO_LIMIT} for no limit.",
            code=USAGE,
        )
    return int(text)


def _new(limit: int | Unchanged | None) -> int | None:
    return None if isinstance(limit, Unchanged) else limit


def _show(session: Session, one: ProjectInfo, said: str, *, as_json: bool) -> None:
    if as_json:
        session.output.json(_json(one))
        return
    session.output.line(said)
    slots = "any number of slots" if one.slots is None else wording.plural(one.slots, "slot")
    studies = (
        "any number of studies" if one.studies is None else wording.plural(one.studies, "study", "studies")
    )
    session.output.note(f"Its studies may hold {slots} at once, and hold {one.slots_held:g}.")
    session.output.note(f"It may have {studies} that have not ended, and has {one.studies_unended}.")
    most_code = "the usual amount" if one.code_mib is None else f"{one.code_mib} MiB"
    session.output.note(f"It may keep {most_code} of code, and keeps {one.code_mib_held:.1f} MiB.")


def _row(one: ProjectInfo) -> list[Cell]:
    return [
        one.name,
        f"{one.slots_held:g}",
        "-" if one.slots is None else str(one.slots),
        str(one.studies_unended),
        "-" if one.studies is None else str(one.studies),
        f"{one.code_mib_held:.0f}",
        "-" if one.code_mib is None else str(one.code_mib),
    ]


def _json(one: ProjectInfo) -> dict[str, object]:
    return {name: getattr(one, name) for name in ProjectInfo.__slots__}
