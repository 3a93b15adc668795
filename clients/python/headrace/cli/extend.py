"""`headrace extend`: a study goes on with more configurations, or with a larger full budget."""

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
        typer.Option(metavar="N", min=1, help="Try so many configurations more.", show_default=False),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="The new full budget of a trial, in steps.", show_default=False
        ),
    ] = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Let a study go on that has ended, or give one that runs more to do. Results that are there stay.

    With --trials the sampler proposes further configurations. Where a finite space has too few points for them, this
    says how many will repeat one. With --steps the policy's rungs go on up to the new
    budget: trials that had the old one go on from their checkpoints if the policy lets them. One that fails on the way,
    diverges or gets worse counts with the result that it had, and keeps that checkpoint.

    Where trials track a learning-rate schedule that ends before the new budget, this says what will happen there and
    asks first; without a terminal, give --yes.

    [bold]Examples[/bold]

    headrace extend digits --trials 20

    headrace extend digits --steps 81
    """
    session = Session.of(context)
    if (trials is None) == (steps is None):
        given = "both are" if trials is not None else "neither is"
        raise CommandError(
            f"An extension is by --trials or by --steps, and {given} given.",
            remedy="Give one of them. A study may be extended again.",
            code=USAGE,
        )
    with session.client() as client:
        handle = client.study(study)
        warnings = handle.extension_warnings(trials=trials or 0, steps=steps or 0)
        for warning in warnings:
            session.output.note(warning)
        if warnings and steps is not None:
            confirm(f"Extend study {study} to {steps} steps all the same?", yes=yes)
        info = handle.extend(trials=trials or 0, steps=steps or 0, warn=False)
        waiting = [] if steps is None or as_json else handle.trials(TrialState.PAUSED)
    if as_json:
        session.output.json(views.study(info))
        return
    if trials is not None:
        session.output.line(
            f"Study {study} tries {wording.plural(info.spec.max_trials, 'configuration')} in all."
        )
    else:
        rungs = wording.rungs_listed(info.spec.rungs())
        session.output.line(
            f"Study {study} has a full budget of {info.spec.max_steps} steps, with rungs at {rungs}."
        )
        _tell_who_waits(session, info, [one for one in waiting if one.milestone is None])
    if info.state.ended:
        session.output.line(f"It has ended again at once: {info.detail}.")
        return
    session.output.note(f"Follow it with `headrace attach {study}`.")


def _tell_who_waits(session: Session, study: StudyInfo, waiting: Sequence[TrialInfo]) -> None:
    """Name the trials for which there is a larger budget, and which do not continue to it by themselves."""
    if not waiting:
        return
    shown = first_few([str(one.number) for one in waiting], 8)
    some, them = (f"Trial {shown} waits", "it") if len(waiting) == 1 else (f"Trials {shown} wait", "them")
    session.output.line(
        f"{some} for the policy to continue {them}: `headrace why {study.name} {waiting[0].number}` says more."
    )
