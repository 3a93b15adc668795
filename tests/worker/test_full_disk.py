"""A full disk is the machine's problem: the worker waits, reports it, and charges nobody."""

import errno
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from headrace.v1 import worker_pb2
from headrace_worker.backoff import Backoff
from headrace_worker.disk import LEAST_BYTES, out_of_room, size_bytes, when_there_is_room
from headrace_worker.exits import Finished, classify


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_program_that_found_no_room_is_lost_and_not_failed(number: int) -> None:
    error = OSError(number, os.strerror(number))
    said = Finished(error=f"OSError: {error}", traceback="")
    verdict = classify(1, ending=None, finished=said, last_line="")
    assert verdict.outcome == worker_pb2.EXIT_OUTCOME_LOST
    assert os.strerror(number) in verdict.error


def test_another_error_of_the_program_is_its_own() -> None:
    said = Finished(error=f"OSError: {OSError(errno.ENOENT, 'No such file')}", traceback="")
    verdict = classify(1, ending=None, finished=said, last_line="")
    assert verdict.outcome == worker_pb2.EXIT_OUTCOME_FAILED


async def test_work_is_done_when_there_is_room() -> None:
    told: list[str] = []
    failures = [errno.ENOSPC, errno.EDQUOT]

    def work() -> str:
        if failures:
            number = failures.pop()
            raise OSError(number, os.strerror(number))
        return "done"

    assert await when_there_is_room(work, told.append, Backoff(base_s=0.0)) == "done"
    assert len(told) == 3
    assert all(told[:2])
    assert told[-1] == ""


async def test_other_errors_are_not_waited_out() -> None:
    def work() -> None:
        raise PermissionError(errno.EACCES, "no")

    with pytest.raises(PermissionError):
        await when_there_is_room(work, print, Backoff(base_s=0.0))


def test_a_worker_says_when_its_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert out_of_room(tmp_path) == ""
    real = os.statvfs(tmp_path)

    class Full:
        f_frsize = real.f_frsize
        f_bavail = (LEAST_BYTES - 1) // real.f_frsize

    monkeypatch.setattr(os, "statvfs", lambda _: Full)
    assert "full" in out_of_room(tmp_path)
    assert str(tmp_path) in out_of_room(tmp_path)


def test_folders_that_vanish_while_they_are_measured_count_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.scandir

    def vanishing(path: Any) -> Any:
        if "gone" in str(path):
            Path(path).rmdir()
        return real(path)

    (tmp_path / "kept").write_bytes(b"x" * 10_000)
    (tmp_path / "gone").mkdir()
    monkeypatch.setattr(os, "scandir", vanishing)
    assert size_bytes(tmp_path) >= 10_000
    assert not (tmp_path / "gone").exists()


def test_folders_nested_very_deep_are_measured(tmp_path: Path) -> None:
    deepest = tmp_path.joinpath(*["d"] * 1500)
    try:
        folder = tmp_path
        while folder != deepest:
            folder = folder / "d"
            folder.mkdir()
        (deepest / "file").write_bytes(b"x" * 10_000)
        assert size_bytes(tmp_path) >= 10_000
    finally:
        subprocess.run(["rm", "-rf", tmp_path / "d"], check=True)  # pytest cannot delete it


def test_a_folder_that_is_not_there_takes_nothing(tmp_path: Path) -> None:
    assert size_bytes(tmp_path / "none") == 0
