"""`headrace studies`, `trials`, `show` and `workers`: what there is."""

import math
from dataclasses import replace
from typing import Annotated

import typer
from rich.text import Text

from headrace.cli import views, wording
from headrace.cli.live import rung_bar
from headrace.cli.output import Cell, Output
from headrace.cli.session import AsJson, Session, StudyArgument
from headrace.cli.summary import Summary, show_summary
from headrace.client.model import StudyInfo, TrialInfo, TrialState
from headrace.spec import Goal


def studies(context: typer.Context, as_json: AsJson = False) -> None:
    """List the studies, newest first.

    [bold]Examples[/bold]

    headrace studies

    headrace studies --json | jq -r '.\\[] | select(.state == "failed") | .name'
    """
    session = Session.of(context)
    with session.client() as client:
        found = client.studies()
    if as_json:
        session.output.json([views.study(study) for study in found])
        return
    if not found:
        session.output.note("No studies yet. `headrace run study.yaml` starts one.")
        return
    session.output.table(
        ["STUDY", "STATE", "TRIALS", "LIVE", "FAILED", "STEPS", "METRIC", "BEST", "CREATED"],
        [_study_row(study, session.output) for study in found],
        right=["TRIALS", "LIVE", "FAILED", "STEPS", "BEST"],
    )


def trials(
    context: typer.Context,
    study: StudyArgument,
    state: Annotated[
        list[TrialState] | None,
        typer.Option(help="Only trials in this state; may be repeated.", show_default=False),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="Only the best so many.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List a study's trials, best first.

    [bold]Examples[/bold]

    headrace trials digits

    headrace trials digits -n 3 --json

    headrace trials digits --state running --state paused
    """
    session = Session.of(context)
    with session.client() as client:
        handle = client.study(study)
        info = handle.status()
        found = best_first(info, handle.trials(states=state or ()))[:limit]
    if as_json:
        session.output.json([views.trial(trial) for trial in found])
        return
    session.output.table(
        ["TRIAL", "STATE", "STEP", "RUNG", info.spec.objective.metric, "AT", "PARAMETERS", "WHY"],
        [_trial_row(trial, session.output) for trial in found],
        right=["TRIAL", "STEP", "RUNG", info.spec.objective.metric, "AT"],
    )


def show(
    context: typer.Context,
    study: StudyArgument,
    trial: Annotated[
        int | None, typer.Argument(metavar="[TRIAL]", min=0, help="A trial's number.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show a study, or one of its trials.

    [bold]Examples[/bold]

    headrace show digits

    headrace show digits 7
    """
    session = Session.of(context)
    with session.client() as client:
        info = client.study(study).status()
        one = in_order(client.study(study).trial(trial).info(), info) if trial is not None else None
    if one is not None:
        if as_json:
            session.output.json(views.trial(one))
        else:
            _show_trial(one, session.output)
    elif as_json:
        session.output.json(views.study(info))
    else:
        _show_study(info, session.output)


def workers(context: typer.Context, as_json: AsJson = False) -> None:
    """List the workers, their slots, and the trials that hold them."""
    session = Session.of(context)
    with session.client() as client:
        found = client.workers()
    if as_json:
        session.output.json([views.worker(worker) for worker in found])
        return
    if not found:
        session.output.note(
            "No worker has ever connected. Start one with `headrace worker --scheduler HOST:PORT`."
        )
        return
    rows: list[list[Cell]] = []
    for worker in found:
        link = Text("connected", style="cyan") if worker.connected else Text("away", style="yellow")
        labels = " ".join(f"{key}={value}" for key, value in worker.labels.items())
        seen = "now" if worker.connected else wording.ago(worker.last_seen)
        rows += [
            [
                worker.name,
                link,
                seen,
                str(slot.index),
                slot.device,
                wording.size(slot.memory_bytes) if slot.memory_bytes else "-",
                str(slot.trial) if slot.trial else "free",
                labels or "-",
            ]
            for slot in worker.slots
        ] or [[worker.name, link, seen, "-", "-", "-", "-", labels or "-"]]
    session.output.table(
        ["WORKER", "LINK", "SEEN", "SLOT", "DEVICE", "MEMORY", "TRIAL", "LABELS"], rows, right=["SLOT"]
    )


def in_order(trial: TrialInfo, study: StudyInfo) -> TrialInfo:
    """The trial with its parameters in the order of the space, which a trial alone does not know."""
    names = [name for name in study.spec.space if name in trial.params]
    return replace(trial, params={name: trial.params[name] for name in names})


def best_first(study: StudyInfo, trials: list[TrialInfo]) -> list[TrialInfo]:
    """By best value; trials without one last, by number."""
    sign = -1.0 if study.spec.objective.goal == Goal.MAXIMIZE else 1.0

    def key(trial: TrialInfo) -> tuple[float, int]:
        value = trial.best_value
        return (math.inf if value is None or not math.isfinite(value) else sign * value, trial.number)

    return sorted(trials, key=key)


def _study_row(study: StudyInfo, output: Output) -> list[Cell]:
    counts = study.counts
    return [
        study.name,
        output.state(study.state.value),
        str(counts.total),
        str(counts.total - counts.terminated),
        str(counts.failed),
        f"{study.steps_spent}/{study.steps_run_all}",
        study.spec.objective.metric,
        wording.number(study.best.best_value) if study.best else "-",
        wording.ago(study.created),
    ]


def _trial_row(trial: TrialInfo, output: Output) -> list[Cell]:
    label = Text(f"{trial.number}" + ("*" if trial.baseline else ""))
    why = trial.detail.splitlines()[0] if trial.detail else ""
    if trial.baseline and not why:
        why = "* baseline"
    if output.is_terminal and len(why) > 60:
        why = why[:59] + "…"
    return [
        label,
        output.state(trial.outcome),
        str(trial.step),
        str(trial.rungs[-1].milestone) if trial.rungs else "-",
        wording.number(trial.best_value),
        str(trial.best_step) if trial.best_step is not None else "-",
        wording.params(trial.params),
        why or "-",
    ]


def _show_study(study: StudyInfo, output: Output) -> None:
    show_summary(Summary(study=study), output)
    full = max([study.spec.max_trials, *(r.recorded for r in study.rungs)])
    output.line()
    output.table(
        ["RUNG", "STEP", "RECORDED", "PROMOTED", "ON THE WAY", ""],
        [
            [
                str(r.rung),
                str(r.milestone),
                str(r.recorded),
                str(r.promoted),
                str(r.running),
                rung_bar(r, full) if output.is_terminal else "",
            ]
            for r in study.rungs
        ],
        right=["RUNG", "STEP", "RECORDED", "PROMOTED", "ON THE WAY"],
    )


def _show_trial(trial: TrialInfo, output: Output) -> None:
    output.line(
        Text.assemble(
            f"Trial {trial.number} of study {trial.study}"
            + (" (the baseline)" if trial.baseline else "")
            + "  ",
            wording.state(trial.outcome),
        )
    )
    lines = [(name, wording.scalar(value)) for name, value in trial.params.items()]
    lines.append(
        ("step", f"{trial.step}" + (f", may run to {trial.milestone}" if trial.milestone is not None else ""))
    )
    if trial.best_value is not None:
        lines.append(("best value", f"{wording.number(trial.best_value)} at step {trial.best_step}"))
    lines += [(f"last {name}", wording.number(value)) for name, value in trial.metrics.items()]
    lines += [
        (
            f"rung {r.rung}",
            f"step {r.milestone}: {wording.number(r.value)}, arrival {r.arrival}"
            + (", promoted" if r.promoted else ""),
        )
        for r in trial.rungs
    ]
    lines.append(("steps spent", str(trial.steps_spent)))
    if trial.failures or trial.interruptions:
        lines.append(
            (
                "attempts",
                wording.plural(trial.failures, "failure")
                + " of its own, "
                + wording.plural(trial.interruptions, "interruption")
                + " by machines",
            )
        )
    if trial.worker:
        lines.append(("worker", f"{trial.worker}, slots {', '.join(map(str, trial.slots)) or '-'}"))
    if trial.checkpoint:
        lines.append(("checkpoint", f"{trial.checkpoint.uri} (step {trial.checkpoint.step})"))
    if trial.log_path:
        lines.append(("log", trial.log_path))
    if trial.detail:
        lines.append(("detail", trial.detail))
    width = max(len(label) for label, _ in lines)
    for label, text in lines:
        output.line(f"  {label.ljust(width)}  {text}")
