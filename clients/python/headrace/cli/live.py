"""The live view of a study: one picture, redrawn a few times a second, fed by `watch()`.

`Picture` keeps the newest study and a few last events and draws them; it does no I/O and takes the time as an
argument, so tests draw it too. The time left is the steps that the preview expects and that are not spent yet, at the
speed seen since the view began (or since the study began, for the first seconds); it is an estimate and says so.
"""

from collections import deque
from datetime import UTC, datetime

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from headrace.cli import wording
from headrace.cli.output import clean
from headrace.client.events import (
    DecisionMade,
    Event,
    ProposalFailed,
    StudyMoved,
    TrialExploited,
    TrialMoved,
    Update,
)
from headrace.client.model import RungStatus, StudyInfo, TerminationReason, TrialInfo, TrialState
from headrace.errors import HeadraceError

BAR_WIDTH = 30
LAST_EVENTS = 4
FRONT_ROWS = 5
DETACHES = "Ctrl-C detaches; the study goes on."


class Picture:
    """What the live view shows."""

    def __init__(
        self, study: StudyInfo, *, expected_steps: int | None, now: datetime, leaving: str = DETACHES
    ) -> None:
        self.study = study
        self._leaving = leaving
        self._expected = expected_steps
        self._began = now
        self._began_steps = study.steps_spent
        self._last: deque[Event] = deque(maxlen=LAST_EVENTS)
        self._trouble: str | None = None

    def lose(self, error: HeadraceError) -> None:
        """The connection broke; the next one is being tried."""
        self._trouble = error.message

    def update(self, update: Update) -> None:
        """Takes in what `watch()` yields."""
        self.study = update.study
        self._trouble = None
        self._last.extend(event for event in update.events if noteworthy(event))

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        yield self.draw(datetime.now(UTC), width=options.max_width)

    def draw(self, now: datetime, *, width: int = 120) -> RenderableType:
        """The picture at a time, on a terminal of a width."""
        parts: list[RenderableType] = [
            self._head(now),
            self._counts(),
            Text(),
            self._rungs(max(8, min(BAR_WIDTH, width - 62))),
            Text(),
            self._values(),
        ]
        if self._last:
            parts.append(Text())
            parts += [_event_line(event) for event in self._last]
        if self._trouble is not None:
            parts.append(Text(f"\nTrying to connect again. {self._trouble}", style="yellow"))
        parts.append(Text(f"\n{self._leaving}", style="dim"))
        return Group(*parts)

    def eta_s(self, now: datetime) -> float | None:
        """An estimate of the seconds left; None while it would be a guess."""
        study = self.study
        if study.state.ended or not self._expected or study.created is None:
            return None
        since, done = (now - self._began).total_seconds(), study.steps_spent - self._began_steps
        if since < 10 or done < 3:
            since, done = (now - study.created).total_seconds(), study.steps_spent
        left = self._expected - study.steps_spent
        if done < 3 or since <= 0 or left <= 0:
            return None
        return left * since / done

    def _head(self, now: datetime) -> Text:
        study = self.study
        objective = study.spec.objective
        elapsed = ((study.ended or now) - study.created).total_seconds() if study.created else None
        eta = self.eta_s(now)
        return Text.assemble(
            (study.name, "bold"),
            "  ",
            wording.state(study.state.value),
            f"  {objective.goal} {objective.metric}",
            (f"  {wording.duration(elapsed)}", "dim"),
            (f", about {wording.duration(eta)} left" if eta is not None else "", "dim"),
        )

    def _counts(self) -> Text:
        counts = self.study.counts
        line = Text()
        for word, count in (
            ("running", counts.running + counts.resumed),
            ("pending", counts.pending),
            ("paused", counts.paused),
            ("completed", counts.completed),
            ("stopped_early", counts.stopped_early),
            ("failed", counts.failed),
            ("cancelled", counts.cancelled),
        ):
            if count or word in ("running", "completed"):
                line.append(
                    f"{wording.SYMBOLS[word]} {count} {word.replace('_', ' ')}   ", wording.STYLES[word]
                )
        return line

    def _rungs(self, width: int) -> RenderableType:
        study = self.study
        full = max([study.spec.max_trials, *(r.recorded for r in study.rungs)])
        grid = Table.grid(padding=(0, 2))
        for rung in study.rungs:
            grid.add_row(
                Text(f"step {rung.milestone}", style="dim"),
                rung_bar(rung, full, width),
                f"{rung.recorded} recorded",
                f"{rung.promoted} promoted" if rung.milestone < study.spec.max_steps else "",
                Text(f"{rung.running} on the way" if rung.running else "", style="cyan"),
            )
        grid.add_row(
            Text("steps", style="dim"),
            Text(_bar(study.steps_spent, study.steps_run_all, width), style="blue"),
            f"{study.steps_spent} of {study.steps_run_all}",
            Text(wording.percent(study.steps_spent, study.steps_run_all) + " of run-all", style="dim"),
            Text(f"{self._expected} expected" if self._expected else "", style="dim"),
        )
        return grid

    def _values(self) -> RenderableType:
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="dim")
        grid.add_column(justify="right", style="bold")
        grid.add_column()
        grid.add_column(overflow="fold")
        best = None if self.study.front else self.study.best
        for place, trial in enumerate(self.study.front[:FRONT_ROWS]):
            label = f"Pareto front ({len(self.study.front)})" if not place else ""
            values = clean(wording.objectives(trial, self.study.spec.objectives))
            grid.add_row(label, "", f"trial {trial.number}: {values}", clean(wording.params(trial.params)))
        for label, one in (("best", best), ("baseline", self.study.baseline)):
            if one is not None:
                label = f"{label} (failed)" if one.failed else label
                where = f"trial {one.number}, step {one.best_step or one.step}"
                grid.add_row(label, wording.number(_shown(one)), where, clean(wording.params(one.params)))
        return grid


def rung_bar(rung: RungStatus, full: int, width: int = BAR_WIDTH) -> Text:
    """Promoted, recorded and still empty, out of `full` trials."""
    promoted = round(width * rung.promoted / full) if full else 0
    recorded = round(width * rung.recorded / full) if full else 0
    return Text.assemble(
        ("█" * promoted, "blue"),
        ("▒" * (recorded - promoted), "blue"),
        ("·" * (width - recorded), "dim"),
    )


def noteworthy(event: Event) -> bool:
    """True for what a person wants to see go by: decisions, failures, the study's own moves."""
    match event.detail:
        case DecisionMade() | TrialExploited() | ProposalFailed() | StudyMoved():
            return True
        case TrialMoved(to_state=to_state, action=action, reason=reason):
            # Stopped early: its decision was told before, or the study's end says it of all that waited.
            return action == "interrupt" or (
                to_state is TrialState.TERMINATED and reason is not TerminationReason.STOPPED_EARLY
            )
        case _:
            return False


def event_text(event: Event) -> str:
    """An event in one line."""
    what = event.message
    if event.trial is not None and not what.lower().startswith(f"trial {event.trial}"):
        what = f"trial {event.trial}: {what}"
    return what


def _event_line(event: Event) -> Text:
    at = event.time.astimezone().strftime("%H:%M:%S") if event.time else "--:--:--"
    line = Text(no_wrap=True, overflow="ellipsis")
    return line.append(f"{at}  ", "dim").append_text(clean(event_text(event)))


def _shown(trial: TrialInfo) -> float | None:
    return trial.best_value if trial.best_value is not None else trial.value


def _bar(part: int, whole: int, width: int) -> str:
    return "━" * (min(width, round(width * part / whole)) if whole else 0)
