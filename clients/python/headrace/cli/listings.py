"""`headrace studies`, `trials` and `workers`: lists."""

from enum import StrEnum
from typing import Annotated

import typer
from rich.text import Text

from headrace.cli import certificates, views, wording
from headrace.cli.failure import USAGE, CommandError
from headrace.cli.hindered import said_of
from headrace.cli.loads import HEADS, load_cells
from headrace.cli.output import Cell, Output
from headrace.cli.session import AsJson, Session, StudyArgument
from headrace.cli.unshown import note_unshown
from headrace.client.machines import Slot, Worker
from headrace.client.model import StudyInfo, TerminationReason, TrialInfo, TrialState
from headrace.client.outcome import Outcome

TRIAL_STATES = {state.value: state for state in TrialState if state is not TrialState.UNKNOWN}
Shown = StrEnum(  # type: ignore[misc]  # the values come from two tables
    "Shown", {word.upper(): word for word in (*TRIAL_STATES, *(reason.value for reason in TerminationReason))}
)
"""The possible values of the column STATE, and `terminated` for all ended trials."""


Filter = Annotated[
    str,
    typer.Option(
        "--filter",
        "-f",
        metavar="FILTER",
        help="Only those that match, such as 'state:failed' or 'lr>1e-3 -tag:old'.",
        show_default=False,
    ),
]


def studies(
    context: typer.Context,
    tag: Annotated[
        list[str] | None,
        typer.Option(help="Only studies with this tag. Repeat the option for more tags.", show_default=False),
    ] = None,
    since: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="Only studies created since then: an age such as 12h or 7d, or a date.",
            show_default=False,
        ),
    ] = "",
    chosen: Filter = "",
    as_json: AsJson = False,
) -> None:
    """List the studies, newest first.

    A filter compares name, state, tag, note, detail, created and ended: `name~digits created>2026-11-01`.

    [bold]Examples[/bold]

    headrace studies

    headrace studies --since 7d --tag paper

    headrace studies -f 'state:active,paused -tag:old'

    headrace studies --json | jq -r '.\\[] | select(.state == "failed") | .name'
    """
    session = Session.of(context)
    with session.client() as client:
        found = client.studies(_all_terms(chosen, tag or [], since))
    note_unshown(session.output, found)
    if as_json:
        session.output.json([views.study(study) for study in found])
        return
    if not found:
        narrowed = chosen or tag or since
        said = "No study matches." if narrowed else "No studies yet. `headrace run study.yaml` starts one."
        session.output.note(said)
        return
    tags = ["TAGS"] if any(study.tags for study in found) else []
    session.output.table(
        ["STUDY", "STATE", "TRIALS", "LIVE", "FAILED", "STEPS", "METRIC", "BEST", "CREATED", *tags],
        [
            [*_study_row(study, session.output), *([" ".join(study.tags) or "-"] if tags else [])]
            for study in found
        ],
        right=["TRIALS", "LIVE", "FAILED", "STEPS", "BEST"],
        below=["METRIC", "CREATED", *tags],
    )
    for study in found:
        if study.waits_for:
            session.output.note(
                f"{study.name} waits for {study.waits_for}: see `headrace trials {study.name}`."
            )


def trials(
    context: typer.Context,
    study: StudyArgument,
    state: Annotated[
        list[Shown] | None,
        typer.Option(
            help="Only trials in this state. Repeat the option for more states.", show_default=False
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", "-n", min=1, help="How many to list, best first. Default: all.", show_default=False
        ),
    ] = None,
    chosen: Filter = "",
    sort: Annotated[
        str,
        typer.Option(
            metavar="KEY",
            help="Sort by a field, parameter or metric, such as step or -metric.val_loss (- for descending). "
            "Default: best first.",
            show_default=False,
        ),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """List a study's trials, best first.

    A filter compares fields of trials (state, step, value, score, tag, note, detail, started, seconds and more),
    parameters, and metrics: `lr>1e-3 metric.val_loss<0.1`.

    [bold]Examples[/bold]

    headrace trials digits

    headrace trials digits -n 3 --json

    headrace trials digits --state running --state paused

    headrace trials digits -f 'lr>1e-3 state:failed' --sort -step
    """
    session = Session.of(context)
    with session.client() as client:
        handle = client.study(study)
        info = handle.status()
        wanted = {TRIAL_STATES.get(word, TrialState.TERMINATED) for word in state or ()}
        listed = handle.trials(states=wanted, filter=chosen, order_by=sort)
        found = [
            trial
            for trial in (listed if sort else Outcome(info).best_first(listed))
            if not state or {trial.outcome, trial.state.value} & set(state)
        ][:limit]
        said = [] if as_json or info.state.ended else said_of(client.workers(), study)
    note_unshown(session.output, info, listed)
    if as_json:
        session.output.json([views.trial(trial) for trial in found])
        return
    front = {trial.number for trial in info.front}
    metrics = [objective.metric for objective in info.spec.objectives]
    values = [*metrics, "PARETO FRONT"] if info.spec.further_objectives else [*metrics, "AT STEP"]
    session.output.table(
        ["TRIAL", "STATE", "STEP", "RUNG AT STEP", *values, "PARAMETERS", "WHY"],
        [_trial_row(trial, info, front, session.output) for trial in found],
        right=["TRIAL", "STEP", "RUNG AT STEP", *metrics, "AT STEP"],
        below=["PARAMETERS", "WHY"],
    )
    for line in said:
        session.output.note(line)


def _all_terms(chosen: str, tags: list[str], since: str) -> str:
    """One filter from the options."""
    terms = [*(_term("tag:", "--tag", tag) for tag in tags)]
    if since:
        terms.append(_term("created>=", "--since", since))
    return " ".join([*terms, chosen]).strip()


def _term(start: str, option: str, value: str) -> str:
    quoted = value.replace("\\", "\\\\").replace('"', '\\"')
    if not value:
        raise CommandError(f"{option} is empty.", remedy="Give a value, or leave it out.", code=USAGE)
    return f'{start}"{quoted}"'


def workers(context: typer.Context, as_json: AsJson = False) -> None:
    """List the workers, their slots, the trials that hold them, and how busy their devices are.

    LOAD is the device's utilization in the last minute, HOUR its mean over the last hour, USED the memory in use by all
    processes. CPU slots show those of their machine. --json has each minute of the last hour.
    """
    session = Session.of(context)
    with session.client() as client:
        found = client.workers(history=True)
    note_unshown(session.output, found)
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
        if worker.connected and (off := wording.off(worker)):
            link = Text(off, style="yellow")
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
                *load_cells(worker, slot),
                _on(worker, slot),
                labels or "-",
            ]
            for slot in worker.slots
        ] or [[worker.name, link, seen, *"-------", labels or "-"]]
    session.output.table(
        ["WORKER", "LINK", "SEEN", "SLOT", "DEVICE", "MEMORY", *HEADS, "TRIAL", "LABELS"],
        rows,
        right=["SLOT", *HEADS],
        below=["SEEN", "HOUR", "USED", "LABELS"],
    )
    for worker in found:
        for said in wording.kept_off(worker):
            session.output.note(said)
        for study in worker.avoided_by:
            session.output.note(
                f"{worker.name} gets no trials of {study}: its first attempts failed there. "
                "Restart the worker when it is fixed."
            )
        if worker.connected and worker.trouble:
            session.output.note(f"{worker.name} waits: {worker.trouble}")
        if worker.rejected:
            session.output.note(f"{worker.name} has rejected messages: {worker.rejected}")
        if worker.mps:
            session.output.note(f"{worker.name}: {worker.mps}")
        if worker.reused:
            session.output.note(f"{worker.name}: {worker.reused}")
    for worker in certificates.ended(found):
        session.output.note(
            f"{worker.name} cannot connect: its certificate has expired. It has to join again."
        )


def _on(worker: Worker, slot: Slot) -> str:
    """What is on a slot: a trial, the trials that share it, a bundle, or another project."""
    named = [*map(wording.members, slot.processes), *([wording.ANOTHER] if slot.elsewhere else [])]
    if named:
        return "; ".join(named)
    if slot.trial or slot.defect:
        return str(slot.trial) if slot.trial else "failed"
    return "cordoned" if any(cordon.device == slot.index for cordon in worker.cordons) else "free"


def _study_row(study: StudyInfo, output: Output) -> list[Cell]:
    counts = study.counts
    return [
        study.name,
        output.state(study.state.value),
        str(counts.total),
        str(counts.total - counts.terminated),
        str(counts.failed),
        f"{study.steps_spent}/{study.steps_run_all}",
        ", ".join(objective.metric for objective in study.spec.objectives),
        _best_value(study),
        wording.ago(study.created),
    ]


def _best_value(study: StudyInfo) -> str:
    """The best value. With several objectives there is none: `headrace best` shows the Pareto front."""
    if study.spec.further_objectives:
        return "Pareto front"
    best = study.best
    if best is None:
        return "-"
    since = {"failed": " (failed)", "diverged": " (diverged since)"}.get(best.flaw, "")
    return wording.number(best.score) + since


def _values(trial: TrialInfo, study: StudyInfo, front: set[int]) -> list[Cell]:
    """The value that counts and its step; with several objectives, the value of each that counts, and whether
    the trial is on the Pareto front.
    """
    values = [wording.number(value) for value in Outcome(study).values(trial).values()]
    if not study.spec.further_objectives:
        return [
            *values,
            str(trial.score_step) if trial.score_step is not None else "-",
        ]
    return [*values, "yes" if trial.number in front else "infeasible" if trial.feasible is False else "-"]


def _trial_row(trial: TrialInfo, study: StudyInfo, front: set[int], output: Output) -> list[Cell]:
    label = Text(f"{trial.number}" + ("*" if trial.baseline else ""))
    why = trial.detail.splitlines()[0] if trial.detail else ""
    if trial.failures and not why:
        why = f"tried again after {wording.plural(trial.failures, 'failure')}"
    if trial.waits_for:
        why = f"waits for {trial.waits_for}"
    if trial.baseline and not why:
        why = "* baseline"
    if trial.feasible is False and not study.spec.further_objectives:
        why = f"{why}; {wording.misses(trial, study.spec)}".removeprefix("; ")
    if unreported := wording.unreported(trial, study.spec):
        why = f"{why}; {unreported}".removeprefix("; ")
    if keeps := wording.kept_result(trial):
        why = f"{why}; {keeps}".removeprefix("; ")
    if said := wording.other_code(trial):
        why = f"{why}; {said}".removeprefix("; ")
    if trial.tags:
        why = f"{why}; tags: {' '.join(trial.tags)}".removeprefix("; ")
    if trial.diverged:
        why = f"{why}; its last value is {trial.value}".removeprefix("; ")
    return [
        label,
        output.state(trial.outcome),
        str(trial.step),
        str(trial.rungs[-1].milestone) if trial.rungs else "-",
        *_values(trial, study, front),
        wording.params(trial.params),
        why or "-",
    ]
