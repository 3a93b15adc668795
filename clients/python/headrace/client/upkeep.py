"""Values for operators: parts of logs, the scheduler's version, and how long finished data is kept."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPart:
    """A part of a trial's output."""

    data: bytes
    """The bytes that the trial wrote. They may end within a character."""
    cursor: str
    """The cursor for requesting the next part."""
    complete: bool
    """Whether this was the end: the trial is over, and nothing more will come."""
    notes: tuple[str, ...] = ()
    """Which attempts' logs are gone, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:
    """The version and configuration of a scheduler."""

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
    """Where it serves metrics; empty if it does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptKind:
    """How long the scheduler keeps one kind of data."""

    kind: str
    age: str
    """The age, such as `90d`, or `forever`."""
    due: int
    """How many are due for deletion: studies, or rows for a kind that does not belong to a study."""
    what: str
    """A description for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSize:
    """The size of a table."""

    table: str
    size_bytes: int
    """Including its indexes."""
    rows: int
    """An approximate number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upkeep:
    """What the scheduler keeps, and what is due for deletion: of the caller's project, or of all for an admin of
    `default`.
    """

    kinds: tuple[KeptKind, ...]
    tables: tuple[TableSize, ...]
    """Largest first; empty if the caller sees only one project."""
    deleted_studies: int
    """Studies whose rows are still to be removed."""
    restores: int
    """How often the database was restored from a copy."""

    @property
    def size_bytes(self) -> int:
        """The size of all tables."""
        return sum(one.size_bytes for one in self.tables)

    @property
    def due(self) -> int:
        """How many are due for deletion, of all kinds."""
        return sum(one.due for one in self.kinds)
