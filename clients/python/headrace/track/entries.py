"""What to write to a tracker for each event. Pure functions.

An entry is one event of a trial in the terms of trackers: parameters, a point of each metric, and fields. A field is
text that describes the trial as of now, such as its state; the last one written is shown. Entries carry the event's
cursor and time, so writing one again writes the same.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum

from headrace.client.events import (
    DecisionMade,
    Event,
    ReportRecorded,
    TrialCreated,
    TrialExploited,
    TrialMoved,
    TrialWarned,
)
from headrace.client.model import Checkpoint, Report, TerminationReason, TrialInfo, TrialState
from headrace.spec import Value

LAST_PARAM = "last_param."
"""The prefix of fields with the parameters that a member of a population has copied."""


class Status(StrEnum):
    """A run's status, in the words that trackers share."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    KILLED = "killed"

    @property
    def ended(self) -> bool:
        """Whether the trial has ended. `extend` and `retry` may still continue it."""
        return self not in (Status.WAITING, Status.RUNNING)


_STATUS_OF_REASON = {
    TerminationReason.COMPLETED: Status.FINISHED,
    TerminationReason.STOPPED_EARLY: Status.FINISHED,
    TerminationReason.FAILED: Status.FAILED,
    TerminationReason.INFEASIBLE: Status.FAILED,
    TerminationReason.CANCELLED: Status.KILLED,
}
_STATUS_OF_STATE = {TrialState.RUNNING: Status.RUNNING, TrialState.TERMINATED: Status.FINISHED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One event of a trial."""

    cursor: int
    trial: int
    time_ms: int
    """Milliseconds since 1970."""
    params: Mapping[str, Value] | None = None
    """The trial's configuration, in its first entry; None in the others."""
    step: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The metrics of a report at `step`."""
    fields: Mapping[str, str] = field(default_factory=dict)
    status: Status | None = None
    """The new status; None if it stays as it is."""
    of_tables: bool = False
    """Whether it was made from the tables. Its time then differs a little from its event's."""


def entry_of(event: Event) -> Entry | None:
    """What to write for an event; None if trackers do not show it."""
    if event.trial is None:
        return None
    entry = Entry(cursor=event.cursor, trial=event.trial, time_ms=_time_ms(event.time))
    match event.detail:
        case TrialCreated() as created:
            fields = {"state": TrialState.PENDING.value, "bracket": str(created.bracket)}
            if created.baseline:
                fields["baseline"] = "true"
            if created.proposal is not None:
                fields["sampler"] = created.proposal.sampler
            return replace(entry, params=created.params, fields=fields, status=Status.WAITING)
        case ReportRecorded() as report:
            fields = {"attempt": str(report.attempt), **_checkpoint(report.checkpoint)}
            return replace(entry, step=report.step, metrics=report.metrics, fields=fields)
        case TrialMoved() as moved:
            return replace(entry, fields=_moved(moved), status=_status(moved.to_state, moved.reason))
        case DecisionMade(explanation=why):
            return replace(entry, fields={"rule": why.rule, "decision": why.sentence})
        case TrialExploited(exploit=copied):
            changed = {f"{LAST_PARAM}{name}": str(value) for name, value in copied.params.items()}
            copy = f"trial {copied.donor} at step {copied.step}"
            return replace(entry, fields={"copied": copy, **changed})
        case TrialWarned(warning=warning):
            return replace(entry, fields={"warning": warning})
        case _:
            return None


def by_trial(events: Iterable[Event]) -> dict[int, list[Entry]]:
    """The entries of some events, in order, for each trial."""
    found: dict[int, list[Entry]] = {}
    for event in events:
        entry = entry_of(event)
        if entry is not None:
            found.setdefault(entry.trial, []).append(entry)
    return found


def linked(found: Iterable[Entry], page: str) -> list[Entry]:
    """The entries of a trial, with a link to its page in the console where they begin it."""
    return [
        one if one.params is None else replace(one, fields={**one.fields, "console": page}) for one in found
    ]


def as_of(
    trials: Iterable[TrialInfo], reports: Iterable[Report], later: Iterable[Event]
) -> tuple[list[TrialInfo], list[Report]]:
    """Trials and reports without those that the `later` events created while the tables were read."""
    created, reported = set(), set()
    for event in later:
        match event.detail:
            case TrialCreated():
                created.add(event.trial)
            case ReportRecorded(attempt=attempt, sequence=sequence):
                reported.add((event.trial, attempt, sequence))
            case _:
                pass
    kept = [trial for trial in trials if trial.number not in created]
    return kept, [one for one in reports if (one.trial, one.attempt, one.sequence) not in reported]


def of_tables(cursor: int, trials: Sequence[TrialInfo], reports: Iterable[Report]) -> dict[int, list[Entry]]:
    """The entries of a study whose events were deleted by age, from its trials and reports.

    All carry the study's cursor: a run has either none of them or all.
    """
    of: dict[int, list[Report]] = {}
    for report in reports:
        of.setdefault(report.trial, []).append(report)
    return {trial.number: _of_tables(cursor, trial, of.get(trial.number, ())) for trial in trials}


def _of_tables(cursor: int, trial: TrialInfo, reports: Sequence[Report]) -> list[Entry]:
    entry = Entry(cursor=cursor, trial=trial.number, time_ms=_time_ms(trial.created), of_tables=True)
    began = {"state": TrialState.PENDING.value, "bracket": str(trial.bracket)}
    if trial.baseline:
        began["baseline"] = "true"
    params = trial.lineage[0].previous_params if trial.lineage else trial.params
    points = (
        replace(
            entry,
            time_ms=_time_ms(report.time),
            step=report.step,
            metrics=report.metrics,
            fields={"attempt": str(report.attempt)},
        )
        for report in reports
    )
    last = replace(
        entry,
        time_ms=_time_ms(trial.ended or (reports[-1].time if reports else trial.created)),
        fields=_state(trial.state, trial.reason, trial.detail) | _checkpoint(trial.checkpoint),
        status=_status(trial.state, trial.reason),
    )
    return [replace(entry, params=params, fields=began, status=Status.WAITING), *points, last]


def _moved(moved: TrialMoved) -> dict[str, str]:
    fields = _state(moved.to_state, moved.reason, moved.detail)
    if moved.worker:
        fields["worker"] = moved.worker
    if moved.attempt:
        fields["attempt"] = str(moved.attempt)
    return fields


def _state(state: TrialState, reason: TerminationReason | None, detail: str) -> dict[str, str]:
    """The state, the reason for the end, and the sentence about it. A trial that continues loses its reason."""
    return {"state": state.value, "reason": reason.value if reason else "", "detail": detail}


def _status(state: TrialState, reason: TerminationReason | None) -> Status:
    if reason is not None:
        return _STATUS_OF_REASON[reason]
    return _STATUS_OF_STATE.get(state, Status.WAITING)


def _checkpoint(checkpoint: Checkpoint | None) -> dict[str, str]:
    if checkpoint is None:
        return {}
    return {"checkpoint": checkpoint.uri, "checkpoint_step": str(checkpoint.step)}


def _time_ms(time: datetime | None) -> int:
    return round(time.timestamp() * 1000) if time is not None else 0
