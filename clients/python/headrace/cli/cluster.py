"""`headrace cluster`: who holds which slots, which slots are reserved, and how the studies share the cluster."""

import typer
from rich.text import Text

from headrace.cli import wording
from headrace.cli.loads import HEADS, load_cells, loads_json
from headrace.cli.output import Cell
from headrace.cli.session import AsJson, Session
from headrace.cli.unshown import note_unshown
from headrace.client.machines import Holder, Slot, SlotReservation, StudyShare, Worker


def cluster(context: typer.Context, as_json: AsJson = False) -> None:
    """Show which trial holds which slots, which slots are reserved for a trial, and each study's share of the cluster.

    LOAD, HOUR and USED say how busy the slots' devices are, as `headrace workers` does.

    [bold]Examples[/bold]

    headrace cluster

    headrace cluster --json | jq '.shares[] | {study, gpus, waiting}'
    """
    session = Session.of(context)
    with session.client() as client:
        found, shares = client.workers(history=True), client.shares()
    note_unshown(session.output, found)
    if as_json:
        session.output.json(
            {"workers": [_worker_json(w) for w in found], "shares": [_share_json(s) for s in shares]}
        )
        return
    connected = [worker for worker in found if worker.connected]
    if not connected:
        session.output.note("No worker is connected. Start one with `headrace worker --scheduler HOST:PORT`.")
    else:
        rows = [row for worker in connected for slot in worker.slots for row in _slot_rows(worker, slot)]
        session.output.table(
            ["WORKER", "SLOT", "DEVICE", *HEADS, "SHARE", "TRIAL", "NOTE"],
            rows,
            right=["SLOT", *HEADS, "SHARE"],
            below=["HOUR", "USED", "NOTE"],
        )
        for worker in connected:
            if worker.reservation is not None:
                session.output.note(_kept(worker.name, worker.reservation))
    if shares:
        session.output.table(
            [
                "STUDY",
                "PRIORITY",
                "WEIGHT",
                "GPUS",
                "CPU SLOTS",
                "GPU HOURS",
                "CPU HOURS",
                "VIRTUAL TIME",
                "WAITS",
            ],
            [_share_row(share) for share in shares],
            right=["PRIORITY", "WEIGHT", "GPUS", "CPU SLOTS", "GPU HOURS", "CPU HOURS", "VIRTUAL TIME"],
            below=["GPU HOURS", "CPU HOURS", "VIRTUAL TIME", "WAITS"],
        )
        session.output.note(
            "Free slots go to the highest PRIORITY, then to the least VIRTUAL TIME: "
            "what a study used, divided by its WEIGHT."
        )


def _slot_rows(worker: Worker, slot: Slot) -> list[list[Cell]]:
    here = [worker.name, str(slot.index), slot.device, *load_cells(worker, slot)]
    if not slot.holders and not slot.elsewhere:
        state = Text("failed", style="yellow") if slot.defect else Text("free", style="green")
        return [[*here, "-", state, slot.defect]]
    others: list[list[Cell]] = (
        [[*here, f"{slot.elsewhere:g}", Text(wording.ANOTHER, style="dim"), ""]] if slot.elsewhere else []
    )
    return others + [
        [*here, f"{held[0].share:g}", wording.members(held), Text(_note(held[0]), style="yellow")]
        for held in slot.processes
    ]


def _note(holder: Holder) -> str:
    return f"pauses soon: {holder.leaving}" if holder.leaving else ""


def _kept(worker: str, kept: SlotReservation) -> str:
    slots = wording.plural(kept.slots, "slot")
    ready = "" if kept.ready is None else f", which can start at about {kept.ready.astimezone():%H:%M:%S}"
    return f"{worker} reserves {slots} for trial {kept.trial}{ready}. Until then only shorter trials start there."


def _share_row(share: StudyShare) -> list[Cell]:
    return [
        Text(wording.ANOTHER, style="dim") if share.study is None else share.study,
        str(share.priority),
        f"{share.weight:g}",
        f"{share.gpus:g}",
        f"{share.cpu_slots:g}",
        f"{share.gpu_seconds / 3600:.2f}",
        f"{share.cpu_seconds / 3600:.2f}",
        f"{share.virtual_time_s:.0f} s",
        "for slots" if share.waiting else "",
    ]


def _worker_json(worker: Worker) -> dict[str, object]:
    kept = worker.reservation
    return {
        "name": worker.name,
        "connected": worker.connected,
        "slots": [
            {
                "index": slot.index,
                "device": slot.device,
                "uuid": slot.uuid,
                "loads": loads_json(slot),
                "elsewhere": slot.elsewhere,
                "holders": [
                    {
                        "trial": str(holder.trial),
                        "share": holder.share,
                        "memory_bytes": holder.memory_bytes,
                        "leaving": holder.leaving,
                        "bundle": holder.bundle or None,
                    }
                    for holder in slot.holders
                ],
            }
            for slot in worker.slots
        ],
        "reservation": kept
        and {"trial": str(kept.trial), "slots": kept.slots, "since": kept.since, "ready": kept.ready},
    }


def _share_json(share: StudyShare) -> dict[str, object]:
    return {name: getattr(share, name) for name in StudyShare.__slots__}
