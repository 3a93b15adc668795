"""`headrace scheduler`: the command that runs a replica."""

import asyncio
import logging
from pathlib import Path
from typing import Annotated

import typer

from headrace.errors import HeadraceError


def scheduler(
    database_url: Annotated[
        str,
        typer.Option(envvar="HEADRACE_DATABASE_URL", help="postgresql://user:password@host:5432/name"),
    ],
    listen: Annotated[
        str, typer.Option(help="HOST:PORT to listen on. Port 0: any free one.")
    ] = "127.0.0.1:7440",
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Listen on other than this machine's own addresses without TLS."),
    ] = False,
    tls_cert: Annotated[Path | None, typer.Option(help="PEM certificate chain.", exists=True)] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM private key.", exists=True)] = None,
    heartbeat_interval: Annotated[
        float, typer.Option(min=0.05, help="Seconds between a worker's heartbeats.")
    ] = 3.0,
    lease_ttl: Annotated[
        float, typer.Option(min=0.1, help="Seconds of silence after which a worker loses its trials.")
    ] = 15.0,
    drain_grace: Annotated[
        float, typer.Option(min=0, help="Seconds to finish calls in when it is stopped.")
    ] = 10.0,
    stream_age: Annotated[
        float,
        typer.Option(
            min=1,
            help="Seconds after which a worker is asked to reconnect, so that workers spread over the replicas.",
        ),
    ] = 900.0,
    sampler_processes: Annotated[
        int, typer.Option(min=1, max=64, help="Processes that fit models and propose configurations.")
    ] = 2,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND=AGE",
            help="How long what has ended is kept, such as events=30d or studies=2y; again for other kinds. "
            "`headrace gc --dry-run` lists the kinds. Ages: 12h, 30d, 8w, 2y, 0, forever.",
            show_default=False,
        ),
    ] = None,
    mark_restored: Annotated[
        bool,
        typer.Option(
            "--mark-restored",
            help="Note that the database was restored from a copy of the server's files, and end. "
            "A dump that was loaded is noticed without this.",
        ),
    ] = False,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Run a scheduler replica over Postgres.

    Replicas hold no state: start as many as you like on one database, stop any of them at any time. The first
    one creates or migrates the schema. `headrace up` runs one for you, with an embedded Postgres.

    Example: headrace scheduler --database-url postgresql://headrace@db/headrace --listen 127.0.0.1:7440
    """
    from headrace.ages import ages_of
    from headrace_services.scheduler import process
    from headrace_services.scheduler.log_aside import log_aside
    from headrace_services.scheduler.process import Settings, serve
    from headrace_services.scheduler.session.worker_session import Timing

    logging.basicConfig(
        level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", datefmt="%H:%M:%S"
    )
    logging.getLogger("alembic").setLevel(logging.WARNING)
    try:
        ages = ages_of(keep or [])
        if mark_restored:
            restored = asyncio.run(process.mark_restored(database_url))
            count = restored.leases
            typer.echo(
                f"Noted. {count} trial{'s' * (count != 1)} that ran when the copy was made will go on from the last "
                "checkpoint that it knows, in a new attempt. Start the schedulers now."
            )
            return
    except HeadraceError as error:
        typer.echo(f"headrace scheduler: {error}", err=True)
        raise typer.Exit(1) from None
    settings = Settings(
        database_url=database_url,
        listen=listen,
        insecure=insecure,
        tls_cert=tls_cert,
        tls_key=tls_key,
        timing=Timing(
            heartbeat_s=heartbeat_interval,
            lease_ttl_s=lease_ttl,
            stream_age_s=stream_age,
            drain_grace_s=drain_grace,
        ),
        drain_grace_s=drain_grace,
        sampler_processes=sampler_processes,
        ages=ages,
    )
    try:
        with log_aside():
            asyncio.run(serve(settings))
    except HeadraceError as error:
        typer.echo(f"headrace scheduler: {error}", err=True)
        raise typer.Exit(1) from None
