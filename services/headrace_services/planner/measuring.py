"""`headrace plan … --measure FUNCTION`: times the shortlist as trials of a study, and says which plan won.

The study has one categorical parameter, `split`, with one value per plan; a grid tries each once, one after
another, so that none disturbs another. A trial gets as many slots of one worker as the plan has devices, with one
process on each. It finds its plan in `PLAN_SHORTLIST` and reports `iteration_s` (`headrace_torch.measuring` does
both).
"""

import json
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from headrace.cli.output import Output
from headrace.client import Client
from headrace.client.machines import Worker
from headrace.client.model import TrialInfo
from headrace.errors import HeadraceError, InvalidFieldError, Violation
from headrace_services.planner.calibration import description, rounded
from headrace_services.planner.cluster import Efficiencies
from headrace_services.planner.emit.lowering import stage_boundaries
from headrace_services.planner.learning import learned, predicted_s
from headrace_services.planner.plan import Plan
from headrace_services.planner.reporting import write_text

CPU: Final = "cpu"
MOST_ITERATIONS: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A plan and its measurement."""

    plan: Plan
    trial: int | None
    """The number of its trial; None if the study ended before it."""
    seconds: float | None
    """The seconds of an iteration; None if the trial failed."""
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A shortlist after its measurement."""

    study: str
    rows: tuple[Measurement, ...]
    constants: Efficiencies
    """What the measurements reveal about the cluster."""

    @property
    def winner(self) -> Measurement:
        """The fastest measured plan."""
        return min((row for row in self.rows if row.seconds), key=lambda row: row.seconds or 0.0)


def label(plan: Plan) -> str:
    """A plan in a few words, as the value of `split`."""
    d = plan.degrees
    return f"d={d.d} m={d.m} o={d.o} s={d.s} µ={d.mu} e={d.e}"


def study_of(
    plans: Sequence[Plan], function: str, iterations: int, folder: Path, workers: Iterable[Worker]
) -> dict[str, Any]:
    """The study, with a study file's keys. Raises InvalidFieldError if no worker is large enough."""
    labels = [label(plan) for plan in plans]
    told = {name: _told(plan) for name, plan in zip(labels, plans, strict=True)}
    return {
        "objective": {"metric": "iteration_s", "goal": "minimize"},
        "trial": {
            "callable": function,
            "working_dir": str(folder.resolve()),
            "env": {"PLAN_SHORTLIST": json.dumps(told)},
        },
        "space": {"split": {"type": "categorical", "values": labels}},
        "sampler": {"kind": "grid"},
        "policy": {"kind": "run_all"},
        "trials": len(plans),
        "parallel": 1,
        # The first iteration is a warm-up.
        "steps": iterations + 1,
        "retries": 0,
        "resources": _resources(plans[0].request.cluster.devices, workers),
    }


def measure(
    client: Client,
    plans: Sequence[Plan],
    function: str,
    *,
    iterations: int,
    folder: Path,
    say: Callable[[str], None],
) -> Measured:
    """Times the plans and learns from them. Stops the study if interrupted. Raises HeadraceError."""
    spec = study_of(plans, function, iterations, folder, client.workers())
    study = client.create_study(f"plan-{secrets.token_hex(4)}", spec)
    try:
        for update in study.watch():
            counts = update.study.counts
            say(f"{counts.terminated} of {len(plans)} plans, study {study.name}")
    except BaseException:
        study.stop()
        raise
    rows = matched(plans, study.trials())
    timed = [row for row in rows if row.seconds is not None]
    if not timed:
        why = next((row.failure for row in rows if row.failure), study.status().detail)
        remedy = f"`headrace logs {study.name} 0` has the whole log."
        raise HeadraceError(f"No plan of the shortlist could be measured: {why}.", remedy=remedy)
    constants = learned([row.plan for row in timed], [row.seconds or 0.0 for row in timed])
    return Measured(study=study.name, rows=rows, constants=rounded(constants))


def matched(plans: Sequence[Plan], trials: Iterable[TrialInfo]) -> tuple[Measurement, ...]:
    """Each plan with its trial."""
    by_label = {str(trial.params["split"]): trial for trial in trials}
    rows = []
    for plan in plans:
        trial = by_label.get(label(plan))
        if trial is None:
            rows.append(Measurement(plan=plan, trial=None, seconds=None, failure="it did not run"))
        elif trial.outcome != "completed" or trial.value is None:
            failure = trial.detail.splitlines()[0] if trial.detail else trial.outcome.replace("_", " ")
            rows.append(Measurement(plan=plan, trial=trial.number, seconds=None, failure=failure))
        else:
            rows.append(Measurement(plan=plan, trial=trial.number, seconds=trial.value))
    return tuple(rows)


def show(output: Output, found: Measured) -> None:
    """Predicted and measured side by side, and the winner."""
    output.line()
    best = found.winner.seconds or 0.0
    rows = [
        (
            label(row.plan),
            f"{row.plan.simulated_s:.4g}",
            f"{row.seconds:.4g}" if row.seconds else "–",
            f"{row.seconds / best - 1:+.1%}" if row.seconds else row.failure,
            f"{predicted_s(row.plan, found.constants):.4g}",
        )
        for row in found.rows
    ]
    columns = ["measured", "predicted", "seconds", "to fastest", "predicted after"]
    output.table(columns, rows, right=columns[1:])
    first = " (the first of the shortlist)" if found.winner is found.rows[0] else ""
    output.line(f"fastest: {label(found.winner.plan)}{first}")
    output.note(f"study {found.study} has the trials")


def record(found: Measured) -> dict[str, Any]:
    """The same as JSON."""
    return {
        "study": found.study,
        "winner": label(found.winner.plan),
        "plans": [
            {
                "split": label(row.plan),
                "trial": row.trial,
                "predicted_s": row.plan.simulated_s,
                "measured_s": row.seconds,
                "predicted_after_s": predicted_s(row.plan, found.constants),
                "failure": row.failure,
            }
            for row in found.rows
        ],
        "constants": description(found.constants),
    }


def write_constants(found: Measured, out: Path) -> Path:
    """The constants, for `--constants`."""
    timed = sum(row.seconds is not None for row in found.rows)
    source = f"learned from {timed} plans of study {found.study}"
    path = out / "constants.json"
    told = {"measured": {"source": source, "constants": description(found.constants)}}
    write_text(path, json.dumps(told, indent=1) + "\n")
    return path


def _told(plan: Plan) -> dict[str, Any]:
    names = {
        "d": "data",
        "m": "tensor",
        "o": "optimizer",
        "s": "pipeline",
        "mu": "micro_batches",
        "e": "expert",
    }
    return {
        **{names[field]: value for field, value in asdict(plan.degrees).items()},
        "micro_batch": plan.micro_batch,
        "schedule": plan.request.schedule.value,
        "boundaries": stage_boundaries(plan),
        "recomputed": list(plan.recomputed),
    }


def _resources(devices: int, workers: Iterable[Worker]) -> dict[str, Any]:
    """Slots of one worker: GPUs if one has enough, else CPU slots."""
    connected = [worker for worker in workers if worker.connected]
    gpus = max((sum(slot.device != CPU for slot in worker.slots) for worker in connected), default=0)
    cpus = max((sum(slot.device == CPU for slot in worker.slots) for worker in connected), default=0)
    if gpus >= devices:
        return {"gpus": devices, "processes": "per_slot"}
    if cpus >= devices:
        return {"cpus": devices, "processes": "per_slot"}
    message = f"needs {devices} slots of one worker, and the largest has {max(gpus, cpus)}"
    remedy = f"Connect a worker with {devices}, or plan for a cluster of {max(gpus, cpus)} devices."
    raise InvalidFieldError([Violation(field="measure", message=message, remedy=remedy)])
