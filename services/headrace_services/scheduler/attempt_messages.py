"""What an attempt reports about itself, for workers and ask/tell clients alike: its code and its schedules."""

from headrace.bounds.sessions import SCHEDULE_NAME
from headrace.v1 import event_pb2, trial_pb2
from headrace_services.scheduler.core.inputs import AttemptCode, SourceFile
from headrace_services.scheduler.core.records import Schedule

_PAST_ENDS = {trial_pb2.PAST_END_RAISES: "RAISES", trial_pb2.PAST_END_RISES: "RISES"}
"""The names in records for what a schedule does past its end; an unknown one is empty."""
_PAST_END_VALUES = {name: value for value, name in _PAST_ENDS.items()}


def attempt_code(message: event_pb2.AttemptCode) -> AttemptCode:
    """The code that it runs."""
    files = tuple(SourceFile(file.path, file.digest) for file in message.files)
    return AttemptCode(digest=message.digest, files=files)


def schedule(message: trial_pb2.Schedule) -> Schedule:
    """One of its schedules, with names cut to the stored length."""
    return Schedule(
        name=SCHEDULE_NAME.kept(message.name),
        kind=SCHEDULE_NAME.kept(message.kind),
        last_step=message.last_step,
        past_end=_PAST_ENDS.get(message.past_end, ""),
    )


def schedule_message(record: Schedule) -> trial_pb2.Schedule:
    """The same as shown to users."""
    past_end = _PAST_END_VALUES.get(record.past_end, trial_pb2.PAST_END_UNSPECIFIED)
    return trial_pb2.Schedule(
        name=record.name, kind=record.kind, last_step=record.last_step, past_end=past_end
    )
