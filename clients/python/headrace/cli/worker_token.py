"""`headrace worker-token`: tokens with which workers join, and shutting out a worker."""

from dataclasses import asdict
from typing import Annotated

import typer

from headrace.cli.control import Yes, confirm
from headrace.cli.failure import USAGE, CommandError
from headrace.cli.session import AsJson, Session
from headrace.client import joining
from headrace.lifetimes import lifetime_of

worker_token = typer.Typer(
    no_args_is_help=True,
    help="Manage join tokens, for schedulers that require certificates of workers.\n\n"
    "A worker uses its token once, with `headrace worker --join`, and gets a certificate that it renews automatically.",
)


@worker_token.command()
def create(
    context: typer.Context,
    worker: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="The only worker that may join with it, even if one of this name has joined before. "
            "Default: any worker whose name is unused.",
            show_default=False,
        ),
    ] = "",
    uses: Annotated[int, typer.Option(min=1, max=100_000, help="How many workers may join with it.")] = 1,
    expires: Annotated[
        str, typer.Option(metavar="TIME", help="How long it is valid: 90s, 15m, 12h or 30d.")
    ] = "1h",
    as_json: AsJson = False,
) -> None:
    """Create a join token. It is shown only once, and is the only output on stdout.

    [bold]Examples[/bold]

    headrace worker-token create > token && headrace worker --join @token

    headrace worker-token create --uses 50 --expires 12h
    """
    session = Session.of(context)
    lifetime = lifetime_of(expires, "--expires")
    with session.client() as client:
        made, secret = client.transport.run(joining.create_token(worker=worker, uses=uses, lifetime=lifetime))
    if as_json:
        session.output.json({**asdict(made), "token": secret})
        return
    session.output.line(secret)
    whose = f"worker {made.worker}" if made.worker else "one worker" if uses == 1 else f"{uses} workers"
    session.output.note(f"It lets {whose} join until {made.expire_time.astimezone():%Y-%m-%d %H:%M}.")


@worker_token.command("list")
def list_(context: typer.Context, as_json: AsJson = False) -> None:
    """List the join tokens that have not expired. Their secrets are not stored."""
    session = Session.of(context)
    with session.client() as client:
        found = client.transport.run(joining.tokens())
    if as_json:
        session.output.json([asdict(token) for token in found])
        return
    if not found:
        session.output.note("No join token is valid now. Create one with `headrace worker-token create`.")
        return
    session.output.table(
        ["ID", "WORKER", "USED", "EXPIRES", "STATE"],
        [
            [
                token.id,
                token.worker or "any",
                f"{token.used} of {token.uses}",
                f"{token.expire_time.astimezone():%Y-%m-%d %H:%M}",
                _state(token),
            ]
            for token in found
        ],
        right=["USED"],
    )


@worker_token.command()
def revoke(
    context: typer.Context,
    token: Annotated[
        str | None,
        typer.Argument(metavar="[ID]", help="The token's id, as `list` shows it.", show_default=False),
    ] = None,
    worker: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="End this worker's certificates, and its session.", show_default=False
        ),
    ] = None,
    yes: Yes = False,
) -> None:
    """Revoke a join token or, with --worker, shut out a worker that has joined.

    Workers that joined with a token stay when it is revoked. A worker that is shut out loses its trials when its leases
    end, seconds later; they resume elsewhere. It may join again with a new token.
    """
    session = Session.of(context)
    if (token is None) == (worker is None):
        raise CommandError("Give the id of a token, or --worker NAME.", remedy="", code=USAGE)
    if token is not None:
        with session.client() as client:
            ended = client.transport.run(joining.revoke_token(token))
        session.output.line(f"Token {ended.id} is revoked.")
        return
    assert worker is not None
    confirm(f"Shut out worker {worker}?", yes=yes)
    with session.client() as client:
        client.transport.run(joining.revoke_worker(worker))
    session.output.line(f"The certificates of worker {worker} are revoked.")


def _state(token: joining.JoinToken) -> str:
    """By the scheduler's clock, which does not list expired tokens."""
    if token.revoked:
        return "revoked"
    return "used up" if token.used >= token.uses else "works"
