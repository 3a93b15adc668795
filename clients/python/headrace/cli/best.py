"""`headrace best`: the winning configuration or, with several objectives, those that no other trial beats."""

import typer

from headrace.cli import views, wording
from headrace.cli.failure import FAILED
from headrace.cli.output import Cell
from headrace.cli.populations import best_schedule, schedule_lines
from headrace.cli.session import AsJson, Session, StudyArgument
from headrace.cli.summary import deleted_of_best, exact, no_longer_saved, saved
from headrace.cli.unshown import note_unshown
from headrace.client.model import StudyInfo
from headrace.client.outcome import Outcome


def best(context: typer.Context, study: StudyArgument, as_json: AsJson = False) -> None:
    """Print the best configuration, ready to copy; for several objectives, the Pareto front.

    The best trial is the one with the best value, not counting the baseline. The objective's `scope`
    decides which value of a trial counts. Ties go to a completed trial, then to the one that trained
    further, then to the lower number. The checkpoint shown is the trial's last one, or with `keep: best` that of
    its best value. `headrace checkpoint get` copies it.

    Trials that miss a constraint never count, and a failed trial counts only if no other trial has a value. The
    Pareto front holds the trials that no other trial beats in every objective, each with the values that count:
    those of its last report, or those from before an extension that made it worse.

    In a population the parameters are those of the step shown, and the schedule that led to them is printed too:
    training with the last values from the start gives a different result.

    Exits with 1 if there is no such trial.

    [bold]Examples[/bold]

    headrace best digits

    headrace best digits --json | jq .params
    """
    session = Session.of(context)
    with session.client() as client:
        info = client.study(study).status()
        trained = () if as_json else best_schedule(client, info)
        deleted = None if as_json else deleted_of_best(client, info)
    note_unshown(session.output, info, *([info.leader] if info.leader else []))
    if info.spec.further_objectives:
        if as_json:
            session.output.json([views.trial(trial) for trial in info.front])
        elif not Outcome(info).front_left_out:
            _show_front(info, session)
        if not info.front:
            raise typer.Exit(FAILED)
        return
    if as_json:
        session.output.json(views.trial(info.best) if info.best else None)
    elif info.best is None:
        constraints = ", ".join(map(str, info.spec.constraints))
        met = f" with {constraints}" if constraints else ""
        session.output.note(f"No trial has reported a finite {info.spec.objective.metric}{met} yet.")
    else:
        trial = info.best
        if trial.flaw == "failed":
            session.output.note(
                f"Every trial with a value failed; trial {trial.number}, the best of them, failed after it had "
                f"reported: see `headrace why {study} {trial.number}`."
            )
        elif trial.flaw:
            session.output.note(
                f"Every trial with a finite {info.spec.objective.metric} failed or diverged; the last value of trial "
                f"{trial.number}, the best of them, is {wording.number(trial.value)}."
            )
        if said := wording.other_code(trial):
            compares = "Its value may not compare with those of other trials."
            doubt = f" {compares}" if trial.result_of_other_code else ""
            session.output.note(f"Trial {trial.number} {said}.{doubt}")
        value = f"{info.spec.objective.metric} {wording.scored(trial, info.spec.objective)}"
        session.output.line(f"# trial {trial.number}: {value}")
        if keeps := wording.kept_result(trial):
            session.output.line(f"# it {keeps}")
        if trial.kept_checkpoint is not None:
            kept = saved(trial, trial.kept_checkpoint, info.spec.objective.metric)
            session.output.line(f"# checkpoint: {kept}")
        elif deleted is not None:
            session.output.line(f"# checkpoint: {no_longer_saved(deleted)}")
        for label, said in schedule_lines(trained, info):
            session.output.line(f"# {label}: {said}")
        for name, given in trial.params.items():
            session.output.line(f"{name}: {exact(given)}")
    if info.best is None:
        raise typer.Exit(FAILED)


def _show_front(study: StudyInfo, session: Session) -> None:
    if not study.front:
        session.output.note("No feasible trial has reported all objectives yet.")
        return
    if not Outcome(study).sound:
        session.output.note(
            "All of these trials failed after they had reported, as did every trial with values."
        )
    for trial in study.front:
        if said := wording.other_code(trial):
            session.output.note(f"Trial {trial.number} {said}.")
    metrics = [objective.metric for objective in study.spec.objectives]
    rows: list[list[Cell]] = [
        [
            str(trial.number),
            *(wording.number(trial.objective_values.get(metric)) for metric in metrics),
            wording.params(trial.params),
        ]
        for trial in study.front
    ]
    session.output.table(
        ["TRIAL", *metrics, "PARAMETERS"], rows, right=["TRIAL", *metrics], below=["PARAMETERS"]
    )
