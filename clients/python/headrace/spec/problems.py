"""Converts pydantic's errors to violations that name the field, the value and the remedy.

The models raise two kinds of errors: pydantic's own (a missing key, an unknown one, a wrong type), whose wording
is in `_WORDING` here, and `Problem`s from the checks that the models make themselves. Both come out of
`violations_of`, the one place where a `ValidationError` is translated.

A hostile spec of a few kilobytes can have a million problems. So checks yield their problems, and `first` stops
after as many as an answer holds.
"""

import difflib
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import nsmallest
from itertools import islice
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from headrace.errors import Violation, show_value
from headrace.spec import elsewhere

type_name: Final = "headrace"
Loc = tuple[str | int, ...]


class _Absent:
    """Marks a problem that has no value to show."""

    def __repr__(self) -> str:
        return ""


ABSENT: Final = _Absent()
MOST: Final = 50
"""The most problems that are reported at once."""
_SUGGESTIONS: Final = 3
"""How many unknown names among them get a suggestion. Each takes milliseconds."""
_COMPARED, _LONGEST_COMPARED = 50, 48
"""The most known names with which an unknown one is compared, and the longest name that is compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """A name that is not a known one."""

    word: str
    known: Collection[str]
    noun: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A violation whose path is not yet written as text."""

    loc: Loc
    message: str
    remedy: str = ""
    value: object = ABSENT
    unknown: Unknown | None = None
    """For an unknown name: `first` derives the remedy from it."""

    def under(self, *parents: str | int) -> "Problem":
        """The same problem, with its path from the enclosing model."""
        return replace(self, loc=(*parents, *self.loc))

    def violation(self) -> Violation:
        shown = "" if self.value is ABSENT else show_value(self.value)
        return Violation(field=path_of(self.loc), message=self.message, remedy=self.remedy, value=shown)


def fault(message: str, remedy: str) -> PydanticCustomError:
    """The error that a validator of a single field raises; pydantic adds path and value."""
    return PydanticCustomError(type_name, "{message}", {"message": message, "remedy": remedy})


def reject(problems: Sequence[Problem]) -> None:
    """Raise all the problems of a model as one pydantic error; do nothing when there are none."""
    if problems:
        raise joined(problems)


def first(problems: Iterable[Problem]) -> list[Problem]:
    """As many of the problems as are reported at once, each with its remedy."""
    kept: list[Problem] = []
    suggestions = 0
    for problem in islice(problems, MOST):
        if problem.unknown is None:
            kept.append(problem)
            continue
        unknown = problem.unknown
        guess = nearest(unknown.word, unknown.known) if suggestions < _SUGGESTIONS else ""
        suggestions += 1
        kept.append(replace(problem, remedy=guess or _all(unknown.known, unknown.noun), unknown=None))
    return kept


def joined(problems: Sequence[Problem], *errors: ValidationError) -> ValidationError:
    """Problems and pydantic's findings as one error."""
    lines = [
        InitErrorDetails(type=fault(problem.message, problem.remedy), loc=problem.loc, input=problem.value)
        for problem in first(problems)
    ]
    found = (details for error in errors for details in error.errors(include_url=False))
    for details in islice(found, max(0, MOST - len(lines))):
        context = details.get("ctx", {})
        own = details["type"] == type_name
        kind: Any = fault(context["message"], context["remedy"]) if own else details["type"]
        line = InitErrorDetails(type=kind, loc=details["loc"], input=details["input"])
        if context and not own:
            line["ctx"] = context
        lines.append(line)
    return ValidationError.from_exception_data("StudySpec", lines)


def problems_of(error: ValidationError, known_keys: Callable[[Loc], Sequence[str]]) -> list[Problem]:
    """A pydantic error as problems. `known_keys` says which keys the model at a path has."""
    return [_problem(details, known_keys) for details in error.errors(include_url=False)]


def path_of(loc: Loc) -> str:
    """`("space", "lr", "values", 2)` as `space.lr.values[2]`."""
    path = ""
    for part in loc:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += f".{part}" if path else part
    return path


def nearest(word: str, known: Iterable[str]) -> str:
    """A remedy that suggests the nearest known name, in lower case; empty if none is near."""
    names = [name for name in known if len(name) <= _LONGEST_COMPARED]
    if len(word) > _LONGEST_COMPARED:
        return ""
    if len(names) > _COMPARED:
        names = nsmallest(
            _COMPARED, names, key=lambda name: (name[:1] != word[:1], abs(len(name) - len(word)))
        )
    near = difflib.get_close_matches(word.lower(), names, n=1, cutoff=0.5)
    return f"Did you mean `{near[0]}`?" if near else ""


def did_you_mean(word: str, known: Iterable[str], *, noun: str) -> str:
    """A remedy that suggests the nearest known name, or else lists them."""
    names = list(known)
    return nearest(word, names) or _all(names, noun)


def _all(known: Collection[str], noun: str) -> str:
    if not known:
        return f"Leave it out: there is no {noun} that it could name."
    shown = ", ".join(islice(known, 12)) + (", …" if len(known) > 12 else "")
    return f"Known {noun}s: {shown}."


_WORDING: Final[dict[str, tuple[str, str]]] = {
    "missing": ("is required", "Add it."),
    "bool_type": ("must be true or false", "Write true or false, without quotes."),
    "string_type": ("must be a text", "Put it in quotes."),
    "tuple_type": ("must be a list", "Write it as [a, b, …]."),
    "list_type": ("must be a list", "Write it as [a, b, …]."),
    "dict_type": ("must be a mapping", "Write it as `key: value` pairs."),
    "model_type": ("must be a mapping", "Write it as `key: value` pairs."),
    "model_attributes_type": ("must be a mapping", "Write it as `key: value` pairs."),
}


def _problem(details: ErrorDetails, known_keys: Callable[[Loc], Sequence[str]]) -> Problem:
    context: dict[str, Any] = details.get("ctx", {})
    loc = details["loc"]
    value: object = details["input"]
    match details["type"]:
        case kind if kind == type_name:
            return Problem(loc=loc, message=context["message"], remedy=context["remedy"], value=value)
        case "extra_forbidden":
            remedy = did_you_mean(str(loc[-1]), known_keys(loc[:-1]), noun="key")
            return Problem(loc=loc, message="is not a known key", remedy=remedy)
        case "missing":
            return Problem(loc=loc, message="is required", remedy="Add it.")
        case "union_tag_not_found":
            key = str(context["discriminator"]).strip("'")
            return Problem(
                loc=(*loc, key),
                message="is required",
                remedy="Say which one it is: " + known_tags(known_keys, loc),
            )
        case "union_tag_invalid":
            key = str(context["discriminator"]).strip("'")
            remedy = elsewhere.hint((*loc, key), str(context["tag"])) or did_you_mean(
                str(context["tag"]), str(context["expected_tags"]).replace("'", "").split(", "), noun="kind"
            )
            return Problem(
                loc=(*loc, key), message="is not a known kind", remedy=remedy, value=context["tag"]
            )
        case "enum" | "literal_error":
            choices = str(context["expected"]).replace("'", "").replace(" or ", ", ").split(", ")
            remedy = f"{nearest(str(value), choices)} Choose one of {', '.join(choices)}.".lstrip()
            return Problem(loc=loc, message="is not a known choice", remedy=remedy, value=value)
        case kind if kind in _WORDING:
            message, remedy = _WORDING[kind]
            return Problem(loc=loc, message=message, remedy=remedy, value=value)
        case _:
            return Problem(loc=loc, message=details["msg"], remedy="Correct it.", value=value)


def known_tags(known_keys: Callable[[Loc], Sequence[str]], loc: Loc) -> str:
    """The possible kinds of a union at a path, for a remedy."""
    return ", ".join(known_keys((*loc, "?"))) + "."
