"""Emitted configurations against DeepSpeed's own parser: it understands them as the plan means them."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from planner_cases import CASES, planned

from headrace_services.planner.emit import deepspeed

RULES = Path(__file__).with_name("deepspeed_rules.py")
pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="DeepSpeed is not installed"),
]


def parsed(folders: list[Path]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(RULES), *map(str, folders)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def written(folder: Path, number: int) -> Path:
    folder.mkdir()
    for name, text in deepspeed.files(deepspeed.lower(planned(number))).items():
        (folder / name).write_text(text)
    return folder


def test_deepspeeds_own_parser_understands_ten_plans(tmp_path: Path) -> None:
    folders = [written(tmp_path / f"plan{number}", number) for number in range(len(CASES))]
    ran = parsed(folders)
    assert ran.returncode == 0, ran.stderr[-2000:]
    lines = [line for line in ran.stdout.splitlines() if line.startswith("understood ")]
    print(*lines, sep="\n")
    for number, line in enumerate(lines):
        understood = json.loads(line.removeprefix("understood "))
        plan = deepspeed.lower(planned(number)).plan
        assert understood == {
            "world": plan.request.cluster.devices,
            "batch": plan.request.batch,
            "micro_batch": plan.micro_batch,
            "micro_batches": plan.degrees.mu,
            "zero": int(plan.request.zero),
            "bf16": True,
            "gradients": plan.request.gradients.value,
        }
    assert len(lines) == len(CASES)


def test_a_configuration_that_contradicts_itself_is_refused(tmp_path: Path) -> None:
    folder = written(tmp_path / "plan", 0)
    told = json.loads((folder / "deepspeed.json").read_text())
    (folder / "deepspeed.json").write_text(json.dumps({**told, "train_batch_size": 63}))
    ran = parsed([folder])
    assert ran.returncode != 0
    assert "train_batch_size" in ran.stderr
