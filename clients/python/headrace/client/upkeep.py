"""What an operator asks for: parts of logs, and what serves."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPart:
    """A part of what a trial printed."""

    data: bytes
    """As the trial wrote it; it may end within a character."""
    cursor: str
    """To ask for the next part with."""
    complete: bool
    """Nothing more will come: the trial is over, and this was the end."""
    notes: tuple[str, ...] = ()
    """Which attempts' logs are gone, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:
    """What a scheduler is."""

    version: str
    """The release of Headrace."""
    replica: str
    """Its host and process id."""
    database_schema: str
    """The newest migration of its database."""
    program_schema: str
    """The newest migration that it knows."""
    protocol: int
    """The newest version of the session protocol that it speaks with workers."""
    metrics: str
    """Where it shows metrics; empty where it does not."""
