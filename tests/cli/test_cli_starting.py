"""Commands that are typed while `headrace up` is still starting in the same home."""

import fcntl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest
from commands_run import Invoke
from fake_study_service import FakeStudyService

from headrace.home import ADDRESS_FILE, LOCK_FILE


@pytest.fixture
def up(fake: FakeStudyService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TextIO]:
    """The lock of an `up` that is starting."""
    monkeypatch.delenv("HEADRACE_ADDRESS")
    home = tmp_path / "home"
    home.mkdir()
    with (home / LOCK_FILE).open("w") as lock:
        lock.write("4711\n")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock


def later(what: object) -> None:
    threading.Timer(1.0, what).start()  # type: ignore[arg-type]


def test_a_command_waits_for_the_address(
    up: TextIO, fake: FakeStudyService, invoke: Invoke, study_file: Path, tmp_path: Path
) -> None:
    later(lambda: (tmp_path / "home" / ADDRESS_FILE).write_text(fake.address))
    result = invoke("run", str(study_file), "--detach")
    assert result.code == 0, result.err
    assert result.err.count("is still starting") == 1
    assert f"Study fresh created on {fake.address}: 27 configurations and the baseline" in result.out


@pytest.mark.parametrize("runs", [True, False])
def test_a_scheduler_that_an_up_starts_again_is_waited_for(
    up: TextIO,
    fake: FakeStudyService,
    invoke: Invoke,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    runs: bool,
) -> None:
    monkeypatch.setattr("headrace.cli.session._UNKNOWN_S", 0.2)
    address = tmp_path / "home" / ADDRESS_FILE
    address.write_text("127.0.0.1:1")
    if not runs:
        fcntl.flock(up, fcntl.LOCK_UN)
    later(lambda: address.write_text(fake.address))
    assert invoke("studies").code == (0 if runs else 1)


def test_a_command_gives_up_with_a_clear_error(
    up: TextIO, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_TIMEOUT_S", "0.5")
    result = invoke("studies")
    assert result.code == 1
    assert "error: `headrace up` is still starting in" in result.err
    assert "7440" not in result.err


def test_an_up_that_fails_to_start_does_not_lead_to_the_default_address(up: TextIO, invoke: Invoke) -> None:
    later(lambda: fcntl.flock(up, fcntl.LOCK_UN))
    result = invoke("studies")
    assert result.code == 1
    assert "ended before it was ready" in result.err
