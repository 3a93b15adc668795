"""Everything that a report shows, collected once through the SDK."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Final

from headrace.client import flows, wording
from headrace.client.events import Event, TrialMoved
from headrace.client.importance import importance_or_reason
from headrace.client.machines import SlotLoad
from headrace.client.model import (
    Importance,
    Report,
    StudyInfo,
    TerminationReason,
    TrialInfo,
    TrialState,
)
from headrace.client.outcome import Outcome
from headrace.client.sync import Study
from headrace.client.wording import kept_result, left_out
from headrace.errors import StudyNotFoundError
from headrace.spec import BestOfSampler

ON_SLOT = (TrialState.RUNNING, TrialState.RESUMED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """An attempt of a trial on its slots, from placement to departure."""

    trial: int
    worker: str
    slots: tuple[int, ...]
    start: datetime
    end: datetime
    ending: str
    """What ended it: `paused`, `completed`, `stopped_early`, `failed`, `cancelled`, `interrupted`, or `running`."""
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Other:
    """The other study of a transfer: for the search, the one that trains its best configurations, and vice
    versa.
    """

    name: str
    stays: tuple[Stay, ...]
    search_ended: datetime | None
    """When the search, one of the two, ended; None while it is running."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotHistory:
    """How busy a slot of the study's trials was in the last hour, oldest minute first."""

    worker: str
    index: int
    loads: tuple[SlotLoad, ...]


@dataclass(frozen=True, kw_only=True)
class StudyData:
    """A study with everything that happened in it."""

    study: StudyInfo
    trials: tuple[TrialInfo, ...]
    reports: tuple[Report, ...]
    events: tuple[Event, ...]
    left_out: tuple[str, ...] = ()
    """What the scheduler left out of its answers, one line each."""
    importances: tuple[Importance, ...] = ()
    """The importance of the parameters, by objective."""
    devices: tuple[SlotHistory, ...] = ()
    """The slots that its trials were on, if their loads are known."""
    other: Other | None = None
    """The other study, if a transfer created the two together."""

    @cached_property
    def by_number(self) -> Mapping[int, TrialInfo]:
        """The trials by number."""
        return {trial.number: trial for trial in self.trials}

    @property
    def metric(self) -> str:
        """The objective's metric."""
        return self.study.spec.objective.metric

    @property
    def outcome(self) -> Outcome:
        """The study's figures."""
        return Outcome(self.study)

    @property
    def maximize(self) -> bool:
        """True if larger values are better."""
        return self.outcome.maximize

    def curves(self) -> Mapping[int, list[tuple[int, float]]]:
        """Every trial's finite values by step. If a step was computed twice, the later attempt counts."""
        points: dict[int, dict[int, float]] = {trial.number: {} for trial in self.trials}
        for report in self.reports:
            if self.metric in report.metrics:
                points.setdefault(report.trial, {})[report.step] = report.metrics[self.metric]
        return {
            trial: [(step, value) for step, value in sorted(steps.items()) if math.isfinite(value)]
            for trial, steps in points.items()
        }

    def why(self, trial: TrialInfo) -> str:
        """Why a trial is in its state, in one line; which result it keeps; and whether it ran different code."""
        found = trial.detail.splitlines()[0] if trial.detail else self._waits(trial)
        return "; ".join(filter(None, (found, kept_result(trial), wording.other_code(trial))))

    def _waits(self, trial: TrialInfo) -> str:
        return {
            "pending": "waits for a slot",
            "paused": "waits for a promotion",
            "running": "on a worker",
            "resumed": "is loading its checkpoint",
        }.get(trial.outcome, "")

    def stays(self) -> list[Stay]:
        """Every attempt on a slot, ordered by end; running ones end with the last event."""
        return list(stays(self.events))


def gather(study: Study) -> StudyData:
    """Reads the study; for a running one, the events up to now."""
    info, trials, reports = study.status(), study.trials(), study.reports()
    events = tuple(study.events(until=info.cursor))
    return StudyData(
        study=info,
        trials=tuple(trials),
        reports=tuple(reports),
        events=events,
        devices=_devices(study, info, events),
        left_out=tuple(line for found in (info, trials, reports) for line in left_out(found)),
        importances=importance_or_reason(study, info),
        other=other_of(study, info),
    )


def other_of(study: Study, info: StudyInfo) -> Other | None:
    """The other study of a transfer, if one created the two together."""
    if info.spec.transfer is not None:
        name = info.spec.transfer.study_name(info.name)
    elif isinstance(info.spec.sampler, BestOfSampler):
        name = info.spec.sampler.study
    else:
        return None
    handle = Study(study.transport, name)
    try:
        found = handle.status()
        search, target = (info, found) if info.spec.transfer is not None else (found, info)
        transfer = search.spec.transfer
        if transfer is None or transfer.study_name(search.name) != target.name:
            return None  # it uses an earlier study, and may have started long after it
        others = tuple(stays(tuple(handle.events(until=found.cursor))))
    except StudyNotFoundError:
        return None
    return Other(name=found.name, stays=others, search_ended=search.ended)


def _devices(study: Study, info: StudyInfo, events: tuple[Event, ...]) -> tuple[SlotHistory, ...]:
    """The loads of the slots that trials were on within the last hour; the scheduler keeps no older ones."""
    began, ended = info.created, info.ended
    used = {(stay.worker, index) for stay in stays(events) for index in stay.slots}
    if not used:
        return ()
    return tuple(
        SlotHistory(worker=worker.name, index=slot.index, loads=loads)
        for worker in study.transport.run(flows.workers(study, history=True))
        for slot in worker.slots
        if (worker.name, slot.index) in used
        and (loads := tuple(load for load in slot.loads if _within(load, began, ended)))
    )


def _within(load: SlotLoad, began: datetime | None, ended: datetime | None) -> bool:
    """Whether a minute overlaps with the study's time."""
    minute = timedelta(minutes=1)
    return (began is None or load.minute + minute > began) and (ended is None or load.minute < ended)


def stays(events: tuple[Event, ...]) -> Iterator[Stay]:
    """Every attempt on a slot, ordered by end; running ones end with the last event."""
    open_since: dict[int, tuple[Event, TrialMoved]] = {}
    for event in events:
        moved = event.detail
        if not isinstance(moved, TrialMoved) or event.trial is None:
            continue
        if moved.to_state in ON_SLOT:
            if moved.worker:
                open_since.setdefault(event.trial, (event, moved))
        elif event.trial in open_since:
            yield _stay(
                *open_since.pop(event.trial), end=event.time, ending=_ending(moved), detail=moved.detail
            )
    if events:
        for began, moved in open_since.values():
            yield _stay(began, moved, end=events[-1].time, ending="running", detail="still running")


def _stay(began: Event, moved: TrialMoved, *, end: datetime | None, ending: str, detail: str) -> Stay:
    if began.trial is None or began.time is None or end is None:
        raise ValueError("an event of a trial's stay has no trial or no time")
    return Stay(
        trial=began.trial,
        worker=moved.worker or "",
        slots=moved.slots,
        start=began.time,
        end=end,
        ending=ending,
        detail=detail,
    )


_BROKEN_OFF: Final = {"interrupt": "interrupted", "retry": "failed"}


def _ending(moved: TrialMoved) -> str:
    if moved.action in _BROKEN_OFF:
        return _BROKEN_OFF[moved.action]
    if moved.to_state is TrialState.TERMINATED:
        return (moved.reason or TerminationReason.COMPLETED).value
    return "paused"
