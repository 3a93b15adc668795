"""The command `headrace up`: options, the list of children, signals."""

import asyncio
import os
import signal
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated
from uuid import uuid4

import typer

from headrace.ages import ages_of
from headrace.environment import NAMED_IN, names_to_pass
from headrace.hidden import close_to_others, hide_url
from headrace.home import home_dir
from headrace.ports import HOST
from headrace_services.instance import NAMED_IN as INSTANCE
from headrace_services.up import home as up_home
from headrace_services.up.child import ChildFailedError, ChildSpec
from headrace_services.up.notices import Notices
from headrace_services.up.ports import free_ports, next_free_port
from headrace_services.up.postgres import EmbeddedPostgres
from headrace_services.up.probe import console_serves, scheduler_serves, worker_connected
from headrace_services.up.supervisor import BACKOFF_LONGEST_S, Supervisor

WORKER_NAME = "local"
CONSOLE_PORT = 7450
"""The console's port, or else the next free one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The settings of `headrace up`."""

    home: Path
    ports: tuple[int, ...]
    database_url: str | None = None
    store: str | None = None
    slots: int | None = None
    pass_env: str | None = None
    worker: bool = True
    planner_port: int | None = None
    """Where a planner listens; None: there is no planner."""
    console_port: int | None = None
    """Where the console listens; None: there is none."""
    heartbeat_interval_s: float | None = None
    lease_ttl_s: float | None = None
    track: tuple[tuple[str, dict[str, str]], ...] = ()
    """What exporters write to, one process for each: the value of `--to`, and variables of the environment."""
    keep: tuple[str, ...] = ()
    """How long old data is kept, in the form that the schedulers take."""
    instance: str = field(default_factory=lambda: uuid4().hex)
    """Distinguishes this run's servers from those of another."""

    @property
    def addresses(self) -> list[str]:
        """One per scheduler."""
        return [f"{HOST}:{port}" for port in self.ports]

    @property
    def console(self) -> str | None:
        """The console's address."""
        return None if self.console_port is None else f"http://{HOST}:{self.console_port}"


def up(
    home: Annotated[
        Path | None,
        typer.Option(
            help="Where everything is kept. Default: HEADRACE_HOME, else ~/.headrace.", show_default=False
        ),
    ] = None,
    port: Annotated[
        int,
        typer.Option(min=0, max=65535, help="Where the scheduler listens on this machine; 0: any free port."),
    ] = 7440,
    slots: Annotated[
        int | None,
        typer.Option(
            min=1, help="How many trials may run on CPU at once. Default: half the cores if there is no GPU."
        ),
    ] = None,
    replicas: Annotated[
        int, typer.Option(min=1, max=16, help="Schedulers to run; all but the first on any free port.")
    ] = 1,
    database_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Your own Postgres (postgresql://USER@HOST/DATABASE) instead of the built-in one.",
        ),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Where checkpoints go: a folder, or s3://BUCKET/PREFIX. Default: `store` in the home.",
        ),
    ] = None,
    pass_env: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[,PREFIX*…]",
            envvar=NAMED_IN,
            help="Variables of this environment that trials get in addition to the usual ones.",
        ),
    ] = None,
    worker: Annotated[
        bool, typer.Option("--worker/--no-worker", help="Run a worker on this machine.")
    ] = True,
    heartbeat_interval: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="How often workers send a heartbeat.")
    ] = None,
    planner: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            metavar="PORT",
            help="Serve training plans too, at this port; 0: any free one.",
            show_default=False,
        ),
    ] = None,
    console: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            metavar="PORT",
            help="Where the console, a web page, listens on this machine; 0: any free port. Default: 7450, or the "
            "next free one.",
            show_default=False,
        ),
    ] = None,
    no_console: Annotated[bool, typer.Option("--no-console", help="Run no console.")] = False,
    lease_ttl: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="How long a worker may be silent before it loses its trials."),
    ] = None,
    track: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOOL=WHERE",
            help="Copy all studies of one project to a tracker, as `headrace track --to` does, such as mlflow=URI; "
            "repeat for others. The project is HEADRACE_PROJECT, or that of HEADRACE_TOKEN.",
            show_default=False,
        ),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND=AGE",
            help="How long old data is kept, such as logs=2w; repeat for other kinds. "
            "`headrace gc --dry-run` lists them.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run all of Headrace on this machine: Postgres, a scheduler, a worker and a web page, until Ctrl-C.

    Nothing needs to be installed or set up first. Whatever dies is restarted. Studies, checkpoints and logs are
    kept in the home folder, so the next `headrace up` continues where this one stopped.

    Ctrl-C or SIGTERM stops all cleanly, the worker first and the database last. A second one kills.

    \b
    headrace up                            # on 127.0.0.1:7440, everything in ~/.headrace
    headrace up --slots 2                  # at most two trials at once
    headrace up --home ./here --port 0     # a second one beside the first
    headrace up --track tensorboard=runs   # and copy every trial there
    headrace up --no-worker                # workers run elsewhere (headrace worker --scheduler HOST:PORT)
    """
    hide_url(database_url)
    close_to_others()
    notices = Notices()
    began = time.monotonic()
    place = (home or home_dir()).expanduser().resolve()
    ages_of(keep or [])  # rejected here, before anything is started
    tracked = _tracked(track, place) if track else ()
    with up_home.hold(place):
        options = Options(
            home=place,
            ports=free_ports(port, replicas),
            database_url=database_url,
            store=store,
            slots=slots,
            pass_env=",".join(names_to_pass(pass_env)) or None,
            worker=worker,
            planner_port=None if planner is None else free_ports(planner, 1)[0],
            console_port=None if no_console else _console_port(console),
            heartbeat_interval_s=heartbeat_interval,
            lease_ttl_s=lease_ttl,
            track=tracked,
            keep=tuple(keep or ()),
        )
        asyncio.run(run(options, notices, began))
    notices.stopped(place)


async def run(options: Options, notices: Notices, began: float) -> None:
    stopping = asyncio.Event()
    supervisor = Supervisor(children(options), announce=notices)

    def on_signal(which: signal.Signals) -> None:
        if stopping.is_set():
            notices.killing()
            supervisor.kill()
        else:
            notices.stopping(which.name)
            stopping.set()

    loop = asyncio.get_running_loop()
    for which in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if which is signal.SIGINT or signal.getsignal(which) is not signal.SIG_IGN:  # nohup ignores SIGHUP
            loop.add_signal_handler(which, on_signal, which)
    with ExitStack() as advertisement:

        def on_ready() -> None:
            advertisement.enter_context(up_home.advertised(options.home, options.addresses, options.console))
            notices.ready(
                seconds=time.monotonic() - began,
                addresses=options.addresses,
                home=options.home,
                console=options.console,
            )

        try:
            await supervisor.run(stopping, on_ready)
        except ChildFailedError:
            for port in (*options.ports, *filter(None, [options.planner_port])):
                free_ports(port, 1)  # raises if another program took it meanwhile, with a better message
            raise


def children(options: Options) -> list[ChildSpec]:
    """What to run, in the order of starting."""
    home, logs = options.home, options.home / "logs"
    specs = []
    database_url = options.database_url
    if database_url is None:
        postgres = EmbeddedPostgres(data_dir=home / "postgres", log_path=logs / "postgres.log")
        database_url = postgres.url
        specs.append(postgres.child())
    env = {"HEADRACE_HOME": str(home), INSTANCE: options.instance}
    timing = _option("--heartbeat-interval", options.heartbeat_interval_s) + _option(
        "--lease-ttl", options.lease_ttl_s
    )
    ages = [word for one in options.keep for word in ("--keep", one)]
    for index, address in enumerate(options.addresses):
        name = f"scheduler-{index + 1}" if len(options.addresses) > 1 else "scheduler"
        specs.append(
            ChildSpec(
                name=name,
                command=_headrace("scheduler", "--listen", address, *timing, "--database-wait", "0", *ages),
                env={**env, "HEADRACE_DATABASE_URL": database_url},
                log_path=logs / f"{name}.log",
                ready=scheduler_serves(address, options.instance),
                stop_grace_s=15,
            )
        )
    if options.worker:
        where = ("--scheduler", ",".join(options.addresses), "--name", WORKER_NAME)
        specs.append(
            ChildSpec(
                name="worker",
                command=_headrace(
                    "worker",
                    *where,
                    *_option("--store", _store_url(options.store)),
                    *_option("--cpu-slots", options.slots),
                    *_option("--pass-env", options.pass_env),
                ),
                env=env,
                log_path=logs / "worker.log",
                ready=worker_connected(options.addresses[0], WORKER_NAME),
                stop_signal=signal.SIGINT,  # at SIGTERM it would drain, and trials have nowhere else to go
            )
        )
    if options.planner_port is not None:
        address = f"{HOST}:{options.planner_port}"
        specs.append(
            ChildSpec(
                name="planner",
                command=_headrace("planner", "--listen", address, "--workers", "1"),
                env=env,
                log_path=logs / "planner.log",
                ready=scheduler_serves(address, options.instance),
                stop_grace_s=15,
            )
        )
    for number, (target, variables) in enumerate(options.track, 1):
        specs.append(
            ChildSpec(
                name=f"track-{number}" if len(options.track) > 1 else "track",
                command=_headrace("track", "--all", "--to", target, "--address", ",".join(options.addresses)),
                env={**env, **variables},
                log_path=logs / f"track-{number}.log",
                longest_pause_s=BACKOFF_LONGEST_S,  # it ends by itself only if it is rejected, and would be again
                steady_after_s=60,
            )
        )
    if options.console_port is not None:
        listen = f"{HOST}:{options.console_port}"
        specs.append(
            ChildSpec(
                name="console",
                command=_headrace("console", "--listen", listen, "--address", ",".join(options.addresses)),
                env=env,
                log_path=logs / "console.log",
                ready=console_serves(options.console_port),
                needed=False,  # studies run without it
                longest_pause_s=BACKOFF_LONGEST_S,
                stop_grace_s=5,
            )
        )
    return specs


def _console_port(given: int | None) -> int:
    return next_free_port(CONSOLE_PORT) if given is None else free_ports(given, 1)[0]


def _tracked(given: list[str], home: Path) -> tuple[tuple[str, dict[str, str]], ...]:
    """What to copy studies to, checked before anything is started, with the variables that say where."""
    from headrace.track import targets  # imports the client, which `up` does not need

    destinations = dict.fromkeys(targets.parse(text, os.environ, "--track") for text in given)
    for destination in destinations:
        destination.hide()
        targets.note_first_use(destination, home)  # before a study can be created
    return tuple(destination.arguments() for destination in destinations)


def _store_url(store: str | None) -> str | None:
    """A folder as the URL that a worker takes; a URL unchanged."""
    return store if store is None or "://" in store else Path(store).expanduser().resolve().as_uri()


def _headrace(*arguments: str) -> tuple[str, ...]:
    """A command of this installation, whatever PATH says."""
    return (sys.executable, "-m", "headrace.cli", *arguments)


def _option(name: str, value: float | str | None) -> tuple[str, ...]:
    return () if value is None else (name, f"{value}")
