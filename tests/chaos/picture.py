"""The records of `make chaos` in one chart: how long recovery took, as a fraction of what is allowed."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

GOOD, BAD, LIMIT = "#3a7d44", "#b3261e", "#444444"


@dataclass(frozen=True, slots=True)
class Bar:
    """One measurement against its limit, in the same unit."""

    label: str
    measured: float
    limit: float
    unit: str


def bars(record: dict[str, Any]) -> list[Bar]:
    """The measurements in a scenario's record that have a limit."""
    match record["scenario"]:
        case "kill-scheduler":
            return [
                Bar(
                    f"{record['kills']} × scheduler killed: serving again",
                    record["serving_again_s"]["max"],
                    5.0,
                    "s",
                )
            ]
        case "postgres":
            count = record["immediate_restarts"]
            what = f"{count} × Postgres restarted, {record['outage_s']:g} s outage: going again"
            return [Bar(what, record["recovered_s"]["max"], 10.0, "s")]
        case "kill-worker":
            worst = max(way["max"] for way in record["requeued_after_s"].values())
            limit = record["lease_ttl_s"] + record["longest_sweep_pause_s"]
            return [
                Bar(f"{record['kills']} × worker killed: trial requeued", worst, limit, "s"),
                Bar("the same: work lost", record["lost_steps_max"], record["rung_steps"], "steps"),
            ]
        case "streams":
            stall_ms = record["longest_stall_without_wait_for_a_core_ms"]
            what = f"{record['streams']} streams, {record['minutes']:g} min, {record['resets']} resets"
            return [
                Bar(f"{what}: longest stall of the event loop", stall_ms, 50.0, "ms"),
                Bar("the same: drained", record["drained_s"], 15.0, "s"),
            ]
        case _:
            return []


def draw(folder: Path) -> Path | None:
    """Draw the records in a folder; returns None if none of them has a limit."""
    records = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    found = [bar for record in records if "error" not in record for bar in bars(record)]
    if not found:
        return None
    figure, axes = plt.subplots(figsize=(9, 0.9 + 0.5 * len(found)), layout="constrained")
    parts = [bar.measured / bar.limit for bar in found]
    axes.barh(
        [bar.label for bar in found], parts, color=[GOOD if part <= 1 else BAD for part in parts], height=0.6
    )
    for place, (bar, part) in enumerate(zip(found, parts, strict=True)):
        axes.text(
            part + 0.01, place, f"{bar.measured:g} of {bar.limit:g} {bar.unit}", va="center", fontsize=9
        )
    axes.axvline(1.0, color=LIMIT, linewidth=1)
    axes.set_xlim(0, max(1.25, max(parts) * 1.2))
    axes.set_xlabel("worst case, as a part of what is allowed")
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    path = folder / "chaos.svg"
    figure.savefig(path)
    plt.close(figure)
    return path
