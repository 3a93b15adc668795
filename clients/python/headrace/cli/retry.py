"""`headrace retry`: failed trials continue after their script was fixed."""

from dataclasses import asdict
from typing import Annotated

import typer

from headrace.cli import wording
from headrace.cli.failure import USAGE, CommandError
from headrace.cli.session import AsJson, Session, StudyArgument


def retry(
    context: typer.Context,
    study: StudyArgument,
    trials: Annotated[
        list[int] | None,
        typer.Argument(
            metavar="[TRIAL]...",
            min=0,
            help="These trials, which failed or were cancelled, by their numbers.",
            show_default=False,
        ),
    ] = None,
    failed: Annotated[
        bool, typer.Option("--failed", help="All that failed. It is the default where no trial is named.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Retry failed trials after their script was fixed.

    Each resumes from its last checkpoint, or restarts if it has none. Its failure count is reset. A study that
    has ended becomes active again, and trials that its end cut off continue too. Existing results stay.

    [bold]Examples[/bold]

    headrace retry digits

    headrace retry digits 3 5
    """
    session = Session.of(context)
    if failed and trials:
        raise CommandError(
            "--failed means all trials that failed, and some are named.",
            remedy="Leave out --failed, or the numbers.",
            code=USAGE,
        )
    with session.client() as client:
        handle = client.study(study)
        for warning in handle.retry_warnings(trials or ()):
            session.output.note(warning)
        done = handle.retry(trials or (), warn=False)
    if as_json:
        session.output.json(asdict(done))
        return
    if done.trials or not done.others:
        which = wording.plural(len(done.trials), "trial")
        session.output.line(f"Study {study} tries {which} again: {', '.join(map(str, done.trials))}.")
    if done.others:
        which = wording.plural(done.others, f"{'other ' if done.trials else ''}trial")
        session.output.line(
            f"{which} of it, which its end had cut off, may continue{' too' * bool(done.trials)}."
        )
    session.output.note(f"Follow it with `headrace attach {study}`.")
