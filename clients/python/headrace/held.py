"""The log's messages when a user pauses or resumes a trial: written by the scheduler, read by `why`."""

PAUSED = "pauses at its next rung: requested by a user"
RESUMED = "may run again: requested by a user"


def of_trial(number: int, what: str) -> str:
    """The message of the event: `trial 3 may run again: requested by a user`."""
    return f"trial {number} {what}"
