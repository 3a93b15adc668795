"""The operations of a trial as flows (see `headrace.client.flows`)."""

from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Protocol

from headrace.client import convert, convert_events
from headrace.client.events import TrialStory
from headrace.client.flow import Flow, rpc
from headrace.client.flows import annotated, reports_of, request_id
from headrace.client.model import (
    Annotation,
    Listing,
    Report,
    TrialInfo,
)
from headrace.client.names import trial_name
from headrace.client.upkeep import LogPart
from headrace.v1 import study_pb2 as pb


class TrialHandle(Protocol):
    """A handle of one trial."""

    @property
    def study(self) -> str: ...
    @property
    def number(self) -> int: ...


def trial(handle: TrialHandle) -> Flow[TrialInfo]:
    """The trial as of now."""
    request = pb.GetTrialRequest(name=trial_name(handle.study, handle.number))
    response = yield from rpc(pb.GetTrialResponse, request)
    return convert.trial(response.trial)


def explain(handle: TrialHandle) -> Flow[TrialStory]:
    """Everything that happened to the trial. Decisions include the rule and the values that were compared."""
    request = pb.ExplainTrialRequest(name=trial_name(handle.study, handle.number))
    response = yield from rpc(pb.ExplainTrialResponse, request)
    return TrialStory(
        trial=convert.trial(response.trial),
        events=tuple(convert_events.event(event) for event in response.events),
    )


def trial_reports(handle: TrialHandle) -> Flow[Listing[Report]]:
    """The trial's reports, in order."""
    return reports_of(trial_name(handle.study, handle.number))


def read_log(handle: TrialHandle, cursor: str = "", *, within: timedelta | None = None) -> Flow[LogPart]:
    """The next part of the trial's output, wherever its worker is: at most 64 KiB. `cursor` comes from the
    previous part. Without a cursor, `within` leaves out older output. A part without data means that there is
    nothing more now: ask again later, unless it is complete.

    Raises `WorkerAwayError`, `LogGoneError` or `StoreAwayError` if the log cannot be read.
    """
    request = pb.ReadLogRequest(name=trial_name(handle.study, handle.number), cursor=cursor)
    if within is not None:
        request.within.FromTimedelta(within)
    part = yield from rpc(pb.ReadLogResponse, request)
    return LogPart(data=part.data, cursor=part.next_cursor, complete=part.complete, notes=tuple(part.notes))


def annotate_trial(
    handle: TrialHandle,
    *,
    add_tags: Iterable[str] = (),
    remove_tags: Iterable[str] = (),
    note: str | None = None,
) -> Flow[Annotation]:
    """Changes the trial's tags and, unless `note` is None, its note. Returns both as they are now."""
    return (yield from annotated(trial_name(handle.study, handle.number), add_tags, remove_tags, note))


def log_path(handle: TrialHandle) -> Flow[Path | None]:
    """The log file, on the machine of the worker that last ran the trial; None before the trial has run."""
    path = (yield from trial(handle)).log_path
    return Path(path) if path else None


def pause_trial(handle: TrialHandle) -> Flow[TrialInfo]:
    """Pauses the trial at its next rung; it stays paused until it is resumed."""
    request = pb.PauseTrialRequest(request_id=request_id(), name=trial_name(handle.study, handle.number))
    response = yield from rpc(pb.PauseTrialResponse, request)
    return convert.trial(response.trial)


def resume_trial(handle: TrialHandle) -> Flow[TrialInfo]:
    """Undoes `pause`."""
    request = pb.ResumeTrialRequest(request_id=request_id(), name=trial_name(handle.study, handle.number))
    response = yield from rpc(pb.ResumeTrialResponse, request)
    return convert.trial(response.trial)


def stop_trial(handle: TrialHandle, reason: str = "") -> Flow[TrialInfo]:
    """Cancels the trial."""
    request = pb.StopTrialRequest(
        request_id=request_id(), name=trial_name(handle.study, handle.number), reason=reason
    )
    response = yield from rpc(pb.StopTrialResponse, request)
    return convert.trial(response.trial)
