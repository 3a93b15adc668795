"""The kinds of bounds: what a value may be, in words for people and as a check.

A check returns None for a value within its bound, and otherwise what is wrong; only then does it build a
path. Unset values are not checked: they are 0 or empty, and whether they are required is up to the method.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final, TypeAlias

from google.protobuf.duration_pb2 import Duration

from headrace.errors import show_value

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_CONTROL_IN_PROSE: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_BRACKETS: Final = re.compile(r'"(?:[^"\\]|\\.)*"?|[\[{]|[\]}]')
_SHOWN: Final = 64
_TOLD: Final = 100
"""The most faults that are reported of one list or map: an answer holds fewer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One value out of bounds: its path from the checked value, and what is wrong with it."""

    path: str
    message: str
    remedy: str
    value: str = ""

    def under(self, name: str) -> "Fault":
        """The same fault, with its path from the enclosing message."""
        joint = "." if self.path and not self.path.startswith("[") else ""
        return Fault(
            path=f"{name}{joint}{self.path}", message=self.message, remedy=self.remedy, value=self.value
        )


Check: TypeAlias = Callable[[Any], list[Fault] | None]


def fault(value: object, message: str, remedy: str) -> list[Fault]:
    """A fault of the checked value itself."""
    return [Fault(path="", message=message, remedy=remedy, value=show_value(value))]


@dataclass(frozen=True, slots=True)
class Unbounded:
    """Anything that the field's type can hold; `why` says why it needs no bound."""

    why: str

    def __str__(self) -> str:
        return f"any ({self.why})"

    def check(self) -> Check | None:
        return None


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number from `least` to `most`."""

    least: int
    most: int
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.least} to {number(self.most)}"

    def check(self) -> Check:
        least, most = self.least, self.most
        remedy = self.remedy or f"Give a whole number from {least} to {most}."

        def check(value: int) -> list[Fault] | None:
            if least <= value <= most:
                return None
            bound = f"is less than {least}" if value < least else f"is more than {most}"
            return fault(value, bound, remedy)

        return check


@dataclass(frozen=True, slots=True)
class Real:
    """A finite number from `least` to `most`."""

    least: float
    most: float

    def __str__(self) -> str:
        return f"{self.least:g} to {self.most:g}, finite"

    def check(self) -> Check:
        least, most = self.least, self.most

        def check(value: float) -> list[Fault] | None:
            if least <= value <= most:  # also false for NaN
                return None
            message = "is out of bounds" if isfinite(value) else "is not a finite number"
            return fault(value, message, f"Give a number from {least:g} to {most:g}.")

        return check


@dataclass(frozen=True, slots=True)
class Text:
    """At most `longest` characters, no control characters; `prose` may have tabs and line breaks."""

    longest: int
    prose: bool = False
    remedy: str = ""

    def __str__(self) -> str:
        but = " but tabs and line ends" if self.prose else ""
        return f"{number(self.longest)} characters, no control characters{but}"

    def check(self) -> Check:
        longest, control = self.longest, _CONTROL_IN_PROSE if self.prose else _CONTROL
        remedy = self.remedy

        def check(value: str) -> list[Fault] | None:
            if len(value) <= longest and (value.isprintable() or not control.search(value)):
                return None
            if len(value) > longest:
                return fault(value, f"is longer than {longest} characters", remedy or "Shorten it.")
            what = "a NUL character" if "\0" in value else "a control character"
            return fault(value, f"holds {what}", remedy or "Remove it.")

        return check


@dataclass(frozen=True, slots=True)
class Blob:
    """At most `longest` bytes of any value."""

    longest: int

    def __str__(self) -> str:
        return f"{number(self.longest)} bytes"

    def check(self) -> Check:
        longest = self.longest

        def check(value: bytes) -> list[Fault] | None:
            if len(value) <= longest:
                return None
            return [Fault(path="", message=f"is longer than {longest} bytes", remedy="Send less at once.")]

        return check


@dataclass(frozen=True, slots=True)
class Told:
    """What a program says about its end. It is never rejected: a longer text is cut to its beginning, or with
    `end` to its end.
    """

    longest: int
    end: bool = False

    def __str__(self) -> str:
        side = "last" if self.end else "first"
        return f"of a longer text the {side} {number(self.longest)} characters are kept; what is no text is replaced"

    def check(self) -> Check | None:
        return None

    def kept(self, text: str) -> str:
        """The text as stored."""
        if len(text) > self.longest:
            text = f"…{text[-self.longest + 1 :]}" if self.end else f"{text[: self.longest - 1]}…"
        # Half of a surrogate pair, as in the name of a file that is not UTF-8, fits into no message.
        return text.encode("utf-8", "replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")


@dataclass(frozen=True, slots=True)
class Json:
    """JSON text of at most `longest` characters, with brackets at most `depth` deep."""

    longest: int
    depth: int

    def __str__(self) -> str:
        return f"JSON, {number(self.longest)} characters, {self.depth} levels"

    def check(self) -> Check:
        longest, most = self.longest, self.depth

        def check(value: str) -> list[Fault] | None:
            if len(value) > longest:
                return fault(value, f"is longer than {longest} characters", "Shorten it.")
            if _depth(value) > most:
                return fault(value, f"is nested deeper than {most} levels", "Flatten it.")
            return None

        return check


@dataclass(frozen=True, slots=True)
class Span:
    """A duration from `least_s` to `most_s` seconds."""

    least_s: int
    most_s: int

    def __str__(self) -> str:
        return f"{self.least_s} to {number(self.most_s)} s"

    def check(self) -> Check:
        least_s, most_s = self.least_s, self.most_s

        def check(value: Duration) -> list[Fault] | None:
            seconds, nanos = value.seconds, value.nanos
            if (least_s <= seconds < most_s and 0 <= nanos < 10**9) or (seconds, nanos) == (most_s, 0):
                return None
            shown = Fault(
                path="",
                value=f"{seconds} s" + (f" and {nanos} ns" if nanos else ""),
                message="is out of bounds",
                remedy=f"Give {least_s} s to {most_s} s.",
            )
            return [shown]

        return check


@dataclass(frozen=True, slots=True)
class Items:
    """A list of at most `most` entries, each within `each`; None if the type of the entries bounds them."""

    most: int
    each: "Scalar | None" = None
    remedy: str = ""

    def __str__(self) -> str:
        return f"{number(self.most)} entries" + (f", each {self.each}" if self.each else "")

    def check(self, each: Check | None) -> Check:
        """`each` is the check of an entry."""
        most = self.most
        remedy = self.remedy or f"Give at most {most}."

        def check(values: Any) -> list[Fault] | None:
            if len(values) > most:
                return _too_many(len(values), most, remedy)
            if each is None:
                return None
            found: list[Fault] = []
            for place, value in enumerate(values):
                wrong = each(value)
                if wrong:
                    found += [one.under(f"[{place}]") for one in wrong]
                    if len(found) >= _TOLD:
                        break
            return found or None

        return check


@dataclass(frozen=True, slots=True)
class Entries:
    """A map of at most `most` entries, with keys of at least one character."""

    most: int
    key: Text
    value: "Scalar | None" = None
    remedy: str = ""

    def __str__(self) -> str:
        value = f"; each value {self.value}" if self.value else ""
        return f"{number(self.most)} entries; each name 1 to {self.key}{value}"

    def check(self, each: Check | None) -> Check:
        """`each` is the check of a value."""
        most, key = self.most, self.key.check()
        remedy = self.remedy or f"Give at most {most}."

        def check(values: Any) -> list[Fault] | None:
            if len(values) > most:
                return _too_many(len(values), most, remedy)
            found: list[Fault] | None = None
            for name in values:
                wrong = key(name) if name else fault(name, "has no name", "Name it.")
                if wrong is None and each is not None:
                    wrong = each(values[name])
                if wrong:
                    found = [*(found or ()), *(one.under(_shown_key(name)) for one in wrong)]
                    if len(found) >= _TOLD:
                        break
            return found

        return check


Scalar: TypeAlias = Unbounded | Whole | Real | Text | Blob | Told | Json | Span
Bound: TypeAlias = Scalar | Items | Entries


def _too_many(count: int, most: int, remedy: str) -> list[Fault]:
    message = f"has more than {most} entries"
    return [Fault(path="", value=f"{count} entries", message=message, remedy=remedy)]


def _shown_key(name: str) -> str:
    """A key as shown in a path: unchanged if it is short and printable."""
    if len(name) <= _SHOWN and name.isprintable():
        return name
    return f"[{show_value(name)}]"


def _depth(text: str) -> int:
    """How deeply brackets are nested, outside strings."""
    depth = deepest = 0
    for match in _BRACKETS.finditer(text):
        if match[0] in ("[", "{"):
            depth += 1
            deepest = max(deepest, depth)
        elif match[0] in ("]", "}"):
            depth -= 1
    return deepest


def number(value: int) -> str:
    """A number for people: powers of two as such, thousands separated."""
    for least in (10, 20, 30, 31, 32, 40, 50, 53, 63):
        for minus in (0, 1):
            if value > 4096 and value == 2**least - minus:
                return f"2^{least}" + (" − 1" if minus else "")
    return f"{value:,}".replace(",", " ")
