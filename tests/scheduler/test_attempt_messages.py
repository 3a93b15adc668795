"""The messages of an attempt are read alike, whoever runs it."""

import pytest

from headrace.bounds.sessions import SCHEDULE_NAME
from headrace.first_few import first_few
from headrace.v1 import event_pb2, trial_pb2
from headrace_services.scheduler.attempt_messages import attempt_code, schedule, schedule_message


@pytest.mark.parametrize("past_end", trial_pb2.PastEnd.values())
def test_a_schedule_is_shown_as_it_was_told(past_end: trial_pb2.PastEnd.ValueType) -> None:
    told = trial_pb2.Schedule(name="cosine", kind="CosineAnnealingLR", last_step=90, past_end=past_end)
    assert schedule_message(schedule(told)) == told


def test_a_later_contracts_past_end_is_unknown_and_a_long_name_is_cut() -> None:
    read = schedule(trial_pb2.Schedule(name="x" * 10_000, past_end=99))  # type: ignore[arg-type]  # of a newer worker
    assert read.past_end == ""
    assert read.name == SCHEDULE_NAME.kept("x" * 10_000)
    assert len(read.name) < 10_000


def test_code_is_read_file_by_file() -> None:
    told = event_pb2.AttemptCode(digest="d", files=[event_pb2.SourceFile(path="a.py", digest="1")])
    read = attempt_code(told)
    assert (read.digest, [(file.path, file.digest) for file in read.files]) == ("d", [("a.py", "1")])


def test_many_names_are_told_by_the_first_of_them() -> None:
    assert first_few(["a", "b", "c"]) == "a, b, c"
    assert first_few(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more"
    assert first_few(["1", "2"], 1) == "1 and 1 more"
