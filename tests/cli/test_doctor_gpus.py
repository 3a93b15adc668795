"""What `headrace doctor` says about sharing the GPUs of this machine. The rules: `tests/worker/test_mps_rules.py`."""

import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace import mps
from headrace.cli import machine_gpus

CARD = mps.Card(uuid="GPU-1")


@pytest.mark.parametrize(
    ("changed", "level", "says", "remedy"),
    [
        ({}, "ok", "a worker here starts it in", ""),
        (
            {"binary": None},
            "warn",
            "shares of a GPU take turns here: nvidia-cuda-mps-control is not",
            "Install it",
        ),
        ({"driver": "470.1"}, "warn", "driver 470.1 cannot limit the memory", "Install driver 495"),
        (
            {"cards": (mps.Card(uuid="GPU-1", divided=True),)},
            "ok",
            "GPU-1: a worker here offers the instances; trials do not share them",
            "Give each trial an instance",
        ),
        (
            {
                "cards": (mps.Card(uuid="GPU-1", mode=mps.ComputeMode.EXCLUSIVE),),
                "control": mps.Control(pid=7, uid=0),
            },
            "ok",
            "(process 7); a worker here uses it",
            "",
        ),
        ({"control": mps.Control(pid=7, uid=99999)}, "warn", "belongs to user 99999", "End it as that user"),
        ({"control": mps.Control(pid=7, uid=0)}, "ok", "(process 7); a worker here uses it", ""),
        (
            {"cards": (mps.Card(uuid="GPU-1", mode=mps.ComputeMode.EXCLUSIVE),)},
            "warn",
            "GPU GPU-1 is in exclusive mode and accepts one process at a time, so trials cannot share it",
            "compute-mode=DEFAULT",
        ),
    ],
)
def test_what_keeps_trials_from_sharing_is_said_with_its_remedy(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changed: dict[str, Any],
    level: str,
    says: str,
    remedy: str,
) -> None:
    facts = replace(mps.Facts(pipe=tmp_path / "mps", binary="/usr/bin/x", cards=(CARD,)), **changed)
    monkeypatch.setattr(mps, "look", lambda *_: facts)
    found = [one for one in machine_gpus.findings() if one.what in {"MPS", "MIG"}][-1]
    assert (found.level.value, says in found.text, remedy in found.remedy) == (level, True, True), found


def test_sockets_without_a_process_are_told_apart_from_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as control:
        control.bind("control")
        facts = mps.Facts(pipe=tmp_path, binary="/usr/bin/x", cards=(CARD,))
        monkeypatch.setattr(mps, "look", lambda *_: facts)
        (found,) = [one for one in machine_gpus.findings() if one.what == "MPS"]
    assert "does not run, or runs in another container" in found.text


def test_a_machine_without_gpus_is_told_nothing_about_sharing_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mps, "look", lambda pipe, *_: mps.Facts(pipe=pipe, binary=None))
    assert [one.what for one in machine_gpus.findings()] == ["GPUs"]
