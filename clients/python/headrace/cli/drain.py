"""`headrace drain`, `undrain`, `cordon` and `uncordon`: taking machines and devices out of service and back."""

import time
from typing import Annotated

import typer

from headrace.cli import views, wording
from headrace.cli.failure import CommandError
from headrace.cli.output import Cell, Output
from headrace.cli.session import AsJson, Session
from headrace.client import Client
from headrace.client.machines import Worker
from headrace.client.model import TrialInfo, TrialRef
from headrace.errors import HeadraceError

POLL_S = 1.0

WorkerArgument = Annotated[
    str, typer.Argument(metavar="WORKER", help="The worker's name.", show_default=False)
]
Devices = Annotated[
    list[int] | None,
    typer.Option(
        "--device",
        min=0,
        help="One device, by the index of its slot. Repeat the option for more.",
        show_default=False,
    ),
]
Reason = Annotated[str, typer.Option(help="The reason, shown in lists.", show_default=False)]


def drain(
    context: typer.Context,
    worker: WorkerArgument,
    reason: Reason = "",
    grace: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="Stop trials that are still running after this time; they resume from their last "
            "checkpoints. Default: no limit.",
            show_default=False,
        ),
    ] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Cancel the drain, like `headrace undrain`.")] = False,
    wait: Annotated[bool, typer.Option(help="Wait until the worker is empty.")] = True,
    as_json: AsJson = False,
) -> None:
    """Empty a worker: nothing new starts there, and its trials save at their next reports and resume elsewhere.

    No trial is charged a failure. The worker's daemon exits when it is empty. If it is started again, it gets no trials
    until `headrace undrain`. The drain continues after Ctrl-C, and if the scheduler restarts.

    [bold]Examples[/bold]

    headrace drain node-7 --reason "new driver"

    headrace drain node-7 --grace 600 --no-wait

    headrace drain node-7 --undo
    """
    if undo:
        undrain(context, worker, as_json=as_json)
        return
    session = Session.of(context)
    output = session.output
    with session.client() as client:
        found = client.drain(worker, reason=reason, grace_s=grace)
        trials = found.trials
        if not as_json:
            output.line(_begun(found))
        if wait and found.connected and trials:
            _wait(client, found.name, trials, output)
        if as_json or (wait and found.connected):
            moved = [_where(client, trial) for trial in trials]
            if as_json:
                output.json({"worker": views.worker(found), "trials": [_moved_json(one) for one in moved]})
            elif moved:
                _tell(moved, output)
    if not as_json:
        output.note(f"Undo it with `headrace undrain {found.name}`.")


def undrain(context: typer.Context, worker: WorkerArgument, as_json: AsJson = False) -> None:
    """Undo `drain`: the worker gets trials again. A daemon that has exited is not started."""
    session = Session.of(context)
    with session.client() as client:
        found = client.undrain(worker)
    if as_json:
        session.output.json(views.worker(found))
    elif found.connected:
        session.output.line(f"{found.name} gets trials again{_but(found)}.")
    else:
        session.output.line(f"{found.name} gets trials again when its daemon is started{_but(found)}.")


def cordon(
    context: typer.Context,
    worker: WorkerArgument,
    device: Devices = None,
    reason: Reason = "",
    as_json: AsJson = False,
) -> None:
    """Let nothing new start on a worker, or on some of its devices. Running trials stay.

    [bold]Examples[/bold]

    headrace cordon node-7 --device 3 --reason "fan is loud"

    headrace cordon node-7
    """
    session = Session.of(context)
    with session.client() as client:
        found = client.cordon(worker, device or (), reason=reason)
    if as_json:
        session.output.json(views.worker(found))
        return
    session.output.line(f"Nothing new starts on {_what(found.name, device)}.")
    session.output.note(f"Undo it with `headrace uncordon {found.name}`.")


def uncordon(
    context: typer.Context, worker: WorkerArgument, device: Devices = None, as_json: AsJson = False
) -> None:
    """Undo `cordon`, and clear failed devices for use.

    Without --device: the worker and all its devices.

    [bold]Examples[/bold]

    headrace uncordon node-7 --device 3
    """
    session = Session.of(context)
    with session.client() as client:
        found = client.uncordon(worker, device or ())
    if as_json:
        session.output.json(views.worker(found))
        return
    session.output.line(f"Trials may start on {_what(found.name, device)} again{_but(found)}.")
    if not found.connected:
        session.output.note(f"{found.name} is away. It reports the state of its devices when it reconnects.")


def _begun(found: Worker) -> str:
    if not found.connected:
        seen = wording.ago(found.last_seen)
        return f"{found.name} is away (seen {seen}). The drain is recorded: it gets no trials when it reconnects."
    if not found.trials:
        return f"{found.name} is empty, gets no trials, and exits."
    leave = "trial leaves" if len(found.trials) == 1 else "trials leave"
    return f"{found.name} gets no trials. {len(found.trials)} {leave} it, each at its next report."


def _wait(client: Client, name: str, trials: tuple[TrialRef, ...], output: Output) -> None:
    """Wait until none of the trials is on the worker. Raises CommandError if the drain is cancelled."""
    left = trials
    with output.status(f"draining {name}") as show:
        while left:
            show(f"{wording.plural(len(left), 'trial')} left: {', '.join(map(str, left[:4]))}")
            time.sleep(POLL_S)
            now = next((one for one in client.workers() if one.name == name), None)
            if now is not None and now.connected and not now.draining:
                raise CommandError(f"The drain of {name} was cancelled.", remedy="Its trials stay.")
            still = tuple(trial for trial in left if now is not None and trial in now.trials)
            if not output.errors.is_terminal:
                for trial in left:
                    if trial not in still:
                        output.note(f"{trial} has left")
            left = still


def _where(client: Client, trial: TrialRef) -> tuple[TrialRef, TrialInfo | None]:
    """A trial as it is now; None if its study has been deleted since."""
    try:
        return trial, client.study(trial.study).trial(trial.number).info()
    except HeadraceError:
        return trial, None


def _tell(moved: list[tuple[TrialRef, TrialInfo | None]], output: Output) -> None:
    rows: list[list[Cell]] = []
    for trial, info in moved:
        if info is None:
            rows.append([str(trial), "deleted", "-", "-"])
            continue
        where = f"{info.worker} slot {', '.join(map(str, info.slots))}" if info.slots and info.worker else "-"
        if info.waits_for:
            where = f"waits for {info.waits_for}"
        rows.append([str(trial), output.state(info.outcome), str(info.step), where])
    output.table(["TRIAL", "STATE", "STEP", "NOW ON"], rows, right=["STEP"], below=["NOW ON"])


def _moved_json(moved: tuple[TrialRef, TrialInfo | None]) -> dict[str, object]:
    trial, info = moved
    return {
        "trial": str(trial),
        "state": info.state.value if info else None,
        "step": info.step if info else None,
        "worker": info.worker if info else None,
        "slots": list(info.slots) if info else [],
        "waits_for": info.waits_for if info else "",
    }


def _what(name: str, devices: list[int] | None) -> str:
    if not devices:
        return name
    listed = ", ".join(map(str, devices))
    return f"{'slot' if len(devices) == 1 else 'slots'} {listed} of {name}"


def _but(worker: Worker) -> str:
    """What else keeps trials off a worker."""
    if worker.draining:
        return f", but the worker is draining: {worker.draining}"
    if worker.cordoned:
        return f", but the worker is cordoned: {worker.cordoned}"
    if worker.cordons:
        listed = ", ".join(str(cordon.device) for cordon in worker.cordons)
        return f", but for slot {listed} (`headrace workers` says why)"
    return ""
