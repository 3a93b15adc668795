"""`headrace console`: the command that serves the pages."""

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.session import Session


def console(
    context: typer.Context,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where to serve the pages; port 0 takes a free one.")
    ] = "127.0.0.1:7450",
    host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A further name under which browsers reach it, such as that of a proxy. Repeat for more.",
            show_default=False,
        ),
    ] = None,
    root_path: Annotated[
        str, typer.Option(metavar="PATH", help="The path under which a proxy serves it, such as /headrace.")
    ] = "",
    https: Annotated[
        bool, typer.Option("--https", help="Browsers reach it over HTTPS, through a proxy.")
    ] = False,
    tls_ca: Annotated[
        Path | None,
        typer.Option(
            help="The certificate authority of the scheduler (PEM), or its fingerprint, sha256:….",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Serve web pages that show studies, trials and the cluster, live.

    Each user logs in with a token, and sees what that token may see. With a scheduler that asks for no token, there is
    no login, and the console listens on this machine alone.

    \b
    headrace console                                   # for `headrace up` on this machine
    headrace console --address tls://head:7440 --listen 0.0.0.0:7450 --host tune.example.com --https
    """
    from headrace_services.console.server import Options, serve

    serve(
        Options(
            address=Session.of(context).address,
            listen=listen,
            hosts=tuple(host or ()),
            root_path=root_path,
            https=https,
            tls_ca=tls_ca,
        )
    )
