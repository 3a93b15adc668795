"""What the scheduler keeps of what has ended, as values."""

from dataclasses import dataclass


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
    """What the scheduler keeps, and what is due to go."""

    kinds: tuple[KeptKind, ...]
    tables: tuple[TableSize, ...]
    """The largest first."""
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
