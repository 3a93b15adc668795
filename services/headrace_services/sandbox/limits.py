"""What one call may have of a pool of processes, and one caller of its queue."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a pool."""

    memory_bytes: int
    """Beyond what the libraries of a process take."""
    time_s: float
    """From when a process begins with the call."""
    wait_s: float
    """How long a call may wait for a process; the start of a process is not counted."""
    waiting: int
    """How many calls may wait for a process; more are refused."""
    each: int
    """How many of them may be one caller's."""
