"""Starts one process of a check, or a gang of them."""

import os
import subprocess
import sys
from pathlib import Path

from headrace.grants import WORLD_SIZE


class OutOfTimeError(Exception):
    """The time limit was reached; what ran then was killed."""


def launch(control_file: Path, log_file: Path, ranks: int, timeout_s: float | None = None) -> None:
    """Returns when all of them have ended. Their output goes to the log. After `timeout_s` they are killed, and
    `OutOfTimeError` is raised; the ranks of a gang end with their leader.
    """
    segment = [sys.executable, "-m", "headrace.check.segment", str(control_file)]
    gang = [sys.executable, "-m", "headrace.trial.gang"] if ranks > 1 else []
    with log_file.open("wb") as log:
        try:
            subprocess.run(
                [*gang, *segment],
                env={**os.environ, WORLD_SIZE: str(ranks)},
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise OutOfTimeError from None
