"""What a trial prints on a full disk is dropped and counted; training continues."""

import errno
import io
import os
from pathlib import Path

import pytest

from headrace.trial.output import PatientOutput


class Disk:
    """Descriptor writes that fail as told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error: int | None = None
        self._write = os.write
        monkeypatch.setattr(os, "write", self.write)

    def write(self, descriptor: int, data: bytes) -> int:
        if self.error is not None:
            raise OSError(self.error, os.strerror(self.error))
        return self._write(descriptor, data)


def test_lines_without_room_are_dropped_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log"
    with path.open("wb") as log:
        disk = Disk(monkeypatch)
        out = io.TextIOWrapper(io.BufferedWriter(PatientOutput(log.fileno())), line_buffering=True)
        print("before", file=out)
        disk.error = errno.ENOSPC
        print("dropped", file=out)
        print("dropped, too", file=out)
        disk.error = None
        print("after", file=out)
        out.detach()
    assert path.read_text() == "before\n[21 bytes were lost: the disk was full]\nafter\n"


def test_other_errors_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "log").open("wb") as log:
        disk = Disk(monkeypatch)
        raw = PatientOutput(log.fileno())
        disk.error = errno.EIO
        with pytest.raises(OSError, match="Input/output"):
            raw.write(b"x")
        disk.error = None
        assert raw.write(b"x") == 1
