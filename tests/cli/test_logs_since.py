"""`headrace logs --since`: durations and times, with a log on this machine and with one elsewhere."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from commands_run import Invoke
from fake_study_service import FakeStudyService
from scripted_study import Script
from test_logs_from_elsewhere import Reading, reading

from headrace import log_times
from headrace.errors import InvalidFieldError
from headrace.lifetimes import since_of
from headrace.log_times import Mark

__all__ = ["reading"]

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10m", 600),
        ("0s", 0),
        ("999999d", 10**9),
        ("2026-01-31T11:59:00Z", 60),
        ("2026-01-31T12:59:00+01:00", 60),
        ("2026-01-31 12:00:00+00:00", 0),
        ("1900-01-01T00:00Z", 10**9),
    ],
)
def test_how_long_ago_a_text_says(text: str, seconds: int) -> None:
    assert since_of(text, "--since", NOW) == timedelta(seconds=seconds)


def test_a_time_without_an_offset_is_local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "XYZ-2")
    time.tzset()
    try:
        assert since_of("2026-01-31T13:59", "--since", NOW) == timedelta(minutes=1)
        assert since_of("2026-01-31", "--since", NOW.astimezone(timezone(timedelta(hours=2)))) == timedelta(
            hours=14
        )
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    "text",
    ["", "10", "m", "-10m", "yesterday", "2026-13-01", "0001-01-01T00:00+14:00", "2026-01-31T12:01Z"],
)
def test_what_is_no_time_that_was_is_refused(text: str) -> None:
    with pytest.raises(InvalidFieldError, match="--since"):
        since_of(text, "--since", NOW)


@pytest.fixture
def log(fake: FakeStudyService, script: Script, tmp_path: Path) -> Iterator[Path]:
    """The log of trial 5, on this machine: a line from an hour ago, one from half an hour ago, and one from now."""
    trial, before = script.final.trials[5], script.final.trials[5].log_path
    path = tmp_path / "5.log"
    path.write_text("one\ntwo\nthree\n")
    now_ms = int(time.time() * 1000)
    marks = [Mark(now_ms - 3_700_000, 0), Mark(now_ms - 3_500_000, 4), Mark(now_ms - 1_700_000, 8)]
    log_times.path_of(path).write_bytes(log_times.pack(marks))
    trial.log_path = str(path)
    yield path
    trial.log_path = before


@pytest.mark.parametrize("follow", [(), ("-f",)])
@pytest.mark.parametrize(
    ("options", "out"),
    [
        (("--since", "10m"), "three\n"),
        (("--since", "50m"), "two\nthree\n"),
        (("--since", "2h"), "one\ntwo\nthree\n"),
        (("--since", "50m", "--tail", "1"), "three\n"),
        (("--since", "10m", "--tail", "2"), "three\n"),
    ],
)
def test_a_log_that_lies_here(
    log: Path, invoke: Invoke, follow: tuple[str, ...], options: tuple[str, ...], out: str
) -> None:
    result = invoke("logs", "digits", "5", *options, *follow)
    assert (result.code, result.out, result.err) == (0, out, "")


def test_a_log_without_marks_is_printed_whole_and_says_so(log: Path, invoke: Invoke) -> None:
    log_times.path_of(log).unlink()
    result = invoke("logs", "digits", "5", "--since", "10m")
    assert (result.code, result.out) == (0, "one\ntwo\nthree\n")
    assert f"{log}: when it was printed is not known, so all of it is shown." in result.err


def test_the_service_is_asked_for_a_log_elsewhere(reading: Reading, invoke: Invoke) -> None:
    assert invoke("logs", "digits", "5", "--since", "10m").code == 0
    first = reading.within[0]
    assert first is not None
    assert first.seconds == 600
    assert invoke("logs", "digits", "5").code == 0
    assert reading.within[-1] is None


@pytest.mark.parametrize("when", ["soon", "2999-01-01"])
def test_what_is_no_time_is_refused_in_words(log: Path, invoke: Invoke, when: str) -> None:
    result = invoke("logs", "digits", "5", "--since", when)
    assert (result.code, result.out) == (2, "")
    assert "for example 10m, 2h or 1d, or when: 2026-01-31T12:00" in result.err
