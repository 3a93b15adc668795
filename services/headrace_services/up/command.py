"""The command `headrace up`: options and signals."""

import asyncio
import os
import signal
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from headrace.ages import ages_of
from headrace.environment import NAMED_IN, names_to_pass
from headrace.hidden import close_to_others, hide_url
from headrace.home import home_dir
from headrace_services.up import home as up_home
from headrace_services.up.child import ChildFailedError
from headrace_services.up.children import Options, children
from headrace_services.up.head import make_head
from headrace_services.up.notices import Notices
from headrace_services.up.ports import console_listener, free_ports
from headrace_services.up.supervisor import Supervisor

CONSOLE_PORT = 7450
"""The console's port, or else the next free one."""
SAME_USER = (
    "Trials on this machine run as its user, who can read the admin's token and the authority's key. Unless you trust "
    "all studies, give --no-worker, or as root --run-as USER."
)


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
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Serve other machines too, over TLS: an IP address or a host name of this machine, perhaps with a "
            "port; 0.0.0.0 is all its addresses. An authority and a first token are made in the home. Workers connect "
            "2 ports above the users.",
            show_default=False,
        ),
    ] = None,
    advertise: Annotated[
        str | None,
        typer.Option(
            metavar="HOST",
            help="With --listen: the name or address by which other machines reach this one. Default: that of "
            "--listen; for 0.0.0.0 this machine's address in its network.",
            show_default=False,
        ),
    ] = None,
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
    run_as: Annotated[
        str | None,
        typer.Option(
            metavar="USER",
            help="Run trials of this machine's worker as this system user, who cannot read the home. Needs root.",
            show_default=False,
        ),
    ] = None,
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
    headrace up --listen 10.0.0.5          # the head node of several machines; prints how they join
    """
    hide_url(database_url)
    close_to_others()
    notices = Notices()
    began = time.monotonic()
    place = (home or home_dir()).expanduser().resolve()
    ages_of(keep or [])  # rejected here, before anything is started
    tracked = _tracked(track, place) if track else ()
    with ExitStack() as stack:
        stack.enter_context(up_home.hold(place))
        head = make_head(place, listen, port=port, advertise=advertise, replicas=replicas)
        if run_as is not None:
            up_home.let_through(place)
        elif head is not None and worker:
            notices.warn(SAME_USER)
        ports = free_ports(port, replicas) if head is None else (head.port, head.worker_port)
        planner_port = None if planner is None else free_ports(planner, 1, option="--planner")[0]
        console_socket = None
        if not no_console:
            others = [*ports, *([] if planner_port is None else [planner_port])]
            console_socket = stack.enter_context(console_listener(console, CONSOLE_PORT, others=others))
        options = Options(
            home=place,
            ports=ports,
            database_url=database_url,
            store=store,
            slots=slots,
            pass_env=",".join(names_to_pass(pass_env)) or None,
            worker=worker,
            run_as=run_as,
            planner_port=planner_port,
            console_socket=console_socket,
            heartbeat_interval_s=heartbeat_interval,
            lease_ttl_s=lease_ttl,
            track=tracked,
            keep=tuple(keep or ()),
            head=head,
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
            if options.head is not None:
                options.head.write_login()
            advertisement.enter_context(up_home.advertised(options.home, options.advertised, options.console))
            notices.ready(
                seconds=time.monotonic() - began,
                addresses=options.advertised,
                home=options.home,
                console=options.console,
            )
            if options.head is not None:
                notices.others(options.head.commands(options.store_url))

        try:
            await supervisor.run(stopping, on_ready)
        except ChildFailedError:
            given = [(port, "--port") for port in options.ports if options.head is None]
            given += [] if options.planner_port is None else [(options.planner_port, "--planner")]
            for port, option in given:
                free_ports(
                    port, 1, option=option
                )  # raises if another program took it meanwhile, with a better message
            raise


def _tracked(given: list[str], home: Path) -> tuple[tuple[str, dict[str, str]], ...]:
    """What to copy studies to, checked before anything is started, with the variables that say where."""
    from headrace.track import targets  # imports the client, which `up` does not need

    destinations = dict.fromkeys(targets.parse(text, os.environ, "--track") for text in given)
    for destination in destinations:
        destination.hide()
        targets.note_first_use(destination, home)  # before a study can be created
    return tuple(destination.arguments() for destination in destinations)
