"""`headrace events`: what has happened in a study so far, one line per event."""

from typing import Annotated

import typer

from headrace.cli import views
from headrace.cli.live import event_text
from headrace.cli.session import AsJson, Session, StudyArgument


def events(
    context: typer.Context,
    study: StudyArgument,
    trial: Annotated[
        int | None,
        typer.Option(
            "--trial", min=0, metavar="NUMBER", help="Only the events of this trial.", show_default=False
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List what happened in a study up to now, oldest first.

    `headrace attach` shows what happens from now on, and `headrace why` what happened to one trial with the values
    behind each decision. With `--json` each line is an event, as in `headrace run --json`.

    [bold]Examples[/bold]

    headrace events digits

    headrace events digits --json | jq -r .kind | sort | uniq -c
    """
    session = Session.of(context)
    with session.client() as client:
        for event in client.study(study).events():
            if trial is not None and event.trial != trial:
                continue
            if as_json:
                session.output.json({"type": "event", **views.event(event)}, indent=None)
            else:
                at = event.time.astimezone().strftime("%Y-%m-%d %H:%M:%S") if event.time else "-"
                session.output.line(f"{at}  {event_text(event)}")
