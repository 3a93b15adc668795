"""`headrace extend`: continues a study with more configurations, or with a larger full budget."""

from collections.abc import Sequence
from typing import Annotated

import typer

from headrace.cli import views, wording
from headrace.cli.control import Yes, confirm
from headrace.cli.failure import USAGE, CommandError
from headrace.cli.session import AsJson, Session, StudyArgument
from headrace.client.model import StudyInfo, TrialInfo, TrialState
from headrace.first_few import first_few


def extend(
    context: typer.Context,
    study: StudyArgument,
    trials: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="How many more configurations to try; not with --steps.",
            show_default=False,
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="The new full budget of a trial, in steps; not with --trials.",
            show_default=False,
        ),
    ] = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Reopen a study that has ended, or give a running one more to do. Existing results stay.

    With --trials the sampler proposes further configurations. If a finite space has too few points for them, this
    prints how many will be repeated. With --steps the policy's rungs extend to the new
    budget: trials that completed the old one continue from their checkpoints if the policy promotes them. A trial that
    then fails, diverges or gets worse counts with its earlier result, and keeps that checkpoint.

    If trials track a learning-rate schedule that ends before the new budget, or have lost the checkpoint from which
    they would continue, this explains what will happen, and with --steps asks for confirmation; without a terminal, add
    --yes.

    [bold]Examples[/bold]

    headrace extend digits --trials 20

    headrace extend digits --steps 81
    """
    session = Session.of(context)
    if (trials is None) == (steps is None):
        given = "both are" if trials is not None else "neither is"
        raise CommandError(
            f"Extend by either --trials or --steps; {given} given.",
            remedy="Give one of them. A study can be extended again later.",
            code=USAGE,
        )
    with session.client() as client:
        handle = client.study(study)
        warnings = handle.extension_warnings(trials=trials or 0, steps=steps or 0)
        for warning in warnings:
            session.output.note(warning)
        if warnings and steps is not None:
            confirm(f"Extend study {study} to {steps} steps anyway?", yes=yes)
        info = handle.extend(trials=trials or 0, steps=steps or 0, warn=False)
        waiting = [] if steps is None or as_json else handle.trials(TrialState.PAUSED)
    if as_json:
        session.output.json(views.study(info))
        return
    if trials is not None:
        session.output.line(
            f"Study {study} tries {wording.plural(info.spec.max_trials, 'configuration')} in total."
        )
    else:
        rungs = wording.rungs_listed(info.spec.rungs())
        session.output.line(
            f"Study {study} has a full budget of {info.spec.max_steps} steps, with rungs at {rungs}."
        )
        _tell_who_waits(session, info, [one for one in waiting if one.milestone is None])
    if info.state.ended:
        session.output.line(f"It ended again immediately: {info.detail}.")
        return
    session.output.note(f"Follow it with `headrace attach {study}`.")


def _tell_who_waits(session: Session, study: StudyInfo, waiting: Sequence[TrialInfo]) -> None:
    """List the trials that have a larger budget now, but do not continue to it by themselves."""
    if not waiting:
        return
    shown = first_few([str(one.number) for one in waiting], 8)
    some, them = (f"Trial {shown} waits", "it") if len(waiting) == 1 else (f"Trials {shown} wait", "them")
    session.output.line(
        f"{some} for the policy to continue {them}: see `headrace why {study.name} {waiting[0].number}`."
    )
