"""The grammar of filters.

    filter = { term }                       all terms must hold
    term   = ["-"] key operator value {"," value}
    key    = bare | quoted                  a bare key holds no spaces, quotes, operators or commas
    operator = ":" "=" "!=" "~" "<" "<=" ">" ">="
    value  = bare | quoted                  quoted: "…", with \\" and \\\\ inside

`-` negates a term. `:` and `=` mean "is one of the values", `!=` "is none of them", `~` "contains". What keys there
are depends on the list. Pure functions.
"""

import re
from dataclasses import dataclass
from typing import Final

from headrace.errors import InvalidFieldError, Violation

OPERATORS: Final = ("!=", "<=", ">=", ":", "=", "~", "<", ">")
MOST_TERMS: Final = 32
MOST_VALUES: Final = 64
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_KEY = re.compile(r"[^\s\"!:=~<>,]+")
_VALUE = re.compile(r"[^\s\",]+")
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_FIELD = "filter"
_TWO = 'Write one of : = != ~ < <= > >=, or quote the value, as in name:"=x".'
_EXAMPLE = 'Write KEY:VALUE without spaces, such as state:running, lr>1e-3 or note~"too slow".'


@dataclass(frozen=True, slots=True)
class Term:
    """One condition. `text` is how it was written, for messages."""

    key: str
    operator: str
    """`:`, `~`, `<`, `<=`, `>` or `>=`."""
    values: tuple[str, ...]
    negated: bool
    text: str

    @property
    def value(self) -> str:
        """Its only value. Raises InvalidFieldError if it has several, which only `:` and `!=` allow."""
        if len(self.values) > 1:
            raise self.refused(f"compares with {len(self.values)} values", "Give one value.")
        return self.values[0]

    def refused(self, message: str, remedy: str) -> InvalidFieldError:
        """The error for this term."""
        return refused(self.text, message, remedy)


def parse_filter(text: str) -> tuple[Term, ...]:
    """The terms of a filter, in order; none for an empty one.

    Raises InvalidFieldError, with the part that is wrong, if it cannot be parsed or is too long.
    """
    found: list[Term] = []
    place = _skip_space(text, 0)
    while place < len(text):
        term, place = _term(text, place)
        found.append(term)
        if len(found) > MOST_TERMS:
            raise refused(
                term.text, f"is one term too many: a filter has at most {MOST_TERMS}", "Remove some."
            )
        place = _skip_space(text, place)
    return tuple(found)


def refused(value: str, message: str, remedy: str) -> InvalidFieldError:
    """The error for a part of a filter."""
    shown = value if len(value) <= 100 else value[:97] + "..."
    return InvalidFieldError([Violation(field=_FIELD, value=f"'{shown}'", message=message, remedy=remedy)])


def _term(text: str, start: int) -> tuple[Term, int]:
    negated = text[start] == "-"
    key, place = _word(text, start + negated, _KEY)
    operator = next((one for one in OPERATORS if text.startswith(one, place)), "")
    rest = text[start:].split(maxsplit=1)[0]
    if not key:
        raise refused(rest, "begins with no key", _EXAMPLE)
    if not operator:
        raise refused(rest, "has no operator", _EXAMPLE)
    place += len(operator)
    values: list[str] = []
    while True:
        before = place
        value, place = _word(text, place, _VALUE)
        if place == before:
            raise refused(text[start:place], "has no value", _EXAMPLE)
        if text[before] in "=<>!~":
            rest = text[start:].split(maxsplit=1)[0]
            raise refused(rest, f"has two operators, {operator} and {text[before]}", _TWO)
        values.append(value)
        if len(values) > MOST_VALUES:
            raise refused(key, f"has more than {MOST_VALUES} values", "Use a range, or several calls.")
        if not text.startswith(",", place):
            break
        place += 1
    if place < len(text) and not text[place].isspace():
        raise refused(text[start:], "continues after its value", "Put a space between terms.")
    term = Term(
        key=key,
        operator=":" if operator in ("=", "!=") else operator,
        values=tuple(values),
        negated=negated != (operator == "!="),
        text=text[start:place],
    )
    return term, place


def _word(text: str, place: int, bare: re.Pattern[str]) -> tuple[str, int]:
    """A word and the place after it; the same place if there is none."""
    if text.startswith('"', place):
        quoted = _QUOTED.match(text, place)
        if quoted is None:
            raise refused(text[place:], "has an opening quote without a closing one", 'Close it with ".')
        return _ESCAPED.sub(r"\1", quoted[1]), quoted.end()
    found = bare.match(text, place)
    return (found[0], found.end()) if found else ("", place)


def _skip_space(text: str, place: int) -> int:
    while place < len(text) and text[place].isspace():
        place += 1
    return place
