"""Following a study to its end, shown in one of three ways.

A terminal gets the live view, `--json` one line per event, anything else one plain line for every decision, end
of a trial and new best value. Ctrl-C raises `KeyboardInterrupt`; the study is not affected.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from enum import Enum

from rich.live import Live

from headrace.cli import views, wording
from headrace.cli.hindered import watched
from headrace.cli.live import DETACHES, Picture, event_text, noteworthy, once
from headrace.cli.output import Output
from headrace.client import Client, Study
from headrace.client.events import Event, TrialMoved, Update
from headrace.client.model import StudyInfo
from headrace.client.outcome import fallen
from headrace.errors import HeadraceError
from headrace.last_words import cause, likeness

LONG_LINE = 160
"""An error on a line longer than this is not repeated in full."""


class Mode(Enum):
    """How a study is shown."""

    LIVE = "live"
    LINES = "lines"
    JSON = "json"

    @classmethod
    def choose(cls, output: Output, *, as_json: bool) -> "Mode":
        """The mode that fits the output."""
        if as_json:
            return cls.JSON
        return cls.LIVE if output.is_terminal else cls.LINES


def follow(
    client: Client, name: str, output: Output, mode: Mode, *, after: int = 0, leaving: str = DETACHES
) -> StudyInfo:
    """Show what happens until the study has ended, and return the study; `leaving` says what Ctrl-C does."""
    study = client.study(name)
    now = study.status()
    if mode is Mode.LIVE:
        expected = _expected_steps(client, now)
        picture = Picture(now, expected_steps=expected, now=datetime.now(UTC), leaving=leaving)
        with watched(client, study.name, picture.hinder):
            return _live(study.watch(after, on_break=picture.lose), picture, output)

    updates = _updates(study, after, output)
    if mode is Mode.JSON:
        return _json(updates, now, output)
    with watched(client, study.name, lambda said: _tell(said, output)):
        return _lines(updates, now, output)


def _tell(said: Sequence[str], output: Output) -> None:
    for line in said:
        output.note(line)


def _updates(study: Study, after: int, output: Output) -> Iterator[Update]:
    """The updates of a watch. Says once that its connection is lost, and once that it is back."""
    lost = False

    def tell(error: HeadraceError) -> None:
        nonlocal lost
        if not lost:
            output.note(f"Connection lost; reconnecting. {error.message}")
        lost = True

    for update in study.watch(after, on_break=tell):
        if lost:
            output.note("Reconnected.")
        lost = False
        yield update


def _json(updates: Iterator[Update], study: StudyInfo, output: Output) -> StudyInfo:
    for update in updates:
        study = update.study
        for event in update.events:
            output.json({"type": "event", **views.event(event)}, indent=None)
    return study


def _lines(updates: Iterator[Update], study: StudyInfo, output: Output) -> StudyInfo:
    best = waits = ""
    said: set[str] = set()
    for update in updates:
        before, study = study, update.study
        for event in update.events:
            if noteworthy(event):
                at = event.time.astimezone().strftime("%H:%M:%S") if event.time else "--:--:--"
                output.line(f"{at}  {_once_in_full(event, said)}")
            for topic, told in once(event, study).items():
                if topic not in said:
                    said.add(topic)
                    output.line(f"{' ' * 8}  {told}")
        if why := fallen(before, study):
            output.line(f"{' ' * 8}  {why}")
        if study.waits_for and study.waits_for != waits:
            output.line(f"{' ' * 8}  waits for {study.waits_for}")
        waits = study.waits_for
        if (now := _best_so_far(study)) and now != best:
            best = now
            output.line(f"{' ' * 8}  {best}; steps {study.steps_spent} of {study.steps_run_all}")
    return study


def _once_in_full(event: Event, said: set[str]) -> str:
    """The event in one line. A long error is shown in full once; after that only its beginning is shown."""
    text = event_text(event)
    if not isinstance(event.detail, TrialMoved) or len(text) <= LONG_LINE:
        return text
    topic = likeness(cause(event.detail.detail))
    if topic not in said:
        said.add(topic)
        return text
    return f"{text[: LONG_LINE // 2].rsplit(' ', 1)[0]} … (as above)"


def _best_so_far(study: StudyInfo) -> str:
    best = None if study.spec.further_objectives else study.best
    if best is None:
        return ""
    failed = {"failed": " (failed)", "diverged": " (diverged since)"}.get(best.flaw, "")
    so_far = "" if study.state.ended else " so far"
    return (
        f"best{so_far}{failed}: {study.spec.objective.metric} {wording.number(best.score)}, "
        f"trial {best.number} at step {best.score_step} ({wording.params(best.params)})"
    )


def _live(updates: Iterator[Update], picture: Picture, output: Output) -> StudyInfo:
    with Live(picture, console=output.console, refresh_per_second=4, transient=True):
        for update in updates:
            picture.update(update)
    return picture.study


def _expected_steps(client: Client, study: StudyInfo) -> int | None:
    try:
        return client.preview(study.spec).steps
    except HeadraceError:
        return None  # the view works without an estimate; a real problem will fail again, loudly
