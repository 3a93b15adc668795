"""`headrace plan --address`: sends the same question to a planner's server, and shows its answer on the terminal."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from headrace.cli.output import Output
from headrace.client.planning import Planner
from headrace_services.planner import asking, catalogue, reporting

LOCAL: Final = ("constants", "selective")
"""Options that a server does not take; it takes `attention` from a description's `blocks`."""


def show(
    output: Output,
    address: str,
    model: str,
    cluster: str,
    options: asking.Options,
    mode: str,
    method: str,
    seconds: float | None,
    budget: int | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Asks, shows progress, and prints or writes the plan. Raises HeadraceError."""
    if out is not None:
        reporting.writable_folder(out)
    fields = {name: value for name, value in asdict(options).items() if name not in LOCAL}
    fields |= {"mode": mode, "method": method}
    with Planner(address) as planner, output.status(f"planning {model} on {cluster}") as say:
        plan = planner.plan(
            _told("model", model),
            _told("cluster", cluster),
            on_progress=lambda now: say(str(now)),
            seconds=seconds,
            budget=budget,
            **fields,
        )
    written = []
    if out is not None:
        reporting.write_text(out / "plan.json", json.dumps(dict(plan.record), indent=1) + "\n")
        for name, text in plan.files.items():
            reporting.write_text(out / name, text)
        written = [out / "plan.json", *(out / name for name in plan.files)]
    if as_json:
        output.json({**plan.record, "complete": plan.complete, "shortlist": list(plan.shortlist)})
    else:
        for name, value in plan.degrees.items():
            output.line(f"{name:<14}{value}")
        output.line(f"{'iteration':<14}{plan.iteration_s:.4g} s")
        for note in plan.notes:
            output.note(note)
        for degrees in plan.shortlist[1:]:
            output.note("measure too: " + " ".join(f"{name}={value}" for name, value in degrees.items()))
    for path in written:
        output.note(f"wrote {path}")


def _told(field: str, said: str) -> str | dict[str, Any]:
    """A name, or the description in a file: a server opens no file that a caller names."""
    return catalogue.read_description(field, Path(said)) if said.endswith(".json") else said
