"""The live view of a study: one picture, redrawn a few times a second, fed by `watch()`.

`Picture` keeps the latest state of the study and a few recent events, and draws them. It does no I/O and takes
the time as an argument, so tests draw it too. The time left is that of the steps that the preview expects and
that are not spent yet, at the speed seen since the view started (or since the study started, for the first
seconds). It is an estimate and says so.
"""

import re
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime
from textwrap import wrap

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from headrace import not_known
from headrace.cli import wording
from headrace.cli.output import clean
from headrace.client.events import (
    Action,
    CodeChanged,
    DecisionMade,
    Event,
    MetricsMissing,
    Proposal,
    ProposalFailed,
    StudyExtended,
    StudyMoved,
    TrialCreated,
    TrialExploited,
    TrialMoved,
    TrialWarned,
    Update,
)
from headrace.client.model import RungStatus, StudyInfo, TerminationReason, TrialInfo, TrialState
from headrace.client.outcome import Outcome, fallen
from headrace.errors import HeadraceError
from headrace.first_few import first_few
from headrace.last_words import error_line

BAR_WIDTH = 30
LEAST_BAR = 6
_ENDS = "study ends: "
"""The start of the event that says that a study ends."""
RULES_THAT_STOP = ("running_median", "median", "rung_median")
"""These rules check each trial repeatedly; that a trial continues is not news."""
LAST_EVENTS = 4
FRONT_ROWS = 5
DETACHES = "Ctrl-C detaches; the study keeps running."
LOSES_STEPS = (
    "Warning: trials save no checkpoint, so a paused one restarts from step 0 when it resumes. "
    "Let the trial save its state: t.track(model, optimizer), or t.state for plain values and bytes. "
    "A script that resumes from its own checkpoint must report its steps: t.report(step=...)."
)


class Picture:
    """The contents of the live view."""

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
        self._hindered: Sequence[str] = ()
        self._fallen = ""
        self._told_once: dict[str, str] = {}

    def lose(self, error: HeadraceError) -> None:
        """Note that the connection broke; a new one is being tried."""
        self._trouble = error.message

    def hinder(self, said: Sequence[str]) -> None:
        """Note what keeps the study's workers from working; empty if nothing does."""
        self._hindered = said

    def update(self, update: Update) -> None:
        """Take an update from `watch()`."""
        before, self.study = self.study, update.study
        if before.leader != self.study.leader:
            self._fallen = fallen(before, self.study)
        self._trouble = None
        self._last.extend(event for event in update.events if noteworthy(event))
        for event in update.events:
            self._told_once = once(event, self.study) | self._told_once

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        yield self.draw(datetime.now(UTC), width=options.max_width, height=options.size.height)

    def draw(self, now: datetime, *, width: int = 120, height: int = 60) -> RenderableType:
        """The picture at a time, within a terminal's size. Text that does not fit on a line continues on the next.

        If there are more lines than the terminal has, older events are dropped first, then every other rung and
        the baseline's parameters.
        """
        lines = self._lines(now, width, events=0, rungs=max(4, height // 3), whole=True)
        whole = len(lines) + 4 <= height
        for events in range(len(self._last), -1, -1):
            lines = self._lines(now, width, events=events, rungs=max(4, height // 3), whole=whole)
            if len(lines) < height or not events:
                break
        return Group(*lines)

    def _lines(self, now: datetime, width: int, *, events: int, rungs: int, whole: bool) -> list[Text]:
        lines = [
            *_folded(self._head(now), width),
            *self._counts(width),
            Text(),
            *self._rungs(width, rungs),
            Text(),
            *self._values(width, whole=whole),
        ]
        if events:
            lines.append(Text())
            lines += [line for event in list(self._last)[-events:] for line in _event_lines(event, width)]
        for told in self._told_once.values():
            lines += [Text(), *_folded(Text(told, style="yellow"), width)]
        for said in self._hindered:
            lines += [Text(), *_folded(clean(Text(said, style="yellow")), width)]
        if self._trouble is not None:
            trouble = Text(f"Connection lost; reconnecting. {self._trouble}", style="yellow")
            lines += [Text(), *_folded(trouble, width)]
        return [*lines, Text(), *_folded(Text(self._leaving, style="dim"), width)]

    def eta_s(self, now: datetime) -> float | None:
        """The estimated seconds left; None while it would be a guess."""
        study = self.study
        if study.state.ended or not self._expected or study.created is None:
            return None
        began = max(self._began, study.started or self._began)
        since, done = (now - began).total_seconds(), study.steps_spent - self._began_steps
        if since < 10 or done < 3:
            since = (now - (study.started or study.created)).total_seconds() - study.over_s
            done = study.steps_spent
        left = self._expected - study.steps_spent
        if done < 3 or since <= 0 or left <= 0:
            return None
        return left * since / done

    def _head(self, now: datetime) -> Text:
        study = self.study
        elapsed = Outcome(study).open_s(study.ended or now)
        eta = self.eta_s(now)
        return Text.assemble(
            (study.name, "bold"),
            "  ",
            wording.state(study.state.value),
            (wording.waits(study), "yellow"),
            f"  {wording.goals(study.spec)}",
            (f"  {wording.duration(elapsed)}", "dim"),
            (f", about {wording.duration(eta)} left" if eta is not None else "", "dim"),
            (
                f", at most {hours}"
                if (hours := "" if study.state.ended else wording.hours_now(study))
                else "",
                "dim",
            ),
        )

    def _counts(self, width: int) -> list[Text]:
        counts = self.study.counts
        words = [
            Text(f"{wording.SYMBOLS[word]} {count} {word.replace('_', ' ')}", wording.STYLES[word])
            for word, count in (
                ("running", counts.running + counts.resumed),
                ("pending", counts.pending),
                ("paused", counts.paused),
                ("completed", counts.completed),
                ("stopped_early", counts.stopped_early),
                ("failed", counts.failed),
                ("cancelled", counts.cancelled),
                ("infeasible", counts.infeasible),
            )
            if count or word in ("running", "completed")
        ]
        return _packed(words, width, gap=3)

    def _rungs(self, width: int, most: int) -> list[Text]:
        study = self.study
        full = max([study.spec.max_trials, *(r.recorded for r in study.rungs)])
        every = -(-len(study.rungs) // most)
        shown = [rung for place, rung in enumerate(study.rungs[::-1]) if place % every == 0][::-1]
        rows = [
            (
                f"step {rung.milestone}",
                f"{rung.recorded} recorded",
                f"{rung.promoted} promoted" if rung.milestone < study.spec.max_steps else "",
                f"{rung.running} running" if rung.running else "",
            )
            for rung in shown
        ]
        share = wording.percent(study.steps_spent, study.steps_run_all) + " of run-all"
        expected = f"{self._expected} expected" if self._expected else ""
        rows.append(("steps", f"{study.steps_spent} of {study.steps_run_all}", share, expected))
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        room = min(BAR_WIDTH, width - sum(widths) - 2 * (sum(w > 0 for w in widths[2:]) + 2))
        bars = [rung_bar(rung, full, room) for rung in shown]
        bars.append(Text(_bar(study.steps_spent, study.steps_run_all, room), style="blue"))
        lines = []
        for bar, row in zip(bars, rows, strict=True):
            label, first, *more = (cell.ljust(cells) for cell, cells in zip(row, widths, strict=True))
            parts = [Text(label, "dim"), Text(first), Text(more[0]), Text(more[1].rstrip(), "cyan")]
            if room >= LEAST_BAR:
                bar.pad_right(room - len(bar))
                parts.insert(1, bar)
            lines += _packed([part for part in parts if part.plain], width, gap=2)
            lines[-1].rstrip()
        return lines

    def _values(self, width: int, *, whole: bool) -> list[Text]:
        lines: list[Text] = []
        best = None if self.study.spec.further_objectives else self.study.best
        for place, trial in enumerate(self.study.front[:FRONT_ROWS]):
            if not place:
                head = f"Pareto front: {wording.plural(len(self.study.front), 'trial')}"
                more = len(self.study.front) - FRONT_ROWS
                lines.append(Text(head + (f", {FRONT_ROWS} of them here" if more > 0 else ""), "dim"))
            values = wording.objectives(trial, self.study.spec.objectives)
            lines += _with_params(Text(f"trial {trial.number}: {clean(values)}"), trial, width)
        for label, one in (("best", best), ("baseline", self.study.baseline)):
            if one is not None:
                label = f"{label} (failed)" if one.flaw == "failed" else label
                line = Text.assemble(
                    (f"{label:<8}  ", "dim"),
                    (clean(wording.shown_values(one, self.study.spec)).plain, "bold"),
                    f"  trial {one.number}, step {one.score_step or one.step}",
                    (f"  {wording.misses(one, self.study.spec)}" if one.feasible is False else "", "yellow"),
                )
                shows = whole or one is best
                lines += _with_params(line, one, width) if shows else _folded(line, width)
                if one is best and self._fallen:
                    lines += _folded(Text(f"{'':10}{self._fallen}", "dim"), width)
        return lines


def rung_bar(rung: RungStatus, full: int, width: int = BAR_WIDTH) -> Text:
    """A bar of promoted, recorded and still empty places, out of `full` trials."""
    promoted = round(width * rung.promoted / full) if full else 0
    recorded = round(width * rung.recorded / full) if full else 0
    return Text.assemble(
        ("█" * promoted, "blue"),
        ("▒" * (recorded - promoted), "blue"),
        ("·" * (width - recorded), "dim"),
    )


def noteworthy(event: Event) -> bool:
    """Whether a person wants to see the event: decisions, failures, changes of the study itself."""
    match event.detail:
        case DecisionMade(action=Action.CONTINUE, explanation=explanation):
            return explanation.rule not in RULES_THAT_STOP
        case DecisionMade() | TrialExploited() | ProposalFailed() | MetricsMissing():
            return True
        case StudyMoved() | StudyExtended():
            return True
        case TrialMoved(to_state=to_state, action=action, reason=reason):
            # Stopped early: its decision was shown before, or the study's end covers all that waited.
            return action in ("interrupt", "retry", "reopen") or (
                to_state is TrialState.TERMINATED and reason is not TerminationReason.STOPPED_EARLY
            )
        case _:
            return event.trial is None and event.message.startswith(_ENDS)


def once(event: Event, study: StudyInfo) -> dict[str, str]:
    """What an event reveals about the whole study, by topic; a view shows each topic once."""
    match event.detail:
        case TrialMoved(action="vacate"):
            return {"checkpoint": LOSES_STEPS}
        case TrialWarned(warning=warning):  # if many trials say the same about different steps, one is shown
            return {re.sub(r"[\d.]+", "", warning): f"Warning: trial {event.trial}: {warning}"}
        case CodeChanged(first_seen=[_, *_], refused=False) as changed:  # else its study pauses, and says why
            return {f"code {changed.digest}": _about_code(event, changed, study)}
        case TrialCreated(proposal=Proposal(warm_results=results)) if study.spec.warm_start:
            return {"warm start": f"The sampler starts from {wording.warm_start(study, results)}."}
        case _:
            return {}


def _about_code(event: Event, changed: CodeChanged, study: StudyInfo) -> str:
    files = changed.first_seen
    what = f"runs other code than the study started with: {first_few(files)} changed"
    if all(map(not_known.is_marked, files)):
        what = f"may run other code than the study started with: {not_known.in_words(files)}"
    return (
        f"Warning: trial {event.trial} {what}. Its values may not be comparable with those of earlier "
        f"trials; `headrace trials {study.name}` marks it. Use a new study for new "
        "code. `on_code_change: refuse` in the study file refuses it."
    )


def event_text(event: Event) -> str:
    """An event in one line."""
    what = event.message
    if isinstance(event.detail, DecisionMade) and event.detail.explanation.slot_goes_to is not None:
        if event.detail.explanation.slot_goes_to.number == event.trial:  # it continues immediately
            what = what.removesuffix(f"; its slot goes to trial {event.trial}")
    elif isinstance(event.detail, TrialMoved) and event.detail.action == "retry":
        what = f"failed, will be retried: {error_line(event.detail.detail)}"
    if event.trial is not None and not re.match(rf"trial {event.trial}(?!\d)", what, re.IGNORECASE):
        what = f"trial {event.trial}: {what}"
    return what


def _event_lines(event: Event, width: int) -> list[Text]:
    at = event.time.astimezone().strftime("%H:%M:%S") if event.time else "--:--:--"
    first, *rest = _wrapped(clean(event_text(event)).plain, width - 10) or [""]
    return [Text.assemble((f"{at}  ", "dim"), first), *(Text(f"{'':10}{line}") for line in rest)]


def _with_params(head: Text, trial: TrialInfo, width: int) -> list[Text]:
    """A trial's line followed by its parameters, which go below it if they do not fit."""
    params = clean(wording.params(trial.params)).plain
    if len(head) + 2 + len(params) <= width:
        return [Text.assemble(head, "  ", params)]
    return [*_folded(head, width), *(Text(f"{'':10}{line}") for line in _wrapped(params, width - 10))]


def _packed(parts: Sequence[Text], width: int, *, gap: int) -> list[Text]:
    """The parts on as few lines as possible, without breaking any."""
    lines: list[Text] = []
    for part in parts:
        if lines and len(lines[-1]) + gap + len(part) <= width:
            lines[-1] = Text.assemble(lines[-1], " " * gap, part)
        else:
            lines.append(part)
    return lines


def _folded(text: Text, width: int) -> list[Text]:
    """The text, wrapped to the width."""
    if len(text) <= width:
        return [text]
    return [Text(line, text.style) for line in _wrapped(text.plain, width)]


def _wrapped(text: str, width: int) -> list[str]:
    return wrap(text, max(20, width), break_on_hyphens=False)


def _bar(part: int, whole: int, width: int) -> str:
    return "━" * (min(width, round(width * part / whole)) if whole else 0)
