"""Small files in a store, next to a trial's checkpoints: the logs of its attempts, and their `headrace.log_times`.

They are deleted with the trial's folder (`CheckpointStore.clear`), and listings of checkpoints do not show them.
"""

from typing import Final

LOG_DIR: Final = "logs"
LOGS_KEPT: Final = 20
"""How many attempts of a trial, the last ones, have their logs in the store."""


def log_name(attempt: int) -> str:
    """The path of an attempt's log in its trial's folder."""
    return f"{LOG_DIR}/{attempt:06d}.log"


def times_name(attempt: int) -> str:
    """The path of the time marks of an attempt's log in its trial's folder."""
    return f"{log_name(attempt)}.times"
