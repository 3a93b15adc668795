"""What a fingerprint is made of."""

import functools
import marshal
import threading
import types
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from itertools import chain
from types import CodeType
from typing import Any, Final, NamedTuple

from headrace.trial.reuse import checksum

Token = tuple[Any, ...]
Tensors = dict[Any, bytes]
"""Checksums by place in memory: several tensors may share it."""

ATOMS: Final = frozenset({int, float, str, bytes, bool, complex, type(None)})
_PLAIN: Final = ATOMS | {list, tuple, dict}
_MANY, _DEEPEST, _MOST = 1_000, 5, 10_000_000
"""Sequences of so many objects are read as a whole if they are plain, down to this depth."""
_LONG: Final = 256
LONG: Final = b"#"
"""Begins the checksum of a long text, and no shorter value."""
_HEAP_TYPE: Final = 1 << 9
_WORD: Final = tuple.__itemsize__


class Parts(NamedTuple):
    """An object's token, and the objects that it leads to, with how a program writes the way: `.name`, or the key
    in a tuple.
    """

    token: Token
    parts: Iterable[tuple[Any, Any]] = ()
    # Whether the token holds its id, which another object may get once it is gone.
    by_identity: bool = False
    # Of a function of the user's own.
    code: CodeType | None = None


Reader = Callable[[Any, Tensors], Parts]


def atom(value: Any) -> bytes:
    """A number or a text, exactly: -0.0 is not 0.0, and True is not 1."""
    told = marshal.dumps(value, 2)
    return told if len(told) <= _LONG else LONG + checksum.of_bytes(told)


def flat(values: tuple[Any, ...]) -> bytes | None:
    """A checksum of numbers and texts, and in a long sequence also of lists, tuples and dictionaries of such; None
    if there is anything else.
    """
    if ATOMS.issuperset(map(type, values)) or (len(values) >= _MANY and _is_plain(values)):
        return checksum.of_bytes(marshal.dumps(values, 2))
    return None


def _is_plain(values: Collection[Any]) -> bool:
    """Level by level, as one call for each object takes ten times as long."""
    for _ in range(_DEEPEST):
        kinds = set(map(type, values))
        if kinds <= ATOMS:
            return True
        if not kinds <= _PLAIN:
            return False
        held = [one for one in values if type(one) not in ATOMS]
        if sum(map(len, held)) > _MOST:  # one list may occur in many
            return False
        values = [*chain.from_iterable(held)]
        for one in held:
            if type(one) is dict:
                values += one.values()
    return False


def by_identity(value: Any, _: Tensors) -> Parts:
    """An object of which only a replacement is noticed."""
    return Parts(("object", type(value).__name__, id(value)), by_identity=True)


def with_attributes(value: Any, token: Token, held: Iterable[tuple[Any, Any]] = ()) -> Parts:
    """An object that may have attributes as well."""
    return Parts(token, [*held, *attributes(value)])


def attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """The attributes in an object's `__dict__` and slots, whatever its class computes."""
    found: Any = None
    if issubclass(type(value), threading.local):
        found = value.__dict__
    else:
        with suppress(AttributeError):
            found = object.__getattribute__(value, "__dict__")
    if isinstance(found, dict):
        yield from ((f".{name}", item) for name, item in list(found.items()))
    kind: Any = type(value)  # mypy does not accept type[Any] as hashable
    for name in _slots(kind):
        with suppress(AttributeError):
            yield f".{name}", object.__getattribute__(value, name)


@functools.cache
def has_c_state(kind: type) -> bool:
    """Whether objects of a class hold more than attributes: their memory is larger than those need."""
    header = (kind.__dictoffset__ > 0) + (kind.__weakrefoffset__ > 0)
    return kind.__itemsize__ > 0 or kind.__basicsize__ > object.__basicsize__ + _WORD * (
        header + len(_slots(kind))
    )


@functools.cache
def _slots(kind: type) -> tuple[str, ...]:
    return tuple(
        name
        for base in kind.__mro__
        if base.__flags__ & _HEAP_TYPE
        for name, member in vars(base).items()
        if isinstance(member, types.MemberDescriptorType) and name not in ("__dict__", "__weakref__")
    )
