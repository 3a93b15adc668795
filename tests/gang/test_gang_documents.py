"""The scripts of the how-to for sharded models run on gloo, and a pause changes nothing on any of their ranks."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]
HOW_TO = ROOT / "docs/how-to/multi-gpu-trials.md"
DRIVER = Path(__file__).with_name("forked_check.py")
FSDP = ("torch.distributed.fsdp", "torch.distributed.checkpoint", "torch.distributed.checkpoint.state_dict")


def script(word: str) -> str:
    """The how-to's program that contains a word."""
    (found,) = [
        block for block in re.findall(r"```python\n(.*?)```", HOW_TO.read_text(), re.DOTALL) if word in block
    ]
    return str(found)


def check(folder: Path, source: str, *modules: str) -> "subprocess.CompletedProcess[str]":
    """Checks it on two ranks."""
    (folder / "train.py").write_text(source)
    return subprocess.run(
        [sys.executable, str(DRIVER), "2", "2", str(folder / "train.py"), *modules],
        env={**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )


LONG = pytest.mark.skipif("HEADRACE_GANGS" not in os.environ, reason="a minute; `make gangs` runs it")


@pytest.mark.parametrize(
    ("word", "modules"), [("fully_shard", FSDP), pytest.param("deepspeed", ("deepspeed",), marks=LONG)]
)
def test_the_how_to_s_scripts_lose_nothing(tmp_path: Path, word: str, modules: tuple[str, ...]) -> None:
    done = check(tmp_path, script(word), *modules)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "each in new processes of a gang of 2 ranks" in done.stdout
