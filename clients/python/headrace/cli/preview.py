"""`headrace preview`: what a study would do and cost, before anything is spent."""

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli import views, wording
from headrace.cli.session import AsJson, Session
from headrace.client.model import Preview
from headrace.spec import StudySpec, load_study_file

SAMPLES_SHOWN = 3


def preview(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="STUDY.yaml", help="The study file.", show_default=False)],
    seconds_per_step: Annotated[
        float | None,
        typer.Option(min=0.0, help="How long a step takes, to turn steps into time.", show_default=False),
    ] = None,
    slots: Annotated[
        int | None,
        typer.Option(
            min=1, help="Parallel slots to assume. Default: those connected now.", show_default=False
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show a study's rungs, trial counts and steps against running every trial to the end.

    [bold]Examples[/bold]

    headrace preview study.yaml

    headrace preview study.yaml --seconds-per-step 42 --slots 8
    """
    session = Session.of(context)
    loaded = load_study_file(file)
    with session.client() as client:
        plan = client.preview(loaded.spec, slots=slots, seconds_per_step=seconds_per_step)
    if as_json:
        session.output.json(views.preview(plan))
        return
    output = session.output
    output.line(_headline(loaded.name, loaded.spec, plan))
    output.line()
    brackets = len({rung.bracket for rung in plan.rungs}) > 1
    columns = [*(["BRACKET"] if brackets else []), "RUNG", "STEP", "TRIALS", "STEPS"]
    output.table(
        columns,
        [
            [
                *([str(rung.bracket)] if brackets else []),
                str(rung.rung),
                str(rung.milestone),
                str(rung.trials),
                str(rung.steps),
            ]
            for rung in plan.rungs
        ],
        right=columns,
    )
    output.line()
    saved = wording.percent(plan.steps_run_all - plan.steps, plan.steps_run_all)
    output.line(f"Steps: about {plan.steps} of the {plan.steps_run_all} of run-all ({saved} saved).")
    if plan.wall_time_s is not None:
        output.line(
            f"Time: about {wording.duration(plan.wall_time_s)} on {wording.plural(plan.slots, 'slot')}"
            f" ({wording.duration(plan.slot_time_s)} of slot time)."
        )
    else:
        output.note("Give --seconds-per-step to see the time.")
    if plan.samples:
        output.line()
        output.line("The first configurations:")
        for sample in plan.samples[:SAMPLES_SHOWN]:
            output.line(f"  {wording.params(sample)}")


def _headline(name: str, spec: StudySpec, plan: Preview) -> str:
    extra = " and the baseline" if spec.baseline is not None else ""
    return (
        f"{name}: {plan.trials} configurations{extra}, {spec.policy.kind}, up to {spec.max_steps} steps each, "
        f"{spec.objective.goal} {spec.objective.metric}"
    )
