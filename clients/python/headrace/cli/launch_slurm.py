"""`headrace launch slurm`."""

from math import ceil
from pathlib import Path
from typing import Annotated

import typer

from headrace import durable
from headrace.cli import launching as shared
from headrace.cli.session import Session
from headrace.client import Client
from headrace.home import home_dir
from headrace.launch.decision import Kind
from headrace.launch.engine import EngineError
from headrace.launch.slurm import script
from headrace.launch.slurm.engine import SlurmEngine
from headrace.launch.slurm.tokens import TokenFolder
from headrace.lifetimes import lifetime_of
from headrace.target import Target
from headrace.userfile import MIB, UserFile

_TEMPLATE = UserFile(largest_bytes=MIB, remedy="--template names a batch script.")


def slurm(
    context: typer.Context,
    most: shared.Most,
    name: shared.Name = "workers",
    gpus_per_worker: shared.Gpus = 0,
    cpu_slots: shared.CpuSlots = 0,
    label: shared.Labels = None,
    template: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Your site's batch script: #SBATCH lines for partition, account, GPUs and memory, commands such as "
            "`module load`, and {{worker}} as the last line. {{gpus}} stands for --gpus-per-worker.",
            show_default=False,
        ),
    ] = None,
    idle_exit: shared.IdleExit = "10m",
    lifetime: shared.Lifetime = None,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Where checkpoints go: file:///DIR that all nodes mount, or s3://BUCKET/PREFIX. Default: "
            "HEADRACE_HOME/store.",
            show_default=False,
        ),
    ] = None,
    scheduler: shared.Scheduler = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="A folder that the jobs also see. Join tokens are in its folder headrace-NAME. Default: "
            "~/.headrace/launch.",
            show_default=False,
        ),
    ] = None,
    pass_env: shared.PassEnv = None,
    interval: shared.Interval = "15s",
    once: shared.Once = False,
    dry_run: shared.DryRun = False,
) -> None:
    """Submit Slurm jobs that run workers, while trials wait.

    Run it where sbatch works, such as a login node, as the user that the jobs belong to. Each job is one worker, named
    slurm-JOB-TASK. It exits when it has been idle for --idle-exit, and drains when Slurm announces the end of its time
    limit, when it is cancelled, and when it is requeued.

    If the scheduler requires certificates, the command needs an admin's login: it gives each job that starts a join
    token for this job's worker alone, so it must keep running.

    [bold]Examples[/bold]

    headrace launch slurm --max 8 --gpus-per-worker 4 --template site.sh --lifetime 12h

    headrace launch slurm --max 3 --cpu-slots 8 --once

    headrace launch slurm --max 8 --gpus-per-worker 4 --template site.sh --dry-run
    """
    session = Session.of(context)
    shared.checked_name(name)
    kind = shared.kind_of(gpus_per_worker, cpu_slots, label or [])
    turns = shared.Turns(kind=kind, most=most, interval=interval, once=once, dry_run=dry_run)
    shared.check_workers(idle_exit, lifetime, pass_env)
    limit_min = None if lifetime is None else _limit_min(lifetime)
    text = _text(template, kind)
    with session.client() as client:
        where = (folder or Path.home() / ".headrace" / "launch").expanduser().absolute()
        tokens = TokenFolder(where / f"headrace-{name}")
        command = _command(client, scheduler, kind, store, tokens, idle_exit, lifetime, pass_env or "")
        batch = script.filled(text, command)
        if command.tokens and not dry_run:
            _prepare(tokens, client.transport.target)
        shared.warn_of_loopback(session, command.scheduler, "no job on another node")
        engine = SlurmEngine(
            name=name, script=batch, tokens=tokens if command.tokens else None, time_limit_min=limit_min
        )
        shared.drive(
            session,
            engine,
            client=client,
            turns=turns,
        )


def _command(
    client: Client,
    scheduler: str | None,
    kind: Kind,
    store: str | None,
    tokens: TokenFolder,
    idle_exit: str,
    lifetime: str | None,
    pass_env: str,
) -> script.WorkerCommand:
    target = client.transport.target
    return script.WorkerCommand(
        scheduler=shared.scheduler_for(scheduler, target),
        store=store or (home_dir() / "store").as_uri(),
        kind=kind,
        idle_exit=idle_exit,
        lifetime=lifetime,
        tls_ca=str(tokens.folder / "ca.pem") if target.tls and target.tls_ca else "",
        tokens=str(tokens.folder) if target.tls else "",
        pass_env=pass_env,
    )


def _prepare(tokens: TokenFolder, target: Target) -> None:
    """The folder that the jobs see, with the authority that they trust."""
    tokens.prepare()
    if authority := shared.authority_of(target):
        try:
            durable.replace(tokens.folder / "ca.pem", authority.encode())
        except OSError as error:
            raise EngineError(f"{tokens.folder} cannot be written: {error.strerror}.", remedy="") from None


def _limit_min(lifetime: str) -> int:
    """The job's time limit in minutes, which is how Slurm counts it. Raises InvalidFieldError."""
    seconds = lifetime_of(lifetime, "--lifetime").total_seconds()
    least_s = 2 * script.SIGNAL_S
    if seconds <= least_s:
        said = f"is too short: Slurm announces its end {script.SIGNAL_S} s before"
        raise shared.refused("--lifetime", lifetime, said, f"Give more than {least_s} s.")
    return ceil(seconds / 60)


def _text(template: Path | None, kind: Kind) -> str:
    if template is None:
        return script.DEFAULT_GPUS if kind.on_gpu else script.DEFAULT
    return _TEMPLATE.text(template)
