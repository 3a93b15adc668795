"""`headrace bubbles`: what the agent of this machine sees, as text, as JSON, and as a picture of the last seconds."""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.failure import USAGE, CommandError
from headrace.cli.session import AsJson, Session

if TYPE_CHECKING:
    from headrace.v1 import bubble_pb2 as pb


def bubbles(
    context: typer.Context,
    folder: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="The agent's folder. Default: HEADRACE_BUBBLES, else a folder of this user's in /dev/shm.",
        ),
    ] = None,
    agent: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="Ask the agent of another machine, which listens at this address."
        ),
    ] = None,
    job: Annotated[str | None, typer.Option(help="Show only this training job.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh every second, until Ctrl-C.")] = False,
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the last seconds as a trace, which Perfetto (ui.perfetto.dev) opens; - is stdout.",
        ),
    ] = None,
    svg: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the last seconds as a picture; - is stdout.")
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0.001, max=60, help="How much of the past --trace and --svg show.")
    ] = 2.0,
    as_json: AsJson = False,
) -> None:
    """Show this machine's pipelines, when their stages wait, and what trials did meanwhile.

    [bold]Examples[/bold]

    headrace bubbles

    headrace bubbles --json | jq -r '.jobs[].local_stages[].gate'    # values for HEADRACE_BUBBLE_GATE

    headrace bubbles --job gpt --seconds 1 --svg bubbles.svg --trace bubbles.json
    """
    from headrace_services.bubble_agent import drawing, reporting
    from headrace_services.bubble_agent.calls import Caller

    if watch and (as_json or trace or svg):
        raise CommandError("--watch does not take --json, --trace or --svg.", remedy="Drop one.", code=USAGE)
    output = Session.of(context).output
    with Caller(folder, agent) as caller:
        if trace or svg:
            timeline = caller.timeline(job or "", seconds)
            if trace:
                _write(trace, json.dumps(drawing.chrome_trace(timeline)) + "\n")
            if svg:
                _write(svg, drawing.svg(timeline))
            return
        answer = _answer(caller.jobs(job or ""), job)
        if as_json:
            output.json(_plain(answer))
            return
        reporting.show(output, answer)
        while watch:
            time.sleep(1)
            output.console.clear()
            reporting.show(output, _answer(caller.jobs(job or ""), job))


def _answer(answer: "pb.ListBubbleJobsResponse", job: str | None) -> "pb.ListBubbleJobsResponse":
    if job and not answer.jobs:
        raise CommandError(
            f"no job {job!r} runs on this machine.", remedy="`headrace bubbles` lists those that do."
        )
    return answer


def _plain(answer: "pb.ListBubbleJobsResponse") -> dict[str, Any]:
    from google.protobuf.json_format import MessageToDict

    found: dict[str, Any] = MessageToDict(
        answer, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return found


def _write(path: Path, text: str) -> None:
    if str(path) == "-":
        typer.echo(text, nl=False)
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror}.", remedy="Give another file.") from None
