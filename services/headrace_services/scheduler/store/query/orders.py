"""The order of a list: by one key and then by number, and the rows after a given one."""

from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import ColumnElement, Double, Select, and_, case, cast, func, literal, or_, select
from sqlalchemy.dialects.postgresql import TEXT as PG_TEXT

from headrace_services.scheduler.store.query.keys import Sortable

NUMBER, TEXT, NAN, ABSENT = range(4)
"""The ranks of values: numbers, then texts, then NaN, then rows without a value."""
Place = tuple[int, str, int]
"""Where a row is in an order: the rank of its value, the value as text, and its number."""
_NAN: Final = literal(float("nan"), Double)


@dataclass(frozen=True, slots=True)
class Order:
    """An order by a key. Rows without a value come last in either direction."""

    by: Sortable
    descending: bool

    def sort(self, rows: Select[Any], after: Place | None) -> Select[Any]:
        """Rows that have a `number`, sorted, from after a place on. Adds what a place is made of: `rank` and
        `sorted_by`. Raises ValueError for a place that no row can have."""
        rows = rows.add_columns(self.by.number.label("by_number"), self.by.text.label("by_text"))
        # Otherwise Postgres would read a value out of JSON again wherever it is named.
        found = rows.cte("found").prefix_with("MATERIALIZED").c
        number, text = found.by_number, found.by_text
        rank = case(
            (number == _NAN, NAN), (number.is_not(None), NUMBER), (text.is_not(None), TEXT), else_=ABSENT
        )
        sorted_by = func.coalesce(cast(number, PG_TEXT), text, "")
        query = select(*found, rank.label("rank"), sorted_by.label("sorted_by"))
        if after is not None:
            query = query.where(
                self._after(after, rank, number if after[0] == NUMBER else text, found.number)
            )
        values = [value.desc() if self.descending else value.asc() for value in (number, text)]
        return query.order_by(rank, *values, found.number)

    def _after(
        self, place: Place, rank: ColumnElement[int], value: ColumnElement[Any], number: ColumnElement[int]
    ) -> ColumnElement[bool]:
        last_rank, last_value, last = place
        if not NUMBER <= last_rank <= ABSENT:
            raise ValueError(f"{last_rank} is no rank")
        last_value.encode()  # a lone surrogate raises ValueError
        same = and_(rank == last_rank, number > last)
        if last_rank >= NAN:  # all of a rank are equal
            return or_(rank > last_rank, same)
        given: Any = cast(float(last_value), Double) if last_rank == NUMBER else last_value
        beyond = value < given if self.descending else value > given
        return or_(
            rank > last_rank, and_(rank == last_rank, or_(beyond, and_(value == given, number > last)))
        )
