"""`headrace preview`: what a study would do and cost, before anything is spent."""

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli import views, wording
from headrace.cli.output import Output
from headrace.cli.session import AsJson, Session
from headrace.client.model import Preview
from headrace.spec import StudySpec, load_study_file
from headrace.spec.fuse import Fuse
from headrace.spec.pilot import pilot_name

SAMPLES_SHOWN = 3


def preview(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="STUDY.yaml", help="The study file.", show_default=False)],
    seconds_per_step: Annotated[
        float | None,
        typer.Option(min=0.0, help="How long a step takes, to estimate the time.", show_default=False),
    ] = None,
    target_seconds_per_step: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="How long a step takes on the model itself, in targets and pilots. "
            "Default: the same as other steps.",
            show_default=False,
        ),
    ] = None,
    slots: Annotated[
        int | None,
        typer.Option(
            min=1, help="Parallel slots to assume. Default: those connected now.", show_default=False
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show how many trials and steps a study takes at each rung, compared to running every trial to the end.

    If `resources` depend on a parameter, it also shows how many trials take how many GPUs or CPU slots. A
    pilot (`surrogate: {scale: auto}`) and the trials of `transfer` are listed separately and included in the
    total; a gate is not.

    [bold]Examples[/bold]

    headrace preview study.yaml

    headrace preview study.yaml --seconds-per-step 42 --slots 8
    """
    session = Session.of(context)
    loaded = load_study_file(file)
    with session.client() as client:
        plan = client.preview(
            loaded.spec,
            slots=slots,
            seconds_per_step=seconds_per_step,
            target_seconds_per_step=target_seconds_per_step,
        )
    if as_json:
        session.output.json(views.preview(plan))
        return
    output = session.output
    output.line(_headline(loaded.name, loaded.spec, plan))
    if told := wording.population(loaded.spec, file):
        output.note(told)
    if told := wording.policy(loaded.spec):
        output.note(told)
    for warning in plan.warnings:
        output.note(warning)
    output.line()
    _show_rungs(plan, output)
    output.line()
    _show_sizes(plan, loaded.spec, output)
    if loaded.spec.fuse is not None:
        output.line(_bundles(loaded.spec.fuse, plan))
    saved = wording.percent(plan.steps_run_all - plan.steps, plan.steps_run_all)
    output.line(
        f"Steps: about {plan.steps} of the {plan.steps_run_all} that running every trial to the end takes "
        f"({saved} saved)."
    )
    if plan.wall_time_s is not None:
        output.line(
            f"Time: about {wording.duration(plan.wall_time_s)} on {wording.plural(plan.slots, 'slot')}"
            f" ({wording.duration(plan.slot_time_s)} of slot time)."
        )
    _show_companions(loaded.name, loaded.spec, plan, output)
    if plan.all_wall_time_s is None:
        output.note("Give --seconds-per-step to see the time.")
    elif plan.companions and target_seconds_per_step is None:
        output.note("Give --target-seconds-per-step if a step on the large model takes longer.")
    if ends := _ends(loaded.spec, plan):
        output.line(ends)
    baseline = loaded.spec.baseline
    first = [wording.params(sample) for sample in plan.samples]
    if baseline is not None:
        first.insert(0, f"{wording.params(baseline)} (the baseline)")
    if first:
        output.line()
        output.line("The first configurations:")
        for configuration in first[:SAMPLES_SHOWN]:
            output.line(f"  {configuration}")


def _show_rungs(plan: Preview, output: Output) -> None:
    """Print a row for each rung and for the baseline, and their sum."""
    brackets = len({rung.bracket for rung in plan.rungs})
    shown = wording.thinned(plan.rungs) if brackets == 1 else plan.rungs
    rows = [[str(rung.bracket), str(rung.milestone), str(rung.trials), str(rung.steps)] for rung in shown]
    if len(shown) < len(plan.rungs):
        output.line(f"{len(shown)} of the {len(plan.rungs)} rungs:")
    baselines = 1 if plan.baseline_steps else 0
    if baselines:
        rows.append(["", "baseline", str(baselines), str(plan.baseline_steps)])
    rows.append(["", "in all", str(plan.trials + baselines), str(plan.steps)])
    columns = ["BRACKET", "RUNG AT STEP", "TRIALS", "STEPS"]
    hidden = 0 if brackets > 1 else 1
    output.table(columns[hidden:], [row[hidden:] for row in rows], right=columns)


def _show_sizes(plan: Preview, spec: StudySpec, output: Output) -> None:
    """Print a row for each size of trials, if sizes differ."""
    if not plan.sizes or spec.resources.by is None:
        return
    table = [[wording.grant(size.gpus, size.gpu_milli, size.cpus), str(size.trials)] for size in plan.sizes]
    output.table([f"SIZE BY {spec.resources.by.parameter.upper()}", "TRIALS"], table, right=["TRIALS"])
    output.line()


def _show_companions(name: str, spec: StudySpec, plan: Preview, output: Output) -> None:
    """Print a line for each study that is created with this one, and the total."""
    for one in plan.companions:
        if one.role == "pilot":
            begins = f"Pilot {pilot_name(name)}, before this study"
        else:
            begins = f"Targets in {spec.transfer.study_name(name) if spec.transfer else one.role}, after this study"
        cost = f"{wording.plural(one.trials, 'trial')}, {wording.plural(one.steps, 'step')}"
        output.line(f"{begins}: {cost}{_time(one.wall_time_s, one.slot_time_s)}.")
    if plan.companions:
        output.line(
            f"In all: about {plan.all_steps} steps{_time(plan.all_wall_time_s, plan.all_slot_time_s)}."
        )


def _time(wall_s: float | None, slot_s: float | None) -> str:
    if wall_s is None or slot_s is None:
        return ""
    return f", about {wording.duration(wall_s)} ({wording.duration(slot_s)} of slot time)"


def _bundles(fuse: Fuse, plan: Preview) -> str:
    """How many trials share a process, and what separates them."""
    shared = f"Bundles: up to {fuse.most} trials share a process, on one slot"
    if fuse.auto:
        shared = (
            "Bundles: 2 trials share a process at first, on one slot. The number doubles while that makes more steps a "
            f"second and memory allows it, up to {fuse.most}; headrace show says where it stands"
        )
    if plan.bundle_groups < 2:
        return f"{shared}."
    groups = wording.plural(plan.bundle_groups, "group")
    return f"{shared}, if they agree on {' and '.join(fuse.apart)}: {groups} of trials, each in bundles of its own."


def _ends(spec: StudySpec, plan: Preview) -> str:
    """What may end the study before it has used its whole budget."""
    if spec.until is None:
        return ""
    said = f"It may end before that: {wording.until(spec)}."
    hours = spec.until.hours
    if hours is not None and plan.wall_time_s is not None and plan.wall_time_s > 3600 * hours:
        share = wording.percent(3600 * hours, plan.wall_time_s)
        said += f" The time limit ends the study before all trials have ended, after about {share} of the time above."
    return said


def _headline(name: str, spec: StudySpec, plan: Preview) -> str:
    extra = " and the baseline" if spec.baseline is not None else ""
    steps = wording.plural(spec.max_steps, "step")
    return (
        f"{name}: {plan.trials} configurations{extra}, {spec.policy.kind}, up to {steps} each, "
        f"{wording.goals(spec)}"
    )
