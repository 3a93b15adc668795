"""`headrace annotate`: tags and a note on a study or a trial."""

from typing import Annotated

import typer

from headrace.cli.control import OptionalTrial
from headrace.cli.session import AsJson, Session, StudyArgument
from headrace.client.model import Annotation


def annotate(
    context: typer.Context,
    study: StudyArgument,
    trial: OptionalTrial = None,
    tag: Annotated[
        list[str] | None,
        typer.Option(help="Add this tag. Repeat the option for more tags.", show_default=False),
    ] = None,
    untag: Annotated[
        list[str] | None,
        typer.Option(help="Remove this tag. Repeat the option for more tags.", show_default=False),
    ] = None,
    note: Annotated[
        str | None,
        typer.Option(help="Replace the note; an empty one removes it.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Tag a study or one of its trials, or write a note on it. Without options, print its tags and its note.

    Tags and notes affect nothing else. `headrace studies --tag` and `headrace trials -f tag:NAME` find them again.

    [bold]Examples[/bold]

    headrace annotate digits --tag paper --note "the run in figure 3"

    headrace annotate digits 7 --tag outlier

    headrace annotate digits --untag paper
    """
    session = Session.of(context)
    with session.client() as client:
        handle = client.study(study) if trial is None else client.study(study).trial(trial)
        if tag or untag or note is not None:
            now = handle.annotate(add_tags=tag or (), remove_tags=untag or (), note=note)
        else:
            info = client.study(study).status() if trial is None else client.study(study).trial(trial).info()
            now = Annotation(tags=info.tags, note=info.note)
    if as_json:
        session.output.json({"tags": list(now.tags), "note": now.note})
        return
    what = f"Study {study}" if trial is None else f"Trial {trial} of study {study}"
    session.output.line(f"{what}: {' '.join(now.tags) or 'no tags'}")
    if now.note:
        session.output.line(now.note)
