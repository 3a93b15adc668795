"""Small files in a store, beside a trial's checkpoints: the logs of its attempts.

They go with the trial's place (`CheckpointStore.clear`), and no listing of checkpoints shows them.
"""

from typing import Final

LOG_DIR: Final = "logs"


def log_name(attempt: int) -> str:
    """Where the log of an attempt lies below a trial's place."""
    return f"{LOG_DIR}/{attempt:06d}.log"
