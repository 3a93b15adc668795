"""What an operator asks for: parts of logs, what serves, and what is kept of what has ended."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptKind:
    """For how long the scheduler keeps one kind of thing."""

    kind: str
    age: str
    """Such as `90d`, or `forever`."""
    due: int
    """How many are due to go: studies, or rows where a kind is of no study."""
    what: str
    """What is meant, for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSize:
    """What a table takes."""

    table: str
    size_bytes: int
    """With its indexes."""
    rows: int
    """About how many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upkeep:
    """What the scheduler keeps, and what is due to go: of the caller's project, or of all for an admin of `default`."""

    kinds: tuple[KeptKind, ...]
    tables: tuple[TableSize, ...]
    """The largest first; none where the caller sees one project."""
    deleted_studies: int
    """Studies whose rows are still to be removed."""
    restores: int
    """How often the database was restored from a copy."""

    @property
    def size_bytes(self) -> int:
        """Of all tables."""
        return sum(one.size_bytes for one in self.tables)

    @property
    def due(self) -> int:
        """Of all kinds."""
        return sum(one.due for one in self.kinds)
