"""What the forked processes of a check run. A module of its own: a `conftest` cannot be found by its name again."""

import multiprocessing.context
import os
import sys
from pathlib import Path


def assert_preloaded() -> None:
    """Ends with success where the server has imported what it should."""
    os._exit(0 if "frozen_imports" in sys.modules else 1)


def run_segment(control_file: str, log_file: str) -> None:
    """Runs one segment of a check, as `headrace check` would in a new interpreter."""
    log = os.open(log_file, os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    from headrace.check.segment import main

    main(control_file)
    sys.stdout.flush()
    os._exit(0)  # tearing PyTorch down takes longer than the segment


def launch(context: multiprocessing.context.ForkServerContext, control_file: Path, log_file: Path) -> None:
    """Runs a segment in a forked process and waits for it."""
    process = context.Process(target=run_segment, args=(str(control_file), str(log_file)))
    process.start()
    process.join()
