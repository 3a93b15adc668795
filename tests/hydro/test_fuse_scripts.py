"""Scripts without a main guard, from a file, `-c` and standard input: their body runs once, whatever they use."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

SCRIPT = """
import warnings
import torch
from torch import nn
from headrace_torch import hydro

print("the body runs")


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.GRU(8, 8, batch_first=True), nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.cell(x)[0][:, -1])


def make():
    return Model()


torch.set_num_threads(1)
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    with hydro.fuse(make, [{"lr": 0.01}, {"lr": 0.02}], WORKERS) as group:
        for _ in range(2):
            losses = group.step((torch.randn(64, 20, 8), torch.randint(4, (64,))), nn.CrossEntropyLoss())
        print(group.engine, group.report.reason)
        print("workers", len(group.worker_ids))
"""


@pytest.mark.parametrize(("way", "asked"), [("file", "workers=2"), ("-c", ""), ("stdin", "workers=2")])
def test_the_body_of_a_script_runs_once(way: str, asked: str, tmp_path: Path) -> None:
    program = SCRIPT.replace("WORKERS", asked or "workers=None")
    path = tmp_path / "script.py"
    path.write_text(program)
    command = {"file": [str(path)], "-c": ["-c", program], "stdin": ["-"]}[way]
    ran = subprocess.run(
        [sys.executable, *command], input=program, capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("the body runs") == 1
    assert "separate gru in layer cell (GRU)" in ran.stdout
    assert "workers 0" in ran.stdout
    assert ("is defined in the running script" in ran.stdout) == bool(asked)
    assert ran.stderr == ""


def test_a_script_with_a_main_guard_has_its_pool(tmp_path: Path) -> None:
    top, body = SCRIPT.split("torch.set_num_threads(1)\n")
    guarded = "".join(f"    {line}\n" for line in ("torch.set_num_threads(1)\n" + body).splitlines())
    path = tmp_path / "script.py"
    path.write_text(f'{top}\nif __name__ == "__main__":\n{guarded}'.replace("WORKERS", "workers=2"))
    ran = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "workers 2" in ran.stdout
    assert "over 2 processes" in ran.stdout
