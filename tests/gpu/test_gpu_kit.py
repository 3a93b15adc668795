"""The kit: how time is divided, what the record says, and that a run that is cut off has kept what it measured."""

import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

import kit_parts
import kit_run
import psutil
import pytest
from kit_lines import Line, read
from kit_parts import PARTS, limit_s
from kit_record import Card, Record, Result, Software, as_json, file_name, table, whole

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / ".ci"))

import gpu_kit  # noqa: E402  its folder is on the path from here on

CARD = Card(name="NVIDIA H100 80GB HBM3", memory_bytes=85 << 30, driver="580.1", settings={"MIG": "off"})
SOFTWARE = Software(commit="0123abcd", headrace="0.1.0", python="3.12.3", torch="2.11.0", cuda="13.0")
STEP = Line(name="step", at="batch 2", value=1.5, unit="ms")


def record(card: Card | None = CARD, *parts: Result) -> Record:
    return Record(card=card, software=SOFTWARE, started="2026-11-30T12:00:00+00:00", minutes=8, parts=parts)


def part(name: str, state: Any, *lines: Line) -> Result:
    return Result(name=name, asks="whether", state=state, limit_s=60, took_s=12, lines=lines)


def test_a_run_of_eight_minutes_gives_each_part_its_share() -> None:
    total = sum(one.share for one in PARTS)
    assert total == 8 * 60
    left = [total, *(total - used for used in accumulate(one.share for one in PARTS))]
    limits = [limit_s(PARTS[number:], left[number]) for number in range(len(PARTS))]
    assert limits == pytest.approx([one.share for one in PARTS])


def test_time_that_is_left_over_goes_to_the_next_parts() -> None:
    assert limit_s(PARTS[-1:], 400) == 400
    assert limit_s(PARTS[1:], 380 + 95) == pytest.approx(PARTS[1].share * 475 / 380)


def test_a_part_without_time_is_not_started() -> None:
    assert limit_s(PARTS[-1:], kit_parts.LEAST_S - 1) == 0
    assert limit_s(PARTS[-1:], -20) == 0


def test_if_there_is_little_time_the_first_parts_get_it() -> None:
    assert limit_s(PARTS, 30) == kit_parts.LEAST_S
    assert limit_s(PARTS[1:], 10) == 0


def test_only_a_card_has_a_record_of_its_name() -> None:
    assert file_name(CARD) == "nvidia-h100-80gb-hbm3.json"
    assert file_name(None) == "no-card.json"
    assert "label" not in as_json(record(CARD))
    assert "no measurements" in as_json(record(None))["label"]


def test_a_record_has_what_was_measured_and_why_the_rest_was_not() -> None:
    skipped = Line(name="step", at="mps", outcome="skipped", why="no control daemon")
    found = as_json(record(CARD, part("sharing", "complete", STEP, skipped)))
    assert found["card"]["driver"] == "580.1"
    assert (found["software"]["torch"], found["software"]["commit"]) == ("2.11.0", "0123abcd")
    (kept,) = found["parts"]
    assert kept["lines"] == [
        {"name": "step", "outcome": "measured", "at": "batch 2", "value": 1.5, "unit": "ms"},
        {"name": "step", "outcome": "skipped", "at": "mps", "why": "no control daemon"},
    ]


def test_the_table_shows_figures_and_whatever_did_not_pass() -> None:
    passed, failed = Line(name="test_a", outcome="passed"), Line(name="test_b", outcome="failed", why="2 > 1")
    more = Line(name="memory", at="batch 2", value=3, unit="MiB")
    shown = "\n".join(
        table(record(CARD, part("numbers", "failed", passed, failed), part("fusion", "complete", STEP, more)))
    )
    assert "NVIDIA H100 80GB HBM3; torch 2.11.0, CUDA 13.0; Headrace 0.1.0 at 0123abcd" in shown
    assert "test_b: failed: 2 > 1" in shown
    assert "batch 2: step 1.5 ms, memory 3 MiB" in shown
    assert "test_a" not in shown
    assert "no GPU" in next(table(record(None)))


@pytest.mark.parametrize(
    ("states", "run"),
    [
        (["complete", "complete"], "complete"),
        (["complete", "out of time"], "out of time"),
        (["failed", "out of time"], "failed"),
    ],
)
def test_a_run_is_as_its_worst_part(states: list[Any], run: str) -> None:
    assert whole([part("numbers", state) for state in states]) == run


def test_no_line_is_lost_or_half_read(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    written = json.dumps({"name": "step", "at": "batch 2", "value": 1.5, "unit": "ms"})
    path.write_text(f"{written}\n{written[:20]}")
    assert list(read(path)) == [STEP]


MEASURES = """
import sys, time
sys.path.insert(0, {folder!r})
from kit_lines import Line, say
say(Line(name="step", at="batch 2", outcome={outcome!r}, value=1.5, unit="ms"))
time.sleep({seconds})
sys.exit({status})
"""
RUNS = """
import sys, time
sys.path.insert(0, {folder!r})
import kit_run
from kit_parts import Part
from kit_record import Record, Software
from pathlib import Path
software = Software(commit="", headrace="", python="", torch="", cuda="")
record = Record(card=None, software=software, started="", minutes=1)
kit_run.PARTS = [Part(name=name, asks="", program=program, share=30) for name, program in {programs!r}]
with kit_run.cut_off_by_signals():
    kit_run.Runner(record, Path({out!r}) / "record.json", Path({out!r})).run(time.monotonic() + {seconds})
"""


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., "subprocess.Popen[bytes]"]:
    """Starts a run whose parts measure one thing, stay for some seconds, and end with a status."""
    folder = str(ROOT / "benchmarks" / "gpu")

    def start(
        *parts: tuple[str, float, int], seconds: float = 60, outcome: str = "measured"
    ) -> "subprocess.Popen[bytes]":
        programs = []
        for name, stays, status in parts:
            program = tmp_path / f"{name}.py"
            program.write_text(MEASURES.format(folder=folder, outcome=outcome, seconds=stays, status=status))
            programs.append((name, str(program)))
        code = RUNS.format(folder=folder, programs=programs, out=str(tmp_path), seconds=seconds)
        return subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(tmp_path)})

    return start


def kept(tmp_path: Path) -> dict[str, Any]:
    """The record on disk, at any moment."""
    path = tmp_path / "record.json"
    return json.loads(path.read_text()) if path.exists() else {"state": "", "parts": []}


def until_measured(tmp_path: Path, process: "subprocess.Popen[bytes]") -> None:
    while not any(one["lines"] for one in kept(tmp_path)["parts"]):
        assert process.poll() is None
        time.sleep(0.02)  # the record appears by a rename


def test_parts_run_one_after_the_other_and_one_that_fails_stops_no_other(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    run(("first", 0, 3), ("second", 0, 0)).wait()
    found = kept(tmp_path)
    assert [(one["name"], one["state"], len(one["lines"])) for one in found["parts"]] == [
        ("first", "failed", 1),
        ("second", "complete", 1),
    ]
    assert found["state"] == "failed"
    assert "step: 1.5 ms" in found["parts"][0]["why"]


def test_a_part_that_ends_well_has_failed_if_something_in_it_has(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    run(("first", 0, 0), outcome="failed").wait()
    found = kept(tmp_path)
    assert (found["state"], found["parts"][0]["state"]) == ("failed", "failed")


def test_a_run_that_is_killed_has_written_what_it_measured(run: Callable[..., Any], tmp_path: Path) -> None:
    process = run(("first", 300, 0))
    until_measured(tmp_path, process)
    (part_of_it,) = psutil.Process(process.pid).children()
    process.kill()
    process.wait()
    part_of_it.wait(60)  # it does not stay on the card
    found = kept(tmp_path)
    assert found["state"] == "running"
    assert found["parts"][0]["lines"][0]["value"] == 1.5


def test_a_run_that_is_ended_says_so_and_ends_its_part(run: Callable[..., Any], tmp_path: Path) -> None:
    process = run(("first", 300, 0), ("second", 0, 0))
    until_measured(tmp_path, process)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 0
    found = kept(tmp_path)
    assert (found["state"], found["notes"]) == ("cut off", ["ended by SIGTERM"])
    assert [(one["state"], len(one["lines"])) for one in found["parts"]] == [("cut off", 1)]


@pytest.mark.full
def test_a_part_that_exceeds_its_limit_is_ended(run: Callable[..., Any], tmp_path: Path) -> None:
    run(("only", 300, 0), seconds=kit_run.CLOSING_S + kit_parts.LEAST_S + 0.5).wait()
    found = kept(tmp_path)
    assert (found["state"], found["parts"][0]["state"]) == ("out of time", "out of time")
    assert len(found["parts"][0]["lines"]) == 1


def test_the_kit_has_every_module_that_its_programs_import() -> None:
    names = {path.as_posix() for path in gpu_kit.files()}
    assert {one.program for one in PARTS} <= names
    assert "benchmarks/gpu/stage_receive.py" in names  # imported on a GPU alone
    assert "tests/gpu/shared_trial.py" in names
    assert "tests/gpu/test_gpu_kit.py" not in names


def test_the_kit_says_what_the_image_must_have() -> None:
    assert {need.partition(">=")[0] for need in gpu_kit.needs()} == set(gpu_kit.IMAGE)


REFUSALS = {
    "this kit is for Python 2.9": {"KIT_PYTHON": "2.9"},
    "this kit is for vax": {"KIT_MACHINE": "vax"},
    "this kit needs glibc 9.1 or newer": {"KIT_GLIBC": "9.1"},
    "has no unheard-of, and the kit does not bring it": {"KIT_NEEDS": "torch>=2.6 unheard-of>=1.0"},
    "and Headrace needs 99.0 or newer": {"KIT_NEEDS": "torch>=99.0"},
}


@pytest.mark.parametrize("text", REFUSALS)
def test_run_sh_refuses_what_the_kit_is_not_for(text: str, tmp_path: Path) -> None:
    fits = {
        "KIT_PYTHON": "{}.{}".format(*sys.version_info),
        "KIT_MACHINE": platform.machine(),
        "KIT_GLIBC": "2.17",
        "KIT_NEEDS": "torch>=2.6",
        "KIT_COMMIT": "0123abcd",
    }
    script = tmp_path / "run.sh"
    script.write_bytes((ROOT / "benchmarks/gpu/run.sh").read_bytes())
    described = {**fits, **REFUSALS[text]}
    (tmp_path / "kit.env").write_text("".join(f"{name}='{value}'\n" for name, value in described.items()))
    environ = {**os.environ, "PYTHON": sys.executable}
    ran = subprocess.run(["bash", str(script)], env=environ, capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert text in ran.stderr
    assert not (tmp_path / "venv").exists()
