"""What one call may use of a pool of processes, and one caller of its queue."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a pool."""

    memory_bytes: int
    """In addition to what the libraries of a process use."""
    time_s: float
    """Counted from when a process starts the call."""
    wait_s: float
    """How long a call may wait for a process; the start of a process does not count."""
    waiting: int
    """How many calls may wait for a process; further ones are rejected."""
    each: int
    """How many of them may belong to one caller."""
