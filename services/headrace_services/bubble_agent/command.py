"""`headrace bubble-agent`: the command that starts the agent of a machine."""

import asyncio
import logging
import socket
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.session import AsJson


def bubble_agent(
    folder: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder in memory that ranks, trials and this agent share; the same for all of them. "
            "Default: HEADRACE_BUBBLES, else a folder of this user's in /dev/shm.",
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="The name of this agent for other agents. Default: the host's name.")
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="Listen here for agents of other machines; port 0 takes a free one."
        ),
    ] = None,
    peer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Another machine's agent, which runs stages of the same job. Repeat the option for more.",
        ),
    ] = None,
    worker_home: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Home of a worker on this machine that has joined: agents present its certificate to each other.",
        ),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen where other machines reach it, without TLS.")
    ] = False,
    as_json: AsJson = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log in more detail.")] = False,
) -> None:
    """Let trials run in the idle windows of this machine's pipeline-parallel training jobs.

    The training job attaches with one line, `headrace_torch.bubbles.attach(engine)`.
    The agent learns when its stages wait, and permits trials to work then. It
    compares steps with and without trials, and gives trials less where they
    slow the job. `headrace bubbles` shows what it sees.

    Kill it at any time: the job continues, and no gate stays open.

    \b
    headrace bubble-agent
    headrace bubble-agent --listen 10.0.0.5:7444 --worker-home DIR --peer 10.0.0.6:7444
    """
    from headrace_services.bubble_agent.process import Settings, serve
    from headrace_torch.bubble_shm import folder as default_folder

    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    settings = Settings(
        folder=(folder or default_folder()).expanduser().absolute(),
        name=name or socket.gethostname(),
        listen=listen or "",
        peers=tuple(peer or ()),
        worker_home=worker_home.expanduser().absolute() if worker_home else None,
        insecure=insecure,
        as_json=as_json,
    )
    asyncio.run(serve(settings))
