"""The kinds of keys that a filter compares and a list is sorted by, as expressions over a row.

A comparison with something absent is false, and so is every comparison with NaN except `:nan`. The negation of a
term holds wherever the term does not.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from operator import ge, gt, le, lt
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Double,
    Text,
    case,
    cast,
    false,
    func,
    literal,
    not_,
    null,
    or_,
)
from sqlalchemy.dialects.postgresql import ARRAY, array

from headrace.query import Term, as_number, moment, number

COMPARED: Final[Mapping[str, Callable[[Any, Any], Any]]] = {"<": lt, "<=": le, ">": gt, ">=": ge}
LONGEST: Final = 200
"""How many characters of a text an order compares: they are part of a page's token."""


@dataclass(frozen=True, slots=True)
class Sortable:
    """What a list is sorted by: a number or a text. A row without a value has neither."""

    number: ColumnElement[float]
    text: ColumnElement[str]


class Key(ABC):
    """A key of a list."""

    @abstractmethod
    def holds(self, term: Term, now: datetime) -> ColumnElement[bool]:
        """Whether a row meets a term, without its negation. Raises InvalidFieldError for a value that does not fit."""

    def sortable(self) -> Sortable | None:
        """What to sort by; None if the key has no order."""
        return None


def condition(key: Key, term: Term, now: datetime) -> ColumnElement[bool]:
    """Whether a row meets a term."""
    found = func.coalesce(key.holds(term, now), false())
    return not_(found) if term.negated else found


@dataclass(frozen=True, slots=True)
class Number(Key):
    """A number that may be absent, and may be NaN."""

    of: ColumnElement[Any]

    def holds(self, term: Term, now: datetime) -> ColumnElement[bool]:  # noqa: ARG002 - every key takes the same
        of: ColumnElement[float] = cast(self.of, Double)
        if term.operator == ":":
            return of.in_([number(term, value) for value in term.values])
        if term.operator == "~":
            raise term.refused("looks for text in a number", f"Compare it, such as {term.key}>=1.")
        bound = number(term, term.value)
        if term.operator in (
            ">",
            ">=",
        ):  # Postgres puts NaN above all numbers; to ask for it would read JSON again
            of, bound = -of, -bound
        return of <= bound if term.operator.endswith("=") else of < bound

    def sortable(self) -> Sortable:
        return Sortable(number=cast(self.of, Double), text=_NO_TEXT)


@dataclass(frozen=True, slots=True)
class Words(Key):
    """One of a few words, each with its condition."""

    words: Mapping[str, ColumnElement[bool]]

    def holds(self, term: Term, now: datetime) -> ColumnElement[bool]:  # noqa: ARG002 - every key takes the same
        known = ", ".join(self.words)
        if term.operator != ":":
            raise term.refused(
                f"cannot use {term.operator} with {term.key}", f"Write {term.key}: and one of {known}."
            )
        for value in term.values:
            if value.lower() not in self.words:
                raise term.refused(f"names '{value}', which is no {term.key}", f"Give some of {known}.")
        return or_(*(self.words[value.lower()] for value in term.values))


@dataclass(frozen=True, slots=True)
class Prose(Key):
    """Text."""

    of: ColumnElement[str]

    def holds(self, term: Term, now: datetime) -> ColumnElement[bool]:  # noqa: ARG002 - every key takes the same
        if term.operator == ":":
            return self.of.in_(term.values)
        if term.operator == "~":
            return or_(*(_contains(self.of, value) for value in term.values))
        raise term.refused(
            "compares text by size", f'Write {term.key}~"words" or {term.key}:"the whole text".'
        )

    def sortable(self) -> Sortable:
        return Sortable(number=_NO_NUMBER, text=_sorted_text(self.of))


@dataclass(frozen=True, slots=True)
class Tags(Key):
    """A set of words: `:` holds if one of the values is among them."""

    of: ColumnElement[Any]

    def holds(self, term: Term, now: datetime) -> ColumnElement[bool]:  # noqa: ARG002 - every key takes the same
        if term.operator == ":":
            return self.of.bool_op("&&")(cast(array(map(literal, term.values)), ARRAY(Text)))
        if term.operator == "~":
            return or_(*(_contains(func.array_to_string(self.of, " "), value) for value in term.values))
        raise term.refused(f"cannot use {term.operator} with tags", "Write tag:NAME.")


@dataclass(frozen=True, slots=True)
class Time(Key):
    """A time that may be absent."""

    of: ColumnElement[datetime]

    def holds(self, term: Term, now: datetime) -> ColumnElement[bool]:
        if term.operator not in COMPARED:
            raise term.refused(
                f"cannot use {term.operator} with a time",
                f"Write {term.key}>2026-11-30, or {term.key}>7d for the last week.",
            )
        return COMPARED[term.operator](self.of, moment(term, term.value, now))  # type: ignore[no-any-return]  # the table's functions return Any

    def sortable(self) -> Sortable:
        return Number(func.extract("epoch", self.of)).sortable()


@dataclass(frozen=True, slots=True)
class Parameter(Key):
    """A parameter, whose values may be numbers, texts, or of both kinds."""

    number: ColumnElement[float]
    """NULL for any other value."""
    text: ColumnElement[str]
    """Its JSON, without the quotes of a text; NULL where it is absent."""
    choices: tuple[str, ...] | None
    """Its values in that form if there is only a list of them; None for a range of numbers."""

    def holds(self, term: Term, now: datetime) -> ColumnElement[bool]:
        if term.operator == "~":
            return Prose(self.text).holds(term, now)
        if term.operator != ":":
            return Number(self.number).holds(term, now)
        for value in term.values:
            self._check(term, value)
        numbers = [found for value in term.values if (found := _exact_number(value)) is not None]
        return or_(self.text.in_(term.values), self.number.in_(numbers) if numbers else false())

    def _check(self, term: Term, value: str) -> None:
        """Raises InvalidFieldError for a value that the parameter cannot have."""
        if self.choices is None:
            number(term, value)
        elif value not in self.choices and not self._is_choice(_exact_number(value)):
            listed = ", ".join(self.choices[:_LISTED]) + (", …" if len(self.choices) > _LISTED else "")
            raise term.refused(
                f"names '{value}', which is no choice of {term.key}", f"Give some of {listed}."
            )

    def _is_choice(self, value: float | None) -> bool:
        return value is not None and value in map(_exact_number, self.choices or ())

    def sortable(self) -> Sortable:
        if self.choices is None:
            return Sortable(number=self.number, text=_NO_TEXT)
        return Sortable(number=self.number, text=_sorted_text(case((self.number.is_(None), self.text))))


_NO_NUMBER = cast(null(), Double)
_NO_TEXT = cast(null(), Text)


_LISTED: Final = 12


def _contains(text: ColumnElement[str], value: str) -> ColumnElement[bool]:
    """Postgres changes the case of both, as its locale may know fewer letters than Python."""
    return func.strpos(func.lower(text), func.lower(cast(literal(value), Text))) > 0


def _sorted_text(text: ColumnElement[str]) -> ColumnElement[str]:
    """The part of a text that is sorted by, character by character; NULL for none, as for an empty one."""
    return func.nullif(func.left(text, LONGEST), "").collate("C")


def _exact_number(value: str) -> float | None:
    """A number that a float holds exactly; a larger integer is compared as text."""
    try:
        found = as_number(value)
    except ValueError:
        return None
    return found if abs(found) <= 2**53 else None
