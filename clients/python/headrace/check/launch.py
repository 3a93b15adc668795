"""Starts one process of a check, or a gang of them."""

import os
import subprocess
import sys
from pathlib import Path

from headrace.grants import WORLD_SIZE


def launch(control_file: Path, log_file: Path, ranks: int) -> None:
    """Returns when all of them have ended. Their output goes to the log."""
    segment = [sys.executable, "-m", "headrace.check.segment", str(control_file)]
    gang = [sys.executable, "-m", "headrace.trial.gang"] if ranks > 1 else []
    with log_file.open("wb") as log:
        subprocess.run(
            [*gang, *segment],
            env={**os.environ, WORLD_SIZE: str(ranks)},
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            check=False,
        )
