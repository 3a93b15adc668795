"""`headrace planner`: the command that serves plans."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from headrace_services.identity.roles import Auth


def planner(
    listen: Annotated[
        str, typer.Option(help="HOST:PORT to serve on; port 0 takes a free one.")
    ] = "127.0.0.1:7441",
    workers: Annotated[int, typer.Option(min=1, max=256, help="Processes that search.")] = 2,
    insecure: Annotated[bool, typer.Option("--insecure", help="Serve other machines without TLS.")] = False,
    tls_cert: Annotated[Path | None, typer.Option(help="PEM certificate chain.", exists=True)] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM private key.", exists=True)] = None,
    auth: Annotated[
        Auth | None,
        typer.Option(
            help="Whether each call needs a token of --scheduler. Default: tokens with TLS on an address that other "
            "machines reach, else none.",
            show_default=False,
        ),
    ] = None,
    scheduler: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT[,HOST:PORT…]",
            help="The schedulers whose tokens are accepted; tls:// before the first for TLS.",
            show_default=False,
        ),
    ] = "",
    metrics_listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Serve metrics for Prometheus at this address, without a login. Default: off.",
            show_default=False,
        ),
    ] = "",
) -> None:
    """Serve training plans over gRPC (PlannerService). Stateless: run as many as you like.

    Example: headrace planner --listen 127.0.0.1:7441
    """
    from headrace_services.planner.service.server import Settings, serve

    settings = Settings(
        listen=listen,
        workers=workers,
        insecure=insecure,
        tls_cert=tls_cert,
        tls_key=tls_key,
        auth=auth,
        scheduler=scheduler,
        metrics_listen=metrics_listen,
    )
    asyncio.run(serve(settings))
