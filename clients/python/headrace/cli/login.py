"""`headrace login` and `logout`: a scheduler's address, its certificate authority and a token, stored for later
commands.
"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from headrace import logins
from headrace.cli.failure import USAGE, CommandError
from headrace.cli.session import AsJson, Session
from headrace.client import Client
from headrace.home import given_address, home_dir, up_runs
from headrace.target import TLS, Target
from headrace.userfile import UserFileError


def login(
    context: typer.Context,
    tls_ca: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The certificate authority of the scheduler (PEM), or its fingerprint, sha256:…. A copy is kept. "
            "Default: HEADRACE_TLS_CA, else the system's.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Log in to the scheduler that --address names: store its address, its authority and your token.

    On a terminal this asks for the token; elsewhere it reads it from stdin. It tries the token before it stores
    anything, in HEADRACE_HOME/login.json, which only your user can read.

    Commands and the Python SDK then use that scheduler, unless --address or HEADRACE_ADDRESS names another, or
    `headrace up` runs in this home. Clients in other languages read HEADRACE_ADDRESS, HEADRACE_TLS_CA and
    HEADRACE_TOKEN.

    [bold]Examples[/bold]

    headrace login --address tls://s1.internal:7440,s2.internal:7440 --tls-ca ca.pem

    headrace login --address tls://s1.internal:7440 < token.txt
    """
    session = Session.of(context)
    address = given_address(session.address)
    if not address:
        raise CommandError(
            "There is no scheduler to log in to.",
            remedy="Name it: headrace login --address tls://HOST:PORT.",
            code=USAGE,
        )
    token = _asked_for()
    try:
        logins.kept()
    except UserFileError:  # it would interfere with the new one
        logins.forget()
    target = Target.of(address, tls_ca=tls_ca, token=token)
    with Client(address, timeout_s=15.0, connect_timeout_s=5.0, tls_ca=target.tls_ca, token=token) as client:
        who = client.who_am_i()
    if who.token is None:
        raise CommandError(
            f"The scheduler at {target.address} requires no token: there is nothing to log in with.",
            remedy="Just set HEADRACE_ADDRESS. To require tokens, an admin starts it with --auth tokens.",
        )
    text = f"{TLS if target.tls else ''}{target.address}"
    path = logins.keep(logins.Login(address=text, token=token, tls_ca=target.tls_ca))
    if as_json:
        session.output.json({"address": text, "project": who.project, "role": who.role, "file": path})
        return
    session.output.line(f"Logged in to {text}: {who.role} of project {who.project}.")
    if up_runs(home_dir()):
        session.output.note(f"`headrace up` runs in {home_dir()}: without --address, commands use that one.")


def logout(context: typer.Context) -> None:
    """Forget the address, the authority and the token that `headrace login` stored. The token itself stays valid."""
    output = Session.of(context).output
    if logins.forget():
        output.line("Logged out.")
        output.note("If others may know the token, have it revoked: `headrace token revoke`.")
    else:
        output.line(f"There is no login in {home_dir()}; nothing was done.")


def _asked_for() -> str:
    here = sys.stdin.isatty()
    token = str(typer.prompt("Token", hide_input=True, err=True) if here else sys.stdin.readline()).strip()
    if not token:
        raise CommandError(
            "No token was given.",
            remedy="Type it, or give it on stdin: headrace login < FILE.",
            code=USAGE,
        )
    return token
