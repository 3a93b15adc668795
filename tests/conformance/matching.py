"""Compares what arrived with what a scenario expects."""

import re
from collections.abc import Mapping
from typing import Any


def mismatch(expected: Any, found: Any, path: str = "answer") -> str | None:
    """The difference, or None if there is none. See README.md, section Scenarios."""
    match expected:
        case {"least": least, **rest} if not rest:
            return (
                None if _is_number(found) and found >= least else f"{path} is {found!r}, not {least} or more"
            )
        case {"most": most, **rest} if not rest:
            return None if _is_number(found) and found <= most else f"{path} is {found!r}, not {most} or less"
        case {"one_of": allowed, **rest} if not rest:
            fits = any(mismatch(one, found) is None for one in allowed)
            return None if fits else f"{path} is {found!r}, not one of {allowed!r}"
        case Mapping():
            if not isinstance(found, Mapping):
                return f"{path} is {found!r}, not an object"
            parts = (
                mismatch(part, found.get(key, "absent"), f"{path}.{key}") for key, part in expected.items()
            )
            return next(filter(None, parts), None)
        case list():
            if not isinstance(found, list) or len(found) != len(expected):
                return f"{path} is {found!r}, not a list like {expected!r}"
            parts = (mismatch(part, found[place], f"{path}[{place}]") for place, part in enumerate(expected))
            return next(filter(None, parts), None)
        case str() if len(expected) > 1 and expected[0] == expected[-1] == "/":
            fits = isinstance(found, str) and re.search(expected[1:-1], found) is not None
            return None if fits else f"{path} is {found!r}, which {expected} does not match"
        case _:
            equal = found == expected and isinstance(found, bool) == isinstance(expected, bool)
            return None if equal else f"{path} is {found!r}, not {expected!r}"


def _is_number(found: object) -> bool:
    return isinstance(found, int | float) and not isinstance(found, bool)
