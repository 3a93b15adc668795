"""Which values are compared as a whole, depending on their type. Pure functions."""

import itertools
import re
from array import array
from collections import deque
from collections.abc import Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import PurePath
from types import FunctionType, MethodType
from typing import Any
from uuid import UUID
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

WEAK = (WeakKeyDictionary, WeakValueDictionary, WeakSet)
"""Containers that keep nothing alive."""
_PLAIN = (bool, int, float, str)
_WRITTEN_OUT = (Decimal, Fraction, date, time, timedelta, PurePath, UUID, range, itertools.count)
"""Classes whose `repr` contains the complete state of the object; for a count, its current position."""
_MOST_ITEMS = 1024
_CHOICE = re.compile(r"([A-Za-z_]\w*\.)+[A-Za-z_]\w*")
_OF_CHOICES = frozenset({"_value_", "_name_", "__objclass__", "_sort_order_"})
NAMED = "function "
"""The prefix of the text that represents a function or a class."""


def is_one_value(value: Any) -> bool:
    """Whether a value is a number, a text, or one of a few other immutable values."""
    return value is None or type(value) in _PLAIN or written_out(value) is not None


def is_plain_container(value: Any) -> bool:
    """Whether a value is a container of a few such values, and nothing else."""
    if type(value) in (bytearray, array):
        return len(value) <= _MOST_ITEMS
    if not isinstance(value, list | tuple | set | frozenset | dict | deque):
        return False
    items = value.values() if isinstance(value, dict) else value
    return len(value) <= _MOST_ITEMS and all(item is not None and is_one_value(item) for item in items)


def written_out(value: Any) -> str | None:
    """The text for a value that is neither a number nor a text; None if it has no such text."""
    if isinstance(value, Enum):
        return f"{type(value).__qualname__}.{value.name}" if value.name else repr(value)
    if isinstance(value, complex | bytes) and len(told := repr(value)) <= _MOST_ITEMS:
        return told
    return repr(value) if isinstance(value, _WRITTEN_OUT) else None


def of_choice(value: Any) -> dict[str, Any]:
    """The attributes that a script has set on a member of an enumeration, which still counts as one value."""
    if not isinstance(value, Enum):
        return {}
    return {name: item for name, item in vars(value).items() if name not in _OF_CHOICES}


def named(value: Any) -> str | None:
    """The text for a function or a class, as a variable may later hold a different one."""
    value = getattr(value, "__func__", None) if isinstance(value, MethodType) else value
    if isinstance(value, FunctionType):
        return f"{NAMED}{value.__qualname__} of {value.__module__}, line {value.__code__.co_firstlineno}"
    return f"{NAMED}{value.__qualname__} of {value.__module__}" if isinstance(value, type) else None


def is_choice(told: str) -> bool:
    """Whether this text represents a member of an enumeration."""
    return _CHOICE.fullmatch(told) is not None


def items_of(name: str, held: Mapping[Any, Any]) -> list[tuple[str, Any]]:
    """The items by key. An object's address differs in each process, so an object is identified by its position."""
    return [
        (f"{name}[{told_key(key)}]" if is_one_value(key) else f"{name}[{place}]", item)
        for place, (key, item) in enumerate(list(held.items()))
    ]


def told_key(key: Any) -> str:
    """A key as written in `name[key]`. Its own brackets are replaced, so that all items belong to one variable."""
    return (written_out(key) or repr(key)).translate({ord("["): "(", ord("]"): ")"})
