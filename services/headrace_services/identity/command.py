"""`headrace ca`: the certificate authority of a cluster."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from cryptography import x509

from headrace.errors import HeadraceError
from headrace_services.identity import authority
from headrace_services.identity.head import fingerprint

ca = typer.Typer(
    no_args_is_help=True,
    help="Make the certificate authority of a cluster, whose workers connect with certificates.\n\n"
    "It is a folder. Each scheduler gets it with `headrace scheduler --ca DIR`. Anyone who has it can turn any "
    "machine into a worker: keep it where only schedulers run.",
)

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The authority's folder.", show_default=False)]
Hosts = Annotated[
    list[str],
    typer.Argument(
        metavar="HOST",
        help="The host names and IP addresses by which workers and users reach the schedulers.",
        show_default=False,
    ),
]


@ca.command()
def init(folder: Folder, hosts: Hosts) -> None:
    """Make an authority and a server certificate for the schedulers.

    Example: headrace ca init /etc/headrace/ca head.example.org 10.0.0.5
    """
    with _told():
        authority.make(folder, hosts, now=datetime.now(UTC))
    typer.echo(f"The authority is in {folder}. Start schedulers with --ca {folder}.")
    typer.echo(f"Users and workers need only {folder / authority.CERTIFICATE}: HEADRACE_TLS_CA, or --tls-ca.")
    typer.echo(f"Its fingerprint does as well: --tls-ca {fingerprint(authority.load_signer(folder))}")


@ca.command()
def server(
    folder: Folder,
    hosts: Hosts,
    to: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Write server.pem and server.key there, for another server than the schedulers: a planner, Grafana.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Make a new server certificate with a new key, for these hosts; restart the schedulers behind it.

    \b
    headrace ca server /etc/headrace/ca head.example.org 10.0.0.5 10.0.0.6
    headrace ca server /etc/headrace/ca plans.example.org --to /etc/headrace/planner
    """
    with _told():
        authority.make_server(folder, hosts, now=datetime.now(UTC), into=to)
    whose = "the schedulers" if to is None else "its server"
    typer.echo(f"{(to or folder) / authority.SERVER} is for {', '.join(hosts)} now. Restart {whose}.")


@ca.command()
def show(folder: Folder) -> None:
    """Show until when the authority and its server certificate last, and the fingerprint that --tls-ca takes."""
    with _told():
        found = authority.load(folder)
    for what, certificate in (
        ("authority", found.certificate),
        ("server", x509.load_pem_x509_certificate(found.server_pem)),
    ):
        until = certificate.not_valid_after_utc
        typer.echo(f"{what}: until {until:%Y-%m-%d}, {(until - datetime.now(UTC)).days} days left")
    typer.echo(f"fingerprint: {fingerprint(found.certificate)}")
    if found.certificate not in x509.load_pem_x509_certificates(found.server_pem):
        typer.echo(
            "The server certificate was made by an earlier release and does not show the authority, so --tls-ca cannot "
            f"take the fingerprint yet. Run `headrace ca server {folder} HOST…`, and restart the schedulers."
        )


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except HeadraceError as error:
        typer.echo(f"headrace ca: {error}", err=True)
        raise typer.Exit(2) from None
    except OSError as error:
        typer.echo(f"headrace ca: {error.filename}: {error.strerror}", err=True)
        raise typer.Exit(1) from None
