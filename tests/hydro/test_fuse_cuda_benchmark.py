"""The GPU benchmark runs: every variant, with tiny images on a CPU, so that no GPU time is lost to a typo."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "hydro" / "fuse_throughput.py"


def test_every_variant_is_measured(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, str(SCRIPT), "--device", "cpu", "--small", "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    rows = json.loads((tmp_path / "fuse_throughput_cuda.json").read_text())["rows"]
    variants = {"float32", "float32, vmap", "bfloat16", "bfloat16, compiled"}
    assert {(row["variant"], row["members"]) for row in rows} == {
        (one, n) for one in variants for n in (1, 3)
    }
    for row in rows:
        assert row.get("error") is None, row
        assert row["seconds"] > 0
        assert row["times_separate"] > 0
        assert row["bytes_per_member"] > 0
