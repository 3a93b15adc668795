"""What `headrace up` runs: its settings, and the list of children."""

import signal
import socket
import sys
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from headrace.home import CONSOLE_ENV
from headrace.ports import HOST
from headrace_services.instance import NAMED_IN as INSTANCE
from headrace_services.up.child import ChildSpec, nothing
from headrace_services.up.head import Head
from headrace_services.up.postgres import EmbeddedPostgres
from headrace_services.up.probe import console_serves, scheduler_serves, worker_connected
from headrace_services.up.supervisor import BACKOFF_LONGEST_S

WORKER_NAME = "local"
HEAD_WORKER_NAME = "head"
"""Another one, hence another home: a certificate in it would keep the worker from a scheduler without them."""


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
    run_as: str | None = None
    """The user that the worker's trials run as; None: the user of `up`."""
    planner_port: int | None = None
    """Where a planner listens; None: there is no planner."""
    console_socket: socket.socket | None = None
    """Where the console listens; None: there is none."""
    heartbeat_interval_s: float | None = None
    lease_ttl_s: float | None = None
    track: tuple[tuple[str, dict[str, str]], ...] = ()
    """What exporters write to, one process for each: the value of `--to`, and variables of the environment."""
    keep: tuple[str, ...] = ()
    """How long old data is kept, in the form that the schedulers take."""
    head: Head | None = None
    """How other machines reach this one; None: they do not."""
    instance: str = field(default_factory=lambda: uuid4().hex)
    """Distinguishes this run's servers from those of another."""

    @property
    def listens(self) -> list[str]:
        """Where each scheduler listens."""
        return [f"{HOST}:{port}" for port in self.ports] if self.head is None else [self.head.at.users]

    @property
    def addresses(self) -> list[str]:
        """Where the other children find each scheduler."""
        return self.listens if self.head is None else [f"tls://{self.head.at.local}"]

    @property
    def advertised(self) -> list[str]:
        """Where everybody finds each scheduler."""
        return self.listens if self.head is None else [f"tls://{self.head.at.advertised}"]

    @property
    def store_url(self) -> str | None:
        """The checkpoint store as workers take it; None: the default, in the home."""
        return _store_url(self.store)

    @property
    def console(self) -> str | None:
        """The console's address."""
        return None if self.console_socket is None else f"http://{HOST}:{_port_of(self.console_socket)}"


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
    head = options.head
    access = () if head is None else head.scheduler_options()
    joining = () if head is None else head.worker_options()
    worker_name = WORKER_NAME if head is None else HEAD_WORKER_NAME
    trust = () if head is None else ("--tls-ca", str(head.ca_file))
    tls = None if head is None else head.ca_file
    timing = _option("--heartbeat-interval", options.heartbeat_interval_s) + _option(
        "--lease-ttl", options.lease_ttl_s
    )
    ages = [word for one in options.keep for word in ("--keep", one)]
    for index, address in enumerate(options.listens):
        name = f"scheduler-{index + 1}" if len(options.addresses) > 1 else "scheduler"
        specs.append(
            ChildSpec(
                name=name,
                command=_headrace(
                    "scheduler", "--listen", address, *access, *timing, "--database-wait", "0", *ages
                ),
                env={**env, "HEADRACE_DATABASE_URL": database_url},
                log_path=logs / f"{name}.log",
                prepare=nothing
                if head is None
                else head.tokens(database_url, worker_name if options.worker else None),
                ready=scheduler_serves(address if head is None else head.at.local, options.instance, tls),
                stop_grace_s=15,
            )
        )
    if options.worker:
        where = ("--scheduler", ",".join(options.addresses), "--name", worker_name)
        specs.append(
            ChildSpec(
                name="worker",
                command=_headrace(
                    "worker",
                    *where,
                    *joining,
                    *_option("--store", options.store_url),
                    *_option("--cpu-slots", options.slots),
                    *_option("--pass-env", options.pass_env),
                    *_option("--run-as", options.run_as),
                ),
                env=env,
                log_path=logs / "worker.log",
                ready=worker_connected(
                    options.addresses[0].removeprefix("tls://"),
                    worker_name,
                    tls,
                    None if head is None else head.token,
                ),
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
    console = {} if options.console is None else {CONSOLE_ENV: options.console}  # that of this service
    for number, (target, variables) in enumerate(options.track, 1):
        specs.append(
            ChildSpec(
                name=f"track-{number}" if len(options.track) > 1 else "track",
                command=_headrace("track", "--all", "--to", target, "--address", ",".join(options.addresses)),
                env={**env, **variables, **console},
                log_path=logs / f"track-{number}.log",
                longest_pause_s=BACKOFF_LONGEST_S,  # it ends by itself only if it is rejected, and would be again
                steady_after_s=60,
            )
        )
    if options.console_socket is not None:
        number = options.console_socket.fileno()
        listen = f"fd:{number}"
        specs.append(
            ChildSpec(
                name="console",
                command=_headrace(
                    "console", "--listen", listen, "--address", ",".join(options.addresses), *trust
                ),
                sockets=(number,),
                env=env,
                log_path=logs / "console.log",
                ready=console_serves(_port_of(options.console_socket)),
                needed=False,  # studies run without it
                longest_pause_s=BACKOFF_LONGEST_S,
                stop_grace_s=5,
            )
        )
    return specs


def _port_of(listener: socket.socket) -> int:
    return int(listener.getsockname()[1])


def _store_url(store: str | None) -> str | None:
    """A folder as the URL that a worker takes; a URL unchanged."""
    return store if store is None or "://" in store else Path(store).expanduser().resolve().as_uri()


def _headrace(*arguments: str) -> tuple[str, ...]:
    """A command of this installation, whatever PATH says."""
    return (sys.executable, "-m", "headrace.cli", *arguments)


def _option(name: str, value: float | str | None) -> tuple[str, ...]:
    return () if value is None else (name, f"{value}")
