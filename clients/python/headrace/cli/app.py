"""The assembled command line: the root with its global options, our commands, and those of installed extras."""

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import EntryPoint, EntryPoints, distribution, entry_points, version
from typing import Annotated

import typer

from headrace.cli.failure import USAGE, CommandError
from headrace.cli.session import Session
from headrace.errors import HeadraceError

GROUP = "headrace.commands"
SERVICES = {
    "up": (
        "services",
        "Run all of Headrace on this machine: Postgres, a scheduler, a worker and a web page.",
    ),
    "scheduler": ("services", "Run a scheduler over a Postgres database."),
    "worker": ("worker", "Run trials on this machine's GPUs or CPU slots for a scheduler."),
    "ca": ("services", "Create the certificate authority of a cluster whose workers join with tokens."),
    "migrate": ("services", "Upgrade the database schema, or report what an upgrade would do."),
    "console": ("services", "Serve web pages that show studies, trials and the cluster, live."),
    "planner": ("services", "Serve training plans over gRPC."),
    "plan": ("services", "Plan how to split a training job over a cluster."),
    "bubble-agent": ("services", "Let trials run in the idle windows of this machine's pipelines."),
    "bubbles": ("services", "Show the pipelines of a machine, their windows, and what trials did in them."),
    "simulate": ("services", "Run a study on a virtual cluster: what each policy would cost and find."),
    "replay": ("services", "Compare every decision of a study with a replay of its event log."),
}
"""The commands that start services: the extra that provides each, and its line in the list of commands."""

ELSEWHERE = {
    "create": "run",
    "enqueue": "add",
    "start": "run",
    "optimize": "run",
    "list": "studies",
    "ls": "studies",
    "status": "show",
    "info": "show",
    "history": "events",
    "clean": "gc",
    "prune": "gc",
    "dashboard": "console",
    "ui": "console",
    "cancel": "stop",
    "remove": "delete",
    "rerun": "retry",
    "restart": "retry",
    "continue": "extend",
    "rm": "delete",
    "mlflow": "track",
    "wandb": "track",
    "tensorboard": "track",
    "tag": "annotate",
    "note": "annotate",
    "diff": "compare",
    "auth": "login",
    "tokens": "token",
}
"""What other tools call our commands, with our names for them."""


def build(wanted: str | None = None) -> typer.Typer:
    """The application, ready to run the command `wanted`. Without one, all our commands are imported, to be
    listed.

    Of the other commands only the names are registered: `headrace worker` does not need the client.
    """
    if wanted in ELSEWHERE:
        raise CommandError(
            f"There is no command '{wanted}'.",
            remedy=f"Did you mean `headrace {ELSEWHERE[wanted]}`?",
            code=USAGE,
        )
    app = typer.Typer(
        name="headrace",
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        epilog="Exit codes: 0 done, 1 failed, 2 wrong input (nothing was started), 130 interrupted.",
    )
    app.callback()(root)
    for panel, commands in PANELS.items():
        for name, module in commands.items():
            _add(app, name, _own(name, module) if wanted in (None, name) else _not_called, panel)
    add_services(app, wanted)
    app.command("doctor", rich_help_panel="Serve")(
        _own("doctor", "doctor") if wanted in (None, "doctor") else _not_called
    )
    app.command("version", rich_help_panel="Serve")(show_version)
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"headrace {version('headrace')}")
        raise typer.Exit


def root(
    context: typer.Context,
    address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="The scheduler's address. Default: HEADRACE_ADDRESS, or that of `headrace up` on this machine.",
            show_default=False,
        ),
    ] = None,
    _: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Headrace tunes hyperparameters: it races trials against each other and stops the losers early.

    [bold]Get started[/bold]

    headrace run study.yaml --local           # everything on this machine, with one command

    headrace up                               # or: keep a scheduler and a worker running here, and in another window

    headrace run study.yaml
    """
    context.obj = Session(address=address)


def show_version(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print the version."""
    output = Session.of(context).output
    number = version("headrace")
    if as_json:
        output.json({"version": number})
    else:
        output.line(f"headrace {number}")


def _add(app: typer.Typer, name: str, function: Callable[..., object] | typer.Typer, panel: str) -> None:
    if isinstance(function, typer.Typer):
        app.add_typer(function, name=name, rich_help_panel=panel)
    else:
        app.command(name, rich_help_panel=panel)(function)


def _own(name: str, module: str) -> Callable[..., object] | typer.Typer:
    command: Callable[..., object] | typer.Typer = getattr(
        import_module(f"headrace.cli.{module}"), name.replace("-", "_")
    )
    return command


PANELS: dict[str, dict[str, str]] = {
    "Tune": {"run": "run", "attach": "run", "preview": "preview", "check": "check"},
    "Look": {
        "studies": "listings",
        "show": "show",
        "best": "best",
        "lineage": "lineage",
        "trials": "listings",
        "why": "why",
        "events": "events",
        "logs": "logs",
        "workers": "listings",
        "cluster": "cluster",
        "checkpoint": "checkpoint",
        "export": "export",
        "compare": "compare",
        "report": "report",
        "track": "track",
    },
    "Steer": {
        "annotate": "annotate",
        "add": "add",
        "retry": "retry",
        "extend": "extend",
        "pause": "control",
        "resume": "control",
        "stop": "control",
        "delete": "control",
        "gc": "gc",
        "project": "projects",
        "worker-token": "worker_token",
        "launch": "launch",
        "drain": "drain",
        "undrain": "drain",
        "cordon": "drain",
        "uncordon": "drain",
    },
    "Access": {"login": "login", "logout": "login", "token": "token"},
}
"""Our own commands and their modules, in the groups and the order of `--help`."""


def add_services(app: typer.Typer, wanted: str | None) -> None:
    """Adds the commands that are defined next to the services that they start.

    Only the command that is called is imported: `headrace studies` does not need a database driver. A command
    whose extra is not installed says so when it is called.
    """
    points = {point.name: point for point in _points(wanted)}
    for name in dict.fromkeys([*SERVICES, *points]):
        extra, line = SERVICES.get(name, ("services", "A command of an installed package."))
        function = _load(points.get(name), name, extra) if name == wanted else _not_called
        if isinstance(function, typer.Typer):
            _add(app, name, function, "Serve")
        else:
            app.command(name, rich_help_panel="Serve", help=None if name == wanted else line)(function)


def _points(wanted: str | None) -> EntryPoints:
    """The commands of the installed packages; only ours, if one of ours is called, because there may be hundreds
    of packages.
    """
    if wanted in SERVICES:
        return distribution("headrace").entry_points.select(group=GROUP)
    return entry_points(group=GROUP)


def _load(point: EntryPoint | None, name: str, extra: str) -> Callable[..., object] | typer.Typer:
    if point is None:
        raise _missing(name, extra)
    try:
        command: Callable[..., object] | typer.Typer = point.load()
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in ("headrace", "headrace_services", "headrace_worker"):
            raise
        raise _missing(name, extra, error.name) from None
    return command


def _missing(name: str, extra: str, module: str | None = None) -> HeadraceError:
    from headrace.client.missing import (
        MissingExtraError,  # imports the client, which service commands do not need
    )

    return MissingExtraError.of(f"`headrace {name}`", extra, module)


def _not_called() -> None:
    """A placeholder for a service's command in the list of commands."""
