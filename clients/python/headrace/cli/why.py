"""`headrace why`: each decision on a trial, with the rule, the compared values, the rank, the cutoff and the
slot.
"""

from dataclasses import replace

import typer
from rich.text import Text

from headrace import held
from headrace.cli import views, wording
from headrace.cli.hindered import said_of
from headrace.cli.output import Output, clean
from headrace.cli.session import AsJson, Session, StudyArgument, TrialArgument
from headrace.cli.show import in_order
from headrace.cli.unshown import note_unshown
from headrace.client.events import (
    CodeChanged,
    DecisionMade,
    Event,
    Explanation,
    ReportRecorded,
    RungRecorded,
    TrialCreated,
    TrialExploited,
    TrialMoved,
    TrialStory,
    TrialWarned,
)
from headrace.client.model import StudyInfo, StudyState, TrialInfo, TrialState
from headrace.last_words import error_line, without_attempt

LOG_TAIL_LINES = 20
ERROR_WIDTH = 120
"""How many characters of an error are shown if it was shown in full before."""


def why(
    context: typer.Context,
    study: StudyArgument,
    trial: TrialArgument,
    as_json: AsJson = False,
) -> None:
    """Show what happened to a trial, and why.

    Each decision comes with its rule, the values compared, the trial's rank, the cutoff, and what happened to the
    slot. In between: where the trial ran, what it reported, how it failed.

    [bold]Examples[/bold]

    headrace why digits 7

    headrace why digits 7 --json | jq '.decisions\\[].sentence'
    """
    session = Session.of(context)
    with session.client() as client:
        info = client.study(study).status()
        story = client.study(study).trial(trial).explain()
        said = said_of(client.workers(), study, trial) if story.trial.worker and not as_json else ()
    note_unshown(session.output, story.trial)
    story = replace(story, trial=in_order(story.trial, info))
    if as_json:
        session.output.json(
            {
                "trial": views.trial(story.trial),
                "decisions": [views.explanation(explanation) for explanation in story.decisions],
                "events": [views.event(event) for event in story.events],
                "log_tail": story.trial.log_tail,
            }
        )
        return
    _show(story, info, session.output)
    for line in said:
        session.output.line(line)


def _show(story: TrialStory, info: StudyInfo, output: Output) -> None:
    trial, spec = story.trial, info.spec
    metric = spec.objective.metric
    output.line(
        Text.assemble(
            (f"Trial {trial.number} of study {trial.study}", "bold"),
            " (the baseline, which no policy judges)  " if trial.baseline else "  ",
            wording.state(trial.outcome),
        )
    )
    output.line(f"  {wording.params(trial.params)}")
    for held_back in held_by(story, info):
        output.line(f"  {held_back}")
    if said := wording.other_code(trial):
        output.line(f"  {said}")
    if trial.bubbles:
        output.line(f"  ran in bubbles of {'; '.join(trial.bubbles)}")
    output.line()
    told = ""
    errors: set[str] = set()
    for event in story.events:
        shown = event
        if isinstance(event.detail, TrialMoved):
            detail = _once(event.detail.detail, errors)
            shown = replace(event, detail=replace(event.detail, detail=detail))
        for line in _event_lines(shown, metric, told):
            output.line(line)
        if isinstance(event.detail, DecisionMade):
            told = _reason(event, event.detail.explanation)
    if silence := wording.silence(trial, spec, story.events[-1].time if story.events else None):
        output.line()
        output.line(f"The last of these was {silence}.")
    if trial.detail and not trial.waits_for:  # else it is from an earlier time; see the line above
        output.line()
        output.line(f"Now {trial.outcome}: {_once(_beyond(trial.detail, told), errors)}")
    if keeps := wording.kept_result(trial):
        output.line(f"It {keeps}.")
    _show_log_tail(trial, output)


def held_by(story: TrialStory, info: StudyInfo) -> list[str]:
    """What keeps the trial from running, and the command that resumes it; empty if nothing or only the policy
    does.
    """
    trial = story.trial
    said: list[str] = []
    by_user = _paused_by_user(story)
    runs = trial.state in (TrialState.RUNNING, TrialState.RESUMED)
    if by_user is not None:
        at = f" at {by_user.time.astimezone():%H:%M:%S}" if by_user.time else ""
        what = f"pauses at its next rung: requested by a user{at}" if runs else f"paused by a user{at}"
        said.append(f"{what}. Resume it: `headrace resume {trial.study} {trial.number}`")
    elif trial.waits_for:
        said.append(f"waits for {trial.waits_for}")
    if info.state is StudyState.PAUSED and trial.state is not TrialState.TERMINATED:
        what = "pauses at its next rung: its study is paused" if runs else "its study is paused"
        said.append(f"{what}. Resume it: `headrace resume {trial.study}`")
    return said


def _paused_by_user(story: TrialStory) -> Event | None:
    """The event by which a user paused the trial; None if it was resumed since, or is over."""
    number = story.trial.number
    paused, resumed = held.of_trial(number, held.PAUSED), held.of_trial(number, held.RESUMED)
    found: Event | None = None
    for event in story.events:
        over = isinstance(event.detail, TrialMoved) and event.detail.to_state is TrialState.TERMINATED
        if event.message == resumed or over:
            found = None
        elif event.message == paused:
            found = event
    return found


def _once(detail: str, errors: set[str]) -> str:
    """An error in full the first time, and only its own line when it is repeated; `errors` are those shown
    before.
    """
    if (error := without_attempt(detail)) not in errors:
        errors.add(error)
        return detail
    line, attempt = error_line(error), detail[len(error) :]
    return (line if len(line) <= ERROR_WIDTH else f"{line[: ERROR_WIDTH - 1]}…") + attempt


def _event_lines(event: Event, metric: str, told: str) -> list[Text]:
    """The event as lines. A move does not repeat the decision `told` just before."""
    at = event.time.astimezone().strftime("%H:%M:%S") if event.time else "--:--:--"
    text = Text.assemble((f"{at}  ", "dim"))
    match event.detail:
        case DecisionMade(action=action, explanation=explanation):
            text.append(action.value.upper().ljust(11), style="bold")
            text.append_text(clean(_reason(event, explanation)))
            return [text, *_figures(explanation, metric, event.trial)]
        case ReportRecorded(step=step, metrics=metrics):
            values = "  ".join(f"{name} {wording.number(value)}" for name, value in metrics.items())
            text.append_text(Text.assemble(("report     ", "dim"), clean(f"step {step}: {values}")))
            if metric not in metrics:
                text.append_text(clean(f"  ({metric} is missing)"))
        case RungRecorded(result=result):
            text.append_text(
                Text.assemble(
                    ("rung       ", "dim"),
                    f"recorded at step {result.milestone} with {wording.number(result.value)}, "
                    f"arrival {result.arrival}",
                )
            )
        case TrialMoved() as moved:
            text.append(
                f"{moved.action:<11}",
                style="cyan" if moved.action in ("launch", "resume", "restored") else "",
            )
            text.append_text(clean(_move(moved, told)))
        case TrialCreated():
            text.append_text(Text.assemble(("created    ", "dim"), clean(event.message or "proposed")))
        case TrialExploited():
            text.append("exploit    ", style="bold")
            text.append_text(clean(event.message))
        case CodeChanged():
            text.append_text(Text.assemble(("code       ", "yellow"), clean(event.message)))
        case TrialWarned(warning=warning):
            text.append_text(Text.assemble(("warning    ", "yellow"), clean(warning)))
        case _:
            text.append_text(Text.assemble((" " * 11, ""), clean(event.message)))
    return [text]


def _reason(event: Event, explanation: Explanation) -> str:
    """The reason. What holds the trial comes before the policy's sentence: a user's pause, its study's pause, or
    its study's end.
    """
    before, sentence, _ = event.message.partition(explanation.sentence)
    if not sentence:
        return explanation.sentence or event.message
    for outcome in (f"trial {event.trial} ", "continues: ", "paused: ", "stopped: "):
        before = before.removeprefix(outcome)
    return before + sentence


def _figures(why: Explanation, metric: str, trial: int | None) -> list[Text]:
    """The compared values, below the sentence."""
    figures = [f"rule {why.rule}"] if why.rule else []
    if why.milestone:
        bracket = f" of bracket {why.bracket}" if why.bracket else ""
        figures.append(f"rung at step {why.milestone}{bracket}")
    if why.results:
        figures.append(f"{metric} {wording.number(why.value)}")
        figures.append(f"rank {why.rank} of {why.results}")
        if why.cutoff_value is not None:
            figures.append(f"keeps {why.kept}")
            figures.append(f"cutoff {wording.number(why.cutoff_value)}")
    lines = [Text(" " * 21 + " · ".join(figures), style="dim")] if figures else []
    if why.slot_goes_to is not None and why.slot_goes_to.number != trial:  # else it continued immediately
        lines.append(Text(" " * 21 + f"the slot went to trial {why.slot_goes_to}", style="dim"))
    return lines


def _beyond(detail: str, told: str) -> str:
    """Why a trial moved, without the preceding decision: a promoted trial may leave because others need its
    slots.
    """
    return detail.removeprefix(f"{told}; ") if told else detail


def _move(moved: TrialMoved, told: str) -> str:
    parts = [f"{moved.from_state.value} → {moved.to_state.value}"]
    if moved.reason is not None:
        parts.append(f"({moved.reason.value.replace('_', ' ')})")
    if moved.worker:
        slots = ", ".join(map(str, moved.slots))
        parts.append(f"on {moved.worker}" + (f" slot {slots}" if slots else ""))
    detail = _beyond(moved.detail, told)
    return " ".join(parts) + (f": {detail}" if detail and detail != told else "")


def _show_log_tail(trial: TrialInfo, output: Output) -> None:
    if not trial.log_tail:
        return
    output.line()
    of = ""  # the end of an attempt that finished is not kept
    if trial.failed or trial.failures:
        of = " of the last attempt that failed"
    elif trial.interruptions:
        of = " of the last attempt that was interrupted"
    output.line(f"The end of the log{of}:")
    for line in trial.log_tail.rstrip().splitlines()[-LOG_TAIL_LINES:]:
        output.line(f"  {line}")
    output.line(f"The whole log: `headrace logs {trial.study} {trial.number}`")
