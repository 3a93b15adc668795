"""The order of a list: by one key and then by number, and the rows after a given one."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Double, and_, cast, func, or_
from sqlalchemy.dialects.postgresql import TEXT as PG_TEXT

from headrace_services.scheduler.store.query.keys import ABSENT, NUMBER, Sortable

Place = tuple[int, str, int]
"""Where a row is in an order: the rank of its value, the value as text, and its number."""


@dataclass(frozen=True, slots=True)
class Order:
    """An order by a key. Rows without a value come last in either direction."""

    by: Sortable
    descending: bool

    def clauses(self, number: ColumnElement[int]) -> list[ColumnElement[Any]]:
        """What to sort by, with the row's own number last."""
        values: list[ColumnElement[Any]] = [self.by.number, self.by.text]
        return [self.by.rank, *(value.desc() if self.descending else value.asc() for value in values), number]

    def place(self) -> list[ColumnElement[Any]]:
        """The columns of a row's place, except its number."""
        text = func.coalesce(cast(self.by.number, PG_TEXT), self.by.text, "")
        return [self.by.rank.label("rank"), text.label("sorted_by")]

    def after(self, place: Place, number: ColumnElement[int]) -> ColumnElement[bool]:
        """The rows after a place. Raises ValueError if the rank is that of numbers and the value is none."""
        rank, value, last = place
        same = and_(self.by.rank == rank, number > last)
        if rank >= ABSENT - 1:  # NaN, or no value: all of a rank are equal
            return or_(self.by.rank > rank, same)
        of: ColumnElement[Any] = self.by.number if rank == NUMBER else self.by.text
        given: Any = cast(float(value), Double) if rank == NUMBER else value
        beyond = of < given if self.descending else of > given
        return or_(
            self.by.rank > rank,
            and_(self.by.rank == rank, or_(beyond, and_(of == given, number > last))),
        )
