"""`headrace launch ray`."""

from typing import Annotated, Final

import typer

from headrace.cli import launching as shared
from headrace.cli.session import Session
from headrace.launch.options import worker_options
from headrace.launch.ray.cluster import connected
from headrace.launch.ray.engine import Ray
from headrace.launch.ray.worker import Worker

DRAIN_GRACE_S: Final = 60


def ray(
    context: typer.Context,
    most: shared.Most,
    store: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="Where checkpoints go: s3://BUCKET/PREFIX, or file:///DIR that all nodes mount.",
            show_default=False,
        ),
    ],
    name: shared.Name = "workers",
    gpus_per_worker: shared.Gpus = 0,
    cpu_slots: shared.CpuSlots = 0,
    cpus: Annotated[
        float | None,
        typer.Option(
            "--cpus",
            min=0,
            help="The CPUs that Ray sets aside for each worker. Default: one for each CPU slot or GPU.",
            show_default=False,
        ),
    ] = None,
    label: shared.Labels = None,
    cluster: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="Ray's address. `auto`: the cluster of this node."),
    ] = "auto",
    idle_exit: shared.IdleExit = "10m",
    lifetime: shared.Lifetime = None,
    scheduler: shared.Scheduler = None,
    pass_env: shared.PassEnv = None,
    interval: shared.Interval = "15s",
    once: shared.Once = False,
    dry_run: shared.DryRun = False,
) -> None:
    """Create actors in a Ray cluster that run workers, while trials wait.

    Run it on a node of the cluster. Each worker is one detached actor, with the GPUs and CPUs that Ray sets aside for
    it. It exits when it has been idle for --idle-exit. All nodes need Headrace in the Python that runs Ray:
    pip install 'headrace[worker]'.

    Over TLS the command needs an admin's login: it gives each actor that has started a join token for its worker alone,
    so it must keep running.

    [bold]Examples[/bold]

    headrace launch ray --max 4 --gpus-per-worker 8 --store s3://bucket/x

    headrace launch ray --max 2 --cpu-slots 4 --store file:///shared/store --once
    """
    session = Session.of(context)
    shared.checked_name(name)
    kind = shared.kind_of(gpus_per_worker, cpu_slots, label or [])
    turns = shared.Turns(kind=kind, most=most, interval=interval, once=once, dry_run=dry_run)
    shared.check_workers(idle_exit, lifetime, pass_env)
    if "://" in cluster:
        said = "is an address of Ray's client, which cannot list actors"
        raise shared.refused("--cluster", cluster, said, "Run this command on a node of the cluster.")
    with session.client() as client, connected(cluster) as actors:
        target = client.transport.target
        where = shared.scheduler_for(scheduler, target)
        shared.warn_of_loopback(session, where, "no worker on another node")
        worker = Worker(
            options=worker_options(
                scheduler=where,
                store=store,
                kind=kind,
                idle_exit=idle_exit,
                lifetime=lifetime,
                pass_env=pass_env or "",
                drain_grace_s=DRAIN_GRACE_S,
            ),
            tokens=target.tls,
            authority=shared.authority_of(target),
        )
        shared.drive(
            session,
            Ray(
                actors=actors,
                worker=worker,
                kind=kind,
                launch=name,
                cpus=kind.slots if cpus is None else cpus,
            ),
            client=client,
            turns=turns,
        )
