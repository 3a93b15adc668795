"""`headrace token`: who may call a scheduler, and as what."""

from datetime import UTC, datetime
from importlib.metadata import entry_points
from typing import Annotated, Any, Final

import typer

from headrace.cli.control import Yes, confirm
from headrace.cli.failure import USAGE, CommandError
from headrace.cli.output import Cell
from headrace.cli.session import AsJson, Session
from headrace.client.identities import Role, TokenInfo
from headrace.client.missing import MissingExtraError
from headrace.lifetimes import lifetime_of

IN_DATABASE: Final = "headrace.in_database"
"""The entry points of functions that work on a database without a scheduler."""
NEVER: Final = "never"
ROLES: Final = tuple(role.value for role in Role if role is not Role.UNKNOWN)

token = typer.Typer(help="Create, list and revoke access tokens.", no_args_is_help=True)


@token.callback()
def _group() -> None:
    """Create, list and revoke access tokens. For admins.

    A token grants a role in a project. A viewer can read. An editor can also create and change studies, whose programs
    run on the workers. An admin can also issue tokens. A worker runs trials.
    """


@token.command()
def create(
    context: typer.Context,
    role: Annotated[str, typer.Option(metavar="|".join(ROLES), help="What its holder may do.")] = "editor",
    project: Annotated[
        str | None,
        typer.Option(
            metavar="PROJECT",
            help="Whose studies it is for. Default: your own project, or `default` with --database-url.",
            show_default=False,
        ),
    ] = None,
    name: Annotated[str, typer.Option(help="A label, such as the holder's name.", show_default=False)] = "",
    expires: Annotated[
        str, typer.Option(metavar="TIME", help="How long it is valid: 12h, 90d, or never.")
    ] = "90d",
    database_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            envvar="HEADRACE_DATABASE_URL",
            show_envvar=False,
            help="Create it directly in this database, without a scheduler or a token: for the first "
            "token. Default: HEADRACE_DATABASE_URL.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create a token, and print its secret, which is shown only once.

    Stdout gets only the secret, so a script can read it.

    An admin creates tokens of the admin's own project. Admins of the project `default` create tokens of all projects,
    and of workers.

    [bold]Examples[/bold]

    headrace token create --name ann --expires 30d

    headrace token create --role admin --database-url postgresql://headrace@db/headrace   # the first one
    """
    output = Session.of(context).output
    if role not in ROLES:
        raise CommandError(
            f"--role: is not a role (got {role!r}).", remedy=f"Give one of {', '.join(ROLES)}.", code=USAGE
        )
    span = None if expires == NEVER else lifetime_of(expires, "--expires")
    if database_url is not None:
        where = project or "default"
        made_id, secret = _in_database()(
            database_url,
            name=name,
            project=where,
            role=role,
            lifetime_s=None if span is None else span.total_seconds(),
        )
    else:
        with Session.of(context).client() as client:
            made = client.create_token(role, project=project, name=name, lifetime=span)
        made_id, secret, where = made.info.id, made.secret, made.info.project
    if as_json:
        output.json({"id": made_id, "project": where, "role": role, "name": name, "secret": secret})
        return
    output.line(secret)
    ends = "never expires" if span is None else f"expires in {expires}"
    how = "" if database_url is None else " It was created in the database itself."
    output.note(f"Token {made_id}: {role} of project {where}; it {ends}. It cannot be shown again.{how}")
    output.note("Its holder runs `headrace login`, or sets HEADRACE_TOKEN.")


@token.command("list")
def list_tokens(
    context: typer.Context,
    project: Annotated[
        str | None, typer.Option(metavar="PROJECT", help="Only those of this project.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the tokens of your project, newest first, without their secrets.

    Admins of the project `default` see those of all projects. LAST USED is exact to ten minutes.
    """
    session = Session.of(context)
    with session.client() as client:
        found = client.tokens(project)
    now = datetime.now(UTC)
    if as_json:
        session.output.json([_json(one, now) for one in found])
        return
    if not found:
        session.output.note("There is no token yet. Create one with `headrace token create`.")
        return
    session.output.table(
        ["TOKEN", "NAME", "PROJECT", "ROLE", "STATE", "EXPIRES", "LAST USED"],
        [_row(one, now) for one in found],
        below=["EXPIRES", "LAST USED"],
    )


@token.command()
def revoke(
    context: typer.Context,
    token_id: Annotated[
        str, typer.Argument(metavar="TOKEN", help="Its id, as `headrace token list` shows it.")
    ],
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Revoke a token for good. Calls with it are refused within seconds.

    Asks for confirmation; without a terminal, add --yes.
    """
    session = Session.of(context)
    confirm(f"Revoke token {_bare(token_id)}?", yes=yes)
    with session.client() as client:
        revoked = client.revoke_token(_bare(token_id))
    if as_json:
        session.output.json(_json(revoked, datetime.now(UTC)))
    else:
        named = f" ({revoked.name})" if revoked.name else ""
        session.output.line(f"Token {revoked.id}{named} is revoked.")


def _bare(text: str) -> str:
    """The id in the given text, which may be a whole token. Its secret is never shown."""
    parts = text.split("_", 2)
    return parts[1] if len(parts) == 3 and parts[0] == "hr" else text


def _in_database() -> Any:
    points = entry_points(group=IN_DATABASE)
    try:
        return points["create-token"].load()
    except (KeyError, ModuleNotFoundError) as error:
        if isinstance(error, ModuleNotFoundError) and (error.name or "").startswith("headrace"):
            raise
        module = error.name if isinstance(error, ModuleNotFoundError) else None
        raise MissingExtraError.of("--database-url", "services", module) from None


def _row(one: TokenInfo, now: datetime) -> list[Cell]:
    return [
        one.id,
        one.name,
        one.project,
        one.role,
        one.state(now),
        _time(one.expire_time, "never"),
        _time(one.last_used_time, "never"),
    ]


def _time(value: datetime | None, none: str) -> str:
    return none if value is None else f"{value.astimezone():%Y-%m-%d %H:%M}"


def _json(one: TokenInfo, now: datetime) -> dict[str, object]:
    return {
        "id": one.id,
        "name": one.name,
        "project": one.project,
        "role": one.role,
        "state": one.state(now),
        "create_time": one.create_time,
        "expire_time": one.expire_time,
        "revoke_time": one.revoke_time,
        "last_used_time": one.last_used_time,
    }
