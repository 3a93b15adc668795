"""What the commands of `headrace launch` share: their options, and the loop in a terminal."""

import signal
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Annotated

import typer

from headrace import worker_labels
from headrace.cli import wording
from headrace.cli.failure import tell
from headrace.cli.output import Output
from headrace.cli.session import Session
from headrace.client import Client
from headrace.environment import names_to_pass
from headrace.errors import HeadraceError, InvalidFieldError, Violation
from headrace.home import is_on_this_machine
from headrace.launch import loop
from headrace.launch.decision import Kind, Need
from headrace.launch.demand import ByClient
from headrace.launch.engine import Engine, Stage
from headrace.launch.rests import Rests
from headrace.lifetimes import lifetime_of
from headrace.spec import names
from headrace.target import PEM, TLS, Target

Most = Annotated[
    int,
    typer.Option(
        "--max", metavar="N", min=1, max=10_000, help="The most workers at once.", show_default=False
    ),
]
Name = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="The launch's name. Launches with different names count their workers separately, for example one for "
        "each type of machine, or for each Headrace cluster.",
    ),
]
Gpus = Annotated[int, typer.Option(min=0, help="How many GPUs each worker offers.")]
CpuSlots = Annotated[
    int, typer.Option(min=0, help="How many CPU slots each worker offers, if it has no GPUs.")
]
Labels = Annotated[
    list[str] | None,
    typer.Option(
        "--label",
        metavar="KEY=VALUE",
        help="A label of the workers, which a study's resources can require. Repeat the option for more.",
    ),
]
Interval = Annotated[str, typer.Option(metavar="TIME", help="The time between two turns.")]
Once = Annotated[
    bool,
    typer.Option(
        "--once",
        help="Take one turn and exit, for cron. Run it every few minutes: a Slurm job waits ten minutes for its join "
        "token. Workers that fail are requested again in each turn.",
    ),
]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Show what a turn would request and with which script. Requests nothing."),
]
IdleExit = Annotated[str, typer.Option(metavar="TIME", help="Workers exit after this time without a trial.")]
Lifetime = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="How long a worker may stay: 4h. It drains before that. With Slurm, also its job's time limit.",
        show_default=False,
    ),
]
Scheduler = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="The scheduler's address for the workers, if it differs from the one that this command uses.",
        show_default=False,
    ),
]
PassEnv = Annotated[
    str | None,
    typer.Option(
        metavar="NAME[,PREFIX*…]",
        help="Variables of the workers' environment to pass to trials, besides the usual ones.",
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """How the command takes turns."""

    kind: Kind
    most: int
    interval: str
    once: bool
    dry_run: bool


def check_workers(idle_exit: str, lifetime: str | None, pass_env: str | None) -> None:
    """Raises InvalidFieldError for options that the workers would refuse."""
    lifetime_of(idle_exit, "--idle-exit")
    if lifetime is not None:
        lifetime_of(lifetime, "--lifetime")
    names_to_pass(pass_env)


def authority_of(target: Target) -> str:
    """The authority that workers trust, in PEM; empty if they need none of their own."""
    return PEM.bytes(target.tls_ca).decode() if target.tls and target.tls_ca else ""


def warn_of_loopback(session: Session, scheduler: str, who: str) -> None:
    """Says that workers elsewhere cannot connect, if the scheduler's address reaches only this machine."""
    if all(is_on_this_machine(one) for one in Target.of(scheduler).replicas):
        session.output.note(
            f"{scheduler} reaches only this machine: {who} can connect. Give the workers another address with "
            "--scheduler."
        )


def kind_of(gpus: int, cpu_slots: int, labels: Sequence[str]) -> Kind:
    """What each worker offers. Raises InvalidFieldError."""
    if bool(gpus) == bool(cpu_slots):
        said = "exclude each other" if gpus else "are both 0"
        raise refused(
            "--gpus-per-worker and --cpu-slots", "", said, "Give one of them: what each worker offers."
        )
    found = {}
    for item in labels:
        key, equals, value = item.partition("=")
        if not equals:
            raise refused("--label", item, "is not KEY=VALUE", "Write, for example, zone=eu.")
        if key.startswith(worker_labels.OWN):
            said = "begins like Headrace's own labels"
            raise refused("--label", key, said, f"Choose a name without {worker_labels.OWN}")
        if (problem := names.LABEL.problem(key)) is not None:
            raise refused("--label", key, problem.message, problem.remedy)
        found[key] = value
    return Kind(slots=gpus or cpu_slots, on_gpu=bool(gpus), labels=found)


def scheduler_for(given: str | None, target: Target) -> str:
    """The scheduler's address for the workers. Raises InvalidFieldError if it leaves out the certificates."""
    if given and target.tls and not Target.of(given).tls:
        said = "has no certificate, which this command's scheduler has"
        raise refused("--scheduler", given, said, f"Write {TLS}{given}.")
    return given or f"{TLS if target.tls else ''}{target.address}"


def checked_name(name: str) -> str:
    """The launch's name. Raises InvalidFieldError."""
    problem = names.STUDY.problem(name)
    if problem is not None or len(name) > 40:
        why = problem.message if problem is not None else "has more than 40 characters"
        raise refused("--name", name, why, "Use letters, digits and hyphens, as in gpu-workers.")
    return name


def drive(
    session: Session,
    engine: Engine,
    *,
    client: Client,
    turns: Turns,
) -> None:
    """Takes turns until a signal, or takes one. Raises what a single turn raises."""
    output, kind, most = session.output, turns.kind, turns.most
    every_s = lifetime_of(turns.interval, "--interval").total_seconds()
    scheduler = ByClient(client)
    if turns.dry_run:
        found = loop.turn(engine, scheduler, kind=kind, most=most, act=False)
        output.note(_said(found, most))
        if not found.decision.submit:
            output.note("Nothing would be requested now. This is what a request looks like:")
        output.line(engine.shown(found.decision.submit or [0]).rstrip())
        return
    told = _Told(output, most)
    if turns.once:
        found = loop.turn(engine, scheduler, kind=kind, most=most)
        told(found)
        if found.failures:
            raise typer.Exit(1)
        return
    rests = Rests()
    with _stopped_by_signals() as stop:
        output.note(
            f"Launches at most {wording.plural(most, 'worker')}. Ctrl-C stops this command, not the workers."
        )
        loop.run(
            lambda: loop.turn(engine, scheduler, kind=kind, most=most, rests=rests),
            said=told,
            rest=lambda: not stop.wait(every_s),
        )


class _Told:
    """Prints what changed since the last turn."""

    def __init__(self, output: Output, most: int) -> None:
        self._output, self._most = output, most
        self._last: object = None
        self._failures: tuple[str, ...] = ()

    def __call__(self, what: loop.Turn | HeadraceError) -> None:
        if isinstance(what, HeadraceError):
            if str(what) != self._last:
                tell(what, self._output)
            self._last = str(what)
            return
        for failure in what.failures:
            if str(failure) not in self._failures:
                tell(failure, self._output)
        self._failures = tuple(map(str, what.failures))
        for worker in what.tokens:
            self._output.line(f"{worker} got a join token")
        if (said := _said(what, self._most)) != self._last:
            self._output.line(said)
        self._last = said


def _said(turn: loop.Turn, most: int) -> str:
    decision = turn.decision
    parts = [
        f"{wording.plural(decision.waiting, 'trial')} waiting",
        f"{turn.running} running and {turn.pending} pending of {wording.plural(most, 'worker')}",
    ]
    if decision.submit:
        parts.append(f"requesting {len(decision.submit)}")
    if decision.beyond:
        parts.append(f"{decision.beyond} must wait, as all are requested")
    if decision.withdraw:
        parts.append(f"withdrawing {len(decision.withdraw)} that another loop requested too")
    if turn.resting:
        parts.append(
            f"{wording.plural(len(turn.resting), 'worker')} ended and never connected, to be requested again "
            "later: the logs say why"
        )
    reasons = Counter(one.why for one in turn.members if one.stage is Stage.PENDING and one.why)
    parts += [f"{count} pending because of {why}" for why, count in sorted(reasons.items())]
    parts += map(_unsuited, decision.unsuited)
    return "; ".join(parts)


def _unsuited(need: Need) -> str:
    what = "GPU" if need.on_gpu else "CPU slot"
    size = f"{need.milli / 1000:g} of a GPU" if need.milli < 1000 else wording.plural(need.slots, what)
    labels = "".join(f", {key}={value}" for key, value in need.labels.items())
    return f"no worker of this launch suits {wording.plural(need.count, 'trial')} of {need.study} ({size}{labels})"


@contextmanager
def _stopped_by_signals() -> Iterator[threading.Event]:
    """An event that SIGTERM and Ctrl-C set. The turn in progress is finished."""
    stop = threading.Event()

    def over(_: int, __: FrameType | None) -> None:
        stop.set()

    before = {number: signal.signal(number, over) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def refused(field: str, value: str, message: str, remedy: str) -> InvalidFieldError:
    return InvalidFieldError([Violation(field=field, value=value, message=message, remedy=remedy)])
