"""`headrace pause`, `resume`, `stop` and `delete`: steering a study or one of its trials."""

import sys
from typing import Annotated

import typer

from headrace.cli.failure import USAGE, CommandError
from headrace.cli.session import Session, StudyArgument
from headrace.client.model import StudyState, TrialInfo, TrialState

OptionalTrial = Annotated[
    int | None,
    typer.Argument(metavar="[TRIAL]", min=0, help="Only this trial, by its number.", show_default=False),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def pause(context: typer.Context, study: StudyArgument, trial: OptionalTrial = None) -> None:
    """Pause a study (running trials continue to their next rung), or one trial at its next rung.

    [bold]Examples[/bold]

    headrace pause digits

    headrace pause digits 7
    """
    session = Session.of(context)
    with session.client() as client:
        handle = client.study(study)
        if trial is None:
            rungs = handle.pause().spec.rungs()
            running = "pause at their next rung" if len(rungs) > 1 else "run to their end: no rung remains"
            session.output.line(f"Study {study} starts no more trials; running trials {running}.")
        else:
            paused = handle.trial(trial).pause()
            last = handle.status().spec.max_steps
            session.output.line(f"Trial {trial} of study {study} {_paused(paused, last)}.")
    session.output.note(f"Undo it with `headrace resume {study}{'' if trial is None else f' {trial}'}`.")


def resume(context: typer.Context, study: StudyArgument, trial: OptionalTrial = None) -> None:
    """Resume a study, or one trial that was paused by hand."""
    session = Session.of(context)
    with session.client() as client:
        handle = client.study(study)
        if trial is not None:
            said = _resumed(handle.trial(trial).resume())
            session.output.line(f"Trial {trial} of study {study} {said}.")
        elif (now := handle.status()).state is StudyState.ACTIVE:
            waits = f" It waits for {now.waits_for}." if now.waits_for else ""
            session.output.line(f"Study {study} is not paused; nothing was done.{waits}")
            session.output.note(
                f"To resume a trial that was paused by hand: `headrace resume {study} TRIAL`."
            )
        else:
            handle.resume()
            session.output.line(f"Study {study} is resumed.")


def stop(
    context: typer.Context,
    study: StudyArgument,
    trial: OptionalTrial = None,
    reason: Annotated[
        str, typer.Option(help="The reason. It is stored with the study.", show_default=False)
    ] = "",
    yes: Yes = False,
) -> None:
    """Stop a study with all its trials, or one trial, for good. Asks for confirmation; without a terminal, add --yes.

    Processes end at once, and trials keep their last checkpoints. To keep their current states, pause the study or
    the trial first, and stop it once it has reached its next rung.

    [bold]Examples[/bold]

    headrace stop digits

    headrace stop digits 7 --reason "diverges" -y
    """
    session = Session.of(context)
    with session.client() as client:
        handle = client.study(study)
        if trial is None:
            before = handle.status()
            if before.state.ended:
                session.output.line(f"Study {study} has already ended ({before.state}); nothing was done.")
                return
            live = before.counts.total - before.counts.terminated
            confirm(f"Stop study {study} and cancel its {live} live trials?", yes=yes)
            handle.stop(reason=reason)
            session.output.line(f"Study {study} is stopped.")
        else:
            confirm(f"Stop trial {trial} of study {study}?", yes=yes)
            handle.trial(trial).stop(reason=reason)
            session.output.line(f"Trial {trial} of study {study} is stopped.")


def delete(context: typer.Context, study: StudyArgument, yes: Yes = False) -> None:
    """Delete an ended study with its trials and events. Asks for confirmation; without a terminal, add --yes.

    Its name can be reused at once. Its checkpoints and logs are deleted within the hour, on every machine where a
    worker runs.
    """
    session = Session.of(context)
    with session.client() as client:
        total = client.study(study).status().counts.total
        confirm(f"Delete study {study} with its {total} trials?", yes=yes)
        client.study(study).delete()
    session.output.line(f"Study {study} is deleted.")


def _paused(trial: TrialInfo, last: int) -> str:
    """What a trial does after a user has paused it; `last` is its full budget."""
    if trial.state not in (TrialState.RUNNING, TrialState.RESUMED):
        return "takes no slot until it is resumed"
    if trial.milestone is not None and trial.milestone >= last:
        return "runs to its end: no rung remains"
    return "pauses at its next rung"


def _resumed(trial: TrialInfo) -> str:
    """What a trial does after a user has resumed it."""
    if trial.state is TrialState.TERMINATED:
        return f"has ended: {trial.detail or trial.outcome}"
    if trial.state is TrialState.PAUSED and not trial.milestone:
        return "is no longer paused: it continues if it is promoted"
    return "continues when a slot is free"


def confirm(question: str, *, yes: bool) -> None:
    """Asks for confirmation of what cannot be undone. Raises CommandError if the answer is no, or nobody can be
    asked.
    """
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise CommandError(
            f"{question} Nothing was done: there is no terminal to confirm it on.",
            remedy="Add --yes.",
            code=USAGE,
        )
    if not typer.confirm(question, default=False, err=True):
        raise CommandError("Nothing was done.", remedy="", code=USAGE)
