"""`headrace scheduler`: the command that runs a replica."""

import asyncio
import gc
import logging
from pathlib import Path
from typing import Annotated

import typer

from headrace.errors import HeadraceError
from headrace_services.identity.roles import Auth


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
    auth: Annotated[
        Auth | None,
        typer.Option(
            help="Whether each call needs a token (`headrace token create`). Default: tokens with TLS on an address "
            "that other machines reach, else none.",
            show_default=False,
        ),
    ] = None,
    worker_listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Serve workers here and not at --listen, each with a certificate of the authority in --ca. "
            "Usually port 7442.",
            show_default=False,
        ),
    ] = None,
    ca: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="The authority that signs workers' certificates (`headrace ca init DIR HOST…`). Its server "
            "certificate serves --listen too, unless --tls-cert or --insecure says otherwise.",
            show_default=False,
        ),
    ] = None,
    workers_at: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT[,HOST:PORT…]",
            help="Where workers find all schedulers' --worker-listen. Default: on the hosts that they know, at this "
            "one's port.",
            show_default=False,
        ),
    ] = None,
    worker_certificate_lifetime: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="How long a worker's certificate lasts; the worker renews it automatically."
        ),
    ] = "30d",
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
    migrate: Annotated[
        bool,
        typer.Option(
            "--migrate/--no-migrate",
            help="Migrate the database's schema at the start. Without, a schema that lacks something is refused.",
        ),
    ] = True,
    database_wait: Annotated[
        float,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="How long to wait at the start for a database that does not answer yet, before giving up.",
        ),
    ] = 300.0,
    metrics_listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Serve metrics for Prometheus at this address, without a login; they name no study. Default: off.",
            show_default=False,
        ),
    ] = "",
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
            help="Record that the database was restored from a copy of the server's files, and exit. "
            "A loaded dump is detected without this.",
        ),
    ] = False,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Run a scheduler replica over Postgres.

    Replicas hold no state: start as many as you like on one database, stop any of them at any time. The first
    one creates or migrates the schema. `headrace up` runs one for you, with an embedded Postgres.

    Keep the password of the database out of the command line: give the URL in HEADRACE_DATABASE_URL.

    \b
    headrace scheduler --database-url postgresql://headrace@db/headrace --listen 127.0.0.1:7440
    headrace scheduler --ca /etc/headrace/ca --listen 0.0.0.0:7440 --worker-listen 0.0.0.0:7442
    """
    # Imported modules stay, so garbage collections skip them, both during the start (a tenth of its time) and
    # later.
    gc.disable()
    from headrace.ages import ages_of
    from headrace.hidden import hide_url
    from headrace.lifetimes import lifetime_of
    from headrace.target import Target
    from headrace_services.scheduler import preparing
    from headrace_services.scheduler.log_aside import log_aside
    from headrace_services.scheduler.process import Settings, serve
    from headrace_services.scheduler.session.worker_session import Timing

    gc.freeze()
    gc.enable()
    logging.basicConfig(
        level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", datefmt="%H:%M:%S"
    )
    logging.getLogger("alembic").setLevel(logging.WARNING)
    hide_url(database_url)
    try:
        lives = lifetime_of(worker_certificate_lifetime, "--worker-certificate-lifetime")
        found = Target.of(workers_at, field="--workers-at").replicas if workers_at else ()
    except HeadraceError as error:
        raise typer.BadParameter(str(error)) from None
    try:
        ages = ages_of(keep or [])
        if mark_restored:
            restored = asyncio.run(preparing.mark_restored(database_url))
            count = restored.leases
            typer.echo(
                f"Noted. {count} trial{'s' * (count != 1)} that were running when the copy was made will resume from "
                "the last checkpoint that it records, in a new attempt. Start the schedulers now."
            )
            return
    except HeadraceError as error:
        typer.echo(f"headrace scheduler: {error}", err=True)
        raise typer.Exit(1) from None
    settings = Settings(
        database_url=database_url,
        listen=listen,
        worker_listen=worker_listen,
        ca=ca,
        workers_at=found,
        worker_certificate_lives=lives,
        insecure=insecure,
        tls_cert=tls_cert,
        tls_key=tls_key,
        auth=auth,
        timing=Timing(
            heartbeat_s=heartbeat_interval,
            lease_ttl_s=lease_ttl,
            stream_age_s=stream_age,
            drain_grace_s=drain_grace,
        ),
        drain_grace_s=drain_grace,
        sampler_processes=sampler_processes,
        migrates=migrate,
        database_wait_s=database_wait,
        metrics_listen=metrics_listen,
        ages=ages,
    )
    try:
        with log_aside():
            asyncio.run(serve(settings))
    except HeadraceError as error:
        typer.echo(f"headrace scheduler: {error}", err=True)
        raise typer.Exit(1) from None
