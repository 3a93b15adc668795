"""`headrace up --listen`: what makes this machine the head of several, in the folder `head` of the home.

    head/ca           the authority; its server certificate is made again when the address changes, or it ends soon
    head/token        the first token, an admin's
    head/join         a join token for this home's own worker, if it runs one
    head/login.json   what commands in this home use: the addresses, the authority and the token

The authority is made before anything starts. The tokens need the database, so they are made between Postgres and the
scheduler, by a program of its own (`scheduler.head_access`): `up` imports no service. All of it outlives `up`, and a
home without the folder serves this machine alone.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from headrace import logins
from headrace.durable import replace
from headrace.errors import HeadraceError, InvalidFieldError, Violation
from headrace_services.up.listening import Listening, listening

FOLDER: Final = "head"
DEFAULT_PORT: Final = 7440
_TOKENS_S: Final = 300.0
"""How long the tokens may take; the migration of a large database is in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A head node's addresses and files."""

    home: Path
    at: Listening
    fingerprint: str
    """Of the authority, as `--tls-ca` takes it."""

    @property
    def folder(self) -> Path:
        """Where its files are."""
        return self.home / FOLDER

    @property
    def ca_file(self) -> Path:
        """The authority's certificate."""
        return self.folder / "ca" / "ca.pem"

    @property
    def port(self) -> int:
        """Where users connect."""
        return int(self.at.users.rpartition(":")[2])

    @property
    def worker_port(self) -> int:
        """Where workers connect."""
        return int(self.at.workers.rpartition(":")[2])

    def token(self) -> str:
        """The first token."""
        return (self.folder / "token").read_text("ascii").strip()

    def scheduler_options(self) -> tuple[str, ...]:
        """Options of the scheduler, besides `--listen`."""
        ca = str(self.folder / "ca")
        return ("--ca", ca, "--worker-listen", self.at.workers, "--auth", "tokens")

    def worker_options(self) -> tuple[str, ...]:
        """Options of this home's own worker."""
        return ("--tls-ca", str(self.ca_file), "--join", f"@{self.folder / 'join'}")

    def tokens(self, database_url: str, worker: str | None) -> Callable[[], None]:
        """Makes the tokens, once: a scheduler that is restarted finds them. `worker`: the home's own, if it runs one.
        Raises HeadraceError."""
        joins = () if worker is None else (worker,)
        command = (sys.executable, "-m", "headrace_services.scheduler.head_access", str(self.folder), *joins)
        made: list[bool] = []

        def make() -> None:
            if made:
                return
            env = {**os.environ, "HEADRACE_DATABASE_URL": database_url}
            try:
                done = subprocess.run(
                    command, env=env, capture_output=True, text=True, check=False, timeout=_TOKENS_S
                )
            except subprocess.TimeoutExpired:
                raise HeadraceError(
                    f"the database has not stored the first token within {_TOKENS_S:g} s",
                    remedy="See what it is busy with, and start again.",
                ) from None
            if done.returncode != 0:
                last = done.stderr.strip().splitlines()[-1:] or ["it ended without a word"]
                raise HeadraceError(f"no first token could be made: {last[0]}", remedy="")
            made.append(True)

        return make

    def write_login(self) -> None:
        """Writes what commands in this home use."""
        addresses = dict.fromkeys([self.at.advertised, self.at.local])
        own = logins.Login(address=f"tls://{','.join(addresses)}", token=self.token(), tls_ca=self.ca_file)
        replace(self.home / logins.HEAD_FILE, own.as_file(self.ca_file))

    def commands(self, store_url: str | None) -> list[tuple[str, str, str]]:
        """What people run on other machines: for each purpose the command, and what it needs."""
        address = f"tls://{self.at.advertised}"
        store = store_url or (self.home / "store").as_uri()
        login = f"headrace --address {address} login --tls-ca {self.fingerprint}"
        join = (
            f"headrace worker --scheduler {address} --tls-ca {self.fingerprint} --store {store} --join TOKEN"
        )
        return [
            ("Log in:", login, f"It asks for a token: yours is in {self.folder / 'token'}."),
            (
                "Join a worker:",
                join,
                "TOKEN: `headrace worker-token create`, here, once for each worker. All workers need that store.",
            ),
        ]


def make_head(
    home: Path, listen: str | None, *, port: int, advertise: str | None, replicas: int
) -> Head | None:
    """The head node that the options ask for, with its authority; None without `--listen`.

    Raises HeadraceError, before anything is started, if it cannot be one.
    """
    if listen is None:
        if advertise is not None:
            raise _fault("--advertise", advertise, "is for --listen", "Give --listen 0.0.0.0 as well.")
        return None
    if replicas > 1:
        raise _fault(
            "--replicas",
            str(replicas),
            "cannot be combined with --listen",
            "A scheduler that dies is restarted at once.",
        )
    at = listening(listen, port=port, advertise=advertise)
    users = int(at.users.rpartition(":")[2])
    if port not in (DEFAULT_PORT, 0, users):
        raise _fault("--port", str(port), f"is not the port of --listen, {users}", "Give one of them.")
    # only a head node needs it, and it takes a tenth of a second
    from headrace_services.identity.head import ensured, fingerprint

    found = ensured(home / FOLDER / "ca", at.names, now=datetime.now(UTC))
    return Head(home=home, at=at, fingerprint=fingerprint(found.certificate))


def _fault(field: str, value: str, message: str, remedy: str) -> InvalidFieldError:
    return InvalidFieldError([Violation(field=field, value=value, message=message, remedy=remedy)])
