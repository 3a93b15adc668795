"""Starts one process of a check, or a gang of them."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from headrace.grants import WORLD_SIZE


class OutOfTimeError(Exception):
    """The time limit was reached; what ran then was killed."""


def launch(control_file: Path, log_file: Path, ranks: int, timeout_s: float | None = None) -> None:
    """Returns when all of them have ended. Their output goes to the log. After `timeout_s` they are killed with
    everything that they have started, and `OutOfTimeError` is raised.
    """
    segment = [sys.executable, "-m", "headrace.check.segment", str(control_file)]
    gang = [sys.executable, "-m", "headrace.trial.gang"] if ranks > 1 else []
    with log_file.open("wb") as log:
        running = subprocess.Popen(
            [*gang, *segment],
            env={**os.environ, WORLD_SIZE: str(ranks)},
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=timeout_s is not None,  # then all of it can be killed at once
        )
        try:
            running.wait(timeout_s)
        except BaseException as error:  # also Ctrl-C, which does not reach another session
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL) if timeout_s is not None else running.kill()
            running.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                raise OutOfTimeError from None
            raise
