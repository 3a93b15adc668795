"""`headrace worker`: the command that starts a worker daemon."""

import asyncio
import logging
import os
import socket
from pathlib import Path
from typing import Annotated

import typer

from headrace.hidden import close_to_others
from headrace.mps import Mode
from headrace.spec import names
from headrace_worker.arguments import LABEL, checked, labels_of, run_as_with_bubbles


def worker(
    scheduler: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT[,HOST:PORT…]",
            help="The schedulers' addresses, or some of them; tls:// before the "
            "first for TLS. Default: HEADRACE_ADDRESS, else that of `headrace up`.",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            help="The worker's name, the same after a restart and unique in the cluster. Default: the host name."
        ),
    ] = None,
    home: Annotated[
        Path | None,
        typer.Option(
            help="Where the outbox, the trial logs and scratch files go. Default: HEADRACE_HOME/workers/NAME."
        ),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Where checkpoints go, the same for all workers: file:///DIR on a file system that all of them "
            "mount, or s3://BUCKET/PREFIX (with AWS_* variables). Default: HEADRACE_HOME/store.",
        ),
    ] = None,
    cpu_slots: Annotated[
        int | None,
        typer.Option(
            help="How many trials may run on CPU at once. Default: half the cores where there is no GPU, else none."
        ),
    ] = None,
    fake_gpus: Annotated[
        int, typer.Option(help="Offer this many fake GPUs, to try out placement on a laptop.")
    ] = 0,
    fake_links: Annotated[
        str,
        typer.Option(
            metavar="KIND:SIZE,…",
            help="The interconnect of the fake GPUs: nvlink:2,numa:4 connects pairs by NVLink and puts groups "
            "of four on one NUMA node.",
            show_default=False,
        ),
    ] = "",
    label: Annotated[
        list[str] | None,
        typer.Option(
            metavar=LABEL,
            help="A label that a study's resources can require. Repeat the option for more.",
        ),
    ] = None,
    tls_ca: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Connect with TLS and trust this certificate authority: a file in PEM, or its fingerprint, sha256:…. "
            "Default: HEADRACE_TLS_CA.",
        ),
    ] = None,
    join: Annotated[
        str | None,
        typer.Option(
            metavar="TOKEN|@FILE|-",
            envvar="HEADRACE_JOIN_TOKEN",
            help="Join with this token (`headrace worker-token create`) unless there is a certificate already, which "
            "then renews itself. @FILE and - (standard input) keep it out of the command line. The file is "
            "removed once its token is used up.",
            show_default=False,
        ),
    ] = None,
    pass_env: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[,PREFIX*…]",
            envvar="HEADRACE_PASS_ENV",
            help="Environment variables to pass to trials, besides the usual ones.",
        ),
    ] = None,
    run_as: Annotated[
        str | None,
        typer.Option(
            metavar="USER",
            help="Run trials as this system user, who cannot read the worker's files. The worker must run as root.",
            show_default=False,
        ),
    ] = None,
    stop_grace: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="How long trials may take to end when the worker is stopped."),
    ] = 10.0,
    drain_grace: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="How long trials have, after SIGTERM or a spot notice, to save at their next reports "
            "and resume elsewhere.",
        ),
    ] = 30.0,
    spot_notice_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A file that appears when this machine is about to be reclaimed: the worker then "
            "drains, as after SIGTERM.",
            show_default=False,
        ),
    ] = None,
    idle_exit: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Exit when no trial has run here for this long: 90s, 10m or 1h. Default: never.",
            show_default=False,
        ),
    ] = None,
    lifetime: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Exit before this time is over, such as the time limit of a batch job: 30m, 4h or 2d. It drains "
            "earlier, by --drain-grace, --stop-grace and 10 seconds. Default: no limit.",
            show_default=False,
        ),
    ] = None,
    ephemeral: Annotated[
        bool,
        typer.Option(
            "--ephemeral",
            help="This worker never returns: it disappears from the cluster when it has exited, or within minutes "
            "if it is killed.",
        ),
    ] = False,
    prestart: Annotated[
        bool,
        typer.Option(
            help="While a trial of a Python callable runs, import its module in a standby process, so "
            "that the slot's next trial starts at once."
        ),
    ] = True,
    code_cache: Annotated[
        float,
        typer.Option(
            metavar="GIB",
            min=0.2,
            help="How much disk the code of studies may use, and the same again for its requirements. The "
            "least recently used is deleted first.",
        ),
    ] = 20.0,
    bubbles: Annotated[
        bool,
        typer.Option(
            "--bubbles",
            help="Also run a bubble agent, and offer the stages of pipeline-parallel jobs on this machine as "
            "slots: studies with `bubbles: true` run there while the job waits. "
            "With --cpu-slots 0 it offers nothing else.",
        ),
    ] = False,
    mps: Annotated[
        Mode,
        typer.Option(
            help="Whether trials that share a GPU (gpus: 0.25) run at the same time, through NVIDIA's MPS. auto: if "
            "this machine can, else they take turns; on: no share starts without MPS; off: they take turns. The worker "
            "starts and ends MPS's control daemon, or uses one that runs already.",
        ),
    ] = Mode.AUTO,
    metrics_listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Serve metrics for Prometheus at this address, without a login; they name no study. Default: off.",
            show_default=False,
        ),
    ] = "",
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log in more detail.")] = False,
) -> None:
    """Run trials on this machine: one slot per GPU, or CPU slots where there is none.

    The worker connects to a scheduler, starts a process for each trial that it
    is assigned, and keeps what trials report on disk until the scheduler has it.
    It can lose the scheduler, be killed or be restarted at any time: no report
    is lost, and interrupted trials resume from their checkpoints.

    SIGTERM drains it: nothing new starts, each trial saves at its next report
    and resumes elsewhere, and the worker ends when it is empty. A second SIGTERM,
    or Ctrl-C, stops it at once: its trials are requeued from their last
    checkpoints. One more does not wait for them.

    \b
    headrace worker --scheduler 10.0.0.5:7440
    headrace worker --scheduler a:7440,b:7440 --store s3://bucket/checkpoints --label zone=eu
    headrace worker --scheduler tls://head:7440 --tls-ca ca.pem --join @token
    headrace worker --scheduler 10.0.0.5:7440 --drain-grace 110 --spot-notice-file /run/spot-notice
    headrace worker --scheduler 10.0.0.5:7440 --idle-exit 10m --lifetime 4h --ephemeral
    """
    from headrace.environment import names_to_pass
    from headrace.errors import HeadraceError, InvalidFieldError
    from headrace.home import home_dir
    from headrace.lifetimes import seconds_of
    from headrace.scraping import parse_listen
    from headrace_worker.daemon import Daemon
    from headrace_worker.home import AlreadyRunningError
    from headrace_worker.join_token import given
    from headrace_worker.reach import target_of
    from headrace_worker.run_as import other_user
    from headrace_worker.settings import WorkerSettings
    from headrace_worker.stay import StayLimits

    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    ours = checked(names.WORKER, name or socket.gethostname(), "--name")
    try:
        token = given(join)
        close_to_others()
        target = target_of(scheduler, tls_ca)
        target.credentials()  # which now says what is wrong with them
        pass_names = names_to_pass(pass_env)
        user = other_user(run_as) if run_as is not None else None
        if user is not None and bubbles:
            raise run_as_with_bubbles()
        if metrics_listen:
            parse_listen(metrics_listen)
        stay = StayLimits.of(
            idle_s=seconds_of(idle_exit, "--idle-exit"),
            lifetime_s=seconds_of(lifetime, "--lifetime"),
            drain_grace_s=drain_grace,
            stop_grace_s=stop_grace,
        )
    except InvalidFieldError as error:
        raise typer.BadParameter(str(error)) from None
    labels = labels_of(label or [], ephemeral=ephemeral)
    if spot_notice_file is not None and spot_notice_file.exists():
        said = f"{spot_notice_file} already exists: this machine is about to be reclaimed. Remove it if it is old."
        raise typer.BadParameter(said, param_hint="--spot-notice-file")
    users_umask = os.umask(0o077)  # only its user may read what a worker keeps
    settings = WorkerSettings(
        name=ours,
        home=(home or home_dir() / "workers" / ours).expanduser().absolute(),
        schedulers=target.replicas,
        store_url=store or (home_dir() / "store").as_uri(),
        cpu_slots=cpu_slots,
        fake_gpus=fake_gpus,
        fake_links=fake_links,
        labels=labels,
        tls=target.tls,
        tls_ca=target.tls_ca,
        join_token=token,
        stop_grace_s=stop_grace,
        pass_env=pass_names,
        run_as=user,
        trial_umask=users_umask,
        drain_grace_s=drain_grace,
        stay=stay,
        spot_notice=spot_notice_file.expanduser().absolute() if spot_notice_file is not None else None,
        prestart=prestart,
        code_cache_bytes=int(code_cache * 2**30),
        bubbles=bubbles,
        mps=mps,
        metrics_listen=metrics_listen,
    )

    async def serve() -> None:
        await Daemon(settings).run()

    try:
        asyncio.run(serve())
    except (AlreadyRunningError, HeadraceError, ValueError) as error:
        typer.echo(f"headrace worker: {error}", err=True)
        raise typer.Exit(1) from None
    finally:
        os.umask(users_umask)
