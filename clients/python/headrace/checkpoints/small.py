"""Small files in a store, beside a trial's checkpoints: the logs of its attempts, and their `headrace.log_times`.

They go with the trial's place (`CheckpointStore.clear`), and no listing of checkpoints shows them.
"""

from typing import Final

LOG_DIR: Final = "logs"
LOGS_KEPT: Final = 20
"""So many attempts of a trial have their logs in the store: the last ones."""


def log_name(attempt: int) -> str:
    """Where the log of an attempt lies below a trial's place."""
    return f"{LOG_DIR}/{attempt:06d}.log"


def times_name(attempt: int) -> str:
    """Where the marks of the log of an attempt lie below a trial's place."""
    return f"{log_name(attempt)}.times"
