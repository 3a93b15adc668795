"""What every command uses: an output, and a client of the scheduler that `--address` names."""

import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated

import typer

from headrace import logins
from headrace.cli.failure import USAGE, CommandError
from headrace.home import (
    NotRunningError,
    StartingError,
    address,
    address_in,
    given_address,
    home_dir,
    up_runs,
)

if TYPE_CHECKING:
    from headrace.cli.output import Output
    from headrace.client import Client

TIMEOUT_ENV = "HEADRACE_TIMEOUT_S"
_POLL_S = 0.1

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON with stable keys instead of text.")]
StudyArgument = Annotated[str, typer.Argument(metavar="STUDY", help="The study's name.", show_default=False)]
TrialArgument = Annotated[
    int, typer.Argument(metavar="TRIAL", help="The trial's number.", min=0, show_default=False)
]

_UNKNOWN_S = 5.0
"""How long to try an address where no scheduler has answered yet, and there may be none."""


@dataclass(frozen=True, kw_only=True)
class Session:
    """One invocation of the command line."""

    address: str | None = None

    @cached_property
    def output(self) -> "Output":
        """Where to print."""
        from headrace.cli.output import Output  # imports rich, which commands that start services do not need

        return Output()

    @classmethod
    def of(cls, context: typer.Context) -> "Session":
        """The session that the root command created."""
        session = context.find_object(cls)
        return session if session is not None else cls()

    @contextmanager
    def client(self, address: str | None = None) -> Iterator["Client"]:
        """A client of `address`, or else of the value of `--address`; closed at the end."""
        from headrace.client import Client  # which commands that start services do not need

        timeout_s = connect_timeout_s = _timeout_s()
        if address is None:
            self.where()
        if address or given_address(self.address) or not up_runs(home_dir()):
            connect_timeout_s = min(_UNKNOWN_S, timeout_s)  # otherwise `up` restarts a scheduler that died
        with Client(
            address or self.address, timeout_s=timeout_s, connect_timeout_s=connect_timeout_s
        ) as client:
            yield client

    def where(self) -> str:
        """The scheduler's address. If `headrace up` is starting in this home, says so and waits for it."""
        told, deadline = False, time.monotonic() + _timeout_s()
        login = logins.kept()
        while True:
            try:
                found = address(self.address, login=login.address if login else None)
            except StartingError as error:
                if time.monotonic() >= deadline:
                    raise
                if not told:
                    self.output.note(f"{error.message} Waiting for it.")
                told = True
                # Another process writes the address file, and there is no notification of that.
                time.sleep(_POLL_S)
                continue
            except NotRunningError:
                if told:
                    raise _ended_early() from None
                raise
            if not given_address(self.address) and address_in(home_dir()) is None:
                if told:
                    raise _ended_early()
                if login is not None:
                    return found
                self.output.note(f"No `headrace up` runs in {home_dir()}; asking {found}.")
            return found


def _ended_early() -> CommandError:
    return CommandError(
        f"`headrace up` ended before it was ready in {home_dir()}.",
        remedy="What it printed says why. Start it again, or give another address with --address.",
    )


def _timeout_s() -> float:
    text = os.environ.get(TIMEOUT_ENV) or "30"
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise CommandError(
            f"{TIMEOUT_ENV}: is not a number of seconds above 0 (got {text!r}).",
            remedy=f"Set it to such a number, as in {TIMEOUT_ENV}=30, or unset it.",
            code=USAGE,
        )
    return seconds
