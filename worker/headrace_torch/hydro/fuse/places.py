"""The places in the user's program that a call may change: how one is read, restored, and compared.

    Named       names and values: attributes, a dict, a class, globals, a variable of a closure (`named`)
    Items       a list or a deque
    Elements    a set
    Numbers     a tensor
    Draws       a generator of random numbers
    Advances    an iterator or a generator, which cannot be restored

A content that has been read is never changed, so states may share it.
"""

import operator
import random
import warnings
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from types import GeneratorType
from typing import Any, Final, Protocol

import numpy as np
import torch
from torch import Tensor

ABSENT: Final = object()
NUMBERS: Final = bool | int | float | complex
_PLAIN: Final = NUMBERS | str | bytes
Key = tuple[str, int]
GENERATORS: Final = torch.Generator | random.Random | np.random.Generator | np.random.RandomState


class Kind(IntEnum):
    """The kinds of change."""

    RECORD = 0  # something was added to a list or a dict, or an object replaced: it records
    NUMBER = 1  # a number or a tensor changed: it counts
    ITERATOR = 2  # an iterator advanced, and cannot be restored


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that has changed."""

    path: str
    kind: Kind


class Place(Protocol):
    """One thing that may change."""

    path: str

    @property
    def key(self) -> Key:
        """Equal for the same thing."""
        ...

    def latest(self, known: Any) -> Any:
        """Returns the content; `known` itself, an earlier content or ABSENT, if it is unchanged."""
        ...

    def write(self, content: Any) -> None:
        """Restores a content, in place."""
        ...

    def change(self, before: Any, after: Any) -> Change:
        """Names the change between two contents that differ."""
        ...

    def inside(self, content: Any) -> Iterator[tuple[str, Any]]:
        """The values in a content, each with its path."""
        ...


@dataclass(slots=True)
class Items:
    """A list or a deque."""

    path: str
    target: Any

    @property
    def key(self) -> Key:
        return "items", id(self.target)

    def latest(self, known: Any) -> Any:
        if known is not ABSENT and len(known) == len(self.target) and alike(known, self.target):
            return known
        return list(self.target)

    def write(self, content: Any) -> None:
        if isinstance(self.target, deque):
            self.target.clear()
            self.target.extend(content)
        else:
            self.target[:] = content

    def change(self, before: Any, after: Any) -> Change:
        if len(before) != len(after):
            return Change(self.path, Kind.RECORD)
        changes = [
            Change(f"{self.path}[{number}]", kind_of(one, two))
            for number, (one, two) in enumerate(zip(before, after, strict=True))
            if not equal(one, two)
        ]
        return max(changes, key=lambda one: one.kind)

    def inside(self, content: Any) -> Iterator[tuple[str, Any]]:
        for number, value in enumerate(content):
            yield f"{self.path}[{number}]", value


@dataclass(slots=True)
class Elements:
    """A set."""

    path: str
    target: set[Any]

    @property
    def key(self) -> Key:
        return "set", id(self.target)

    def latest(self, known: Any) -> Any:
        return known if known is not ABSENT and known == self.target else set(self.target)

    def write(self, content: Any) -> None:
        self.target.intersection_update(content)
        self.target.update(content)

    def change(self, _before: Any, _after: Any) -> Change:
        return Change(self.path, Kind.RECORD)

    def inside(self, content: Any) -> Iterator[tuple[str, Any]]:
        yield from ((self.path, value) for value in content)


@dataclass(slots=True)
class Numbers:
    """A tensor."""

    path: str
    target: Tensor

    @property
    def key(self) -> Key:
        return "tensor", id(self.target)

    def latest(self, known: Any) -> Any:
        if known is not ABSENT and torch.equal(self.target.nan_to_num(), known.nan_to_num()):
            return known
        return self.target.detach().clone()

    def write(self, content: Any) -> None:
        if content.shape == self.target.shape:
            self.target.data.copy_(content)
        else:
            self.target.data = content.clone()

    def change(self, _before: Any, _after: Any) -> Change:
        return Change(self.path, Kind.NUMBER)

    def inside(self, _content: Any) -> Iterator[tuple[str, Any]]:
        yield from ()


@dataclass(slots=True)
class Draws:
    """A generator of random numbers."""

    path: str
    target: Any

    @property
    def key(self) -> Key:
        return "generator", id(self.target)

    def latest(self, known: Any) -> Any:
        now = _state(self.target)
        return known if known is not ABSENT and repr(known) == repr(now) else now

    def write(self, content: Any) -> None:
        if isinstance(self.target, torch.Generator):
            self.target.set_state(torch.tensor(content, dtype=torch.uint8))
        elif isinstance(self.target, np.random.Generator):
            self.target.bit_generator.state = content
        elif isinstance(self.target, np.random.RandomState):
            self.target.set_state(content)
        else:
            self.target.setstate(content)

    def change(self, _before: Any, _after: Any) -> Change:
        return Change(self.path, Kind.RECORD)

    def inside(self, _content: Any) -> Iterator[tuple[str, Any]]:
        yield from ()


@dataclass(slots=True)
class Advances:
    """An iterator or a generator."""

    path: str
    target: Any

    @property
    def key(self) -> Key:
        return "iterator", id(self.target)

    def latest(self, known: Any) -> Any:
        now = progress(self.target)
        return known if known is not ABSENT and known == now else now

    def write(self, content: Any) -> None:
        """Writes nothing: a caller that must restore it checks for this, and raises."""

    def change(self, _before: Any, _after: Any) -> Change:
        return Change(self.path, Kind.ITERATOR)

    def inside(self, _content: Any) -> Iterator[tuple[str, Any]]:
        yield from ()


def is_iterator(value: object) -> bool:
    """Whether it is an iterator of Python's or torch's own, or a generator; one of a user's class has attributes
    instead."""
    root = type(value).__module__.partition(".")[0]
    return isinstance(value, Iterator) and root in ("builtins", "itertools", "torch")


def progress(value: Any) -> str:
    """Where an iterator is, in comparable form; as far as it shows its position."""
    if isinstance(value, GeneratorType):
        frame = value.gi_frame
        if frame is None:
            return "ended"
        return f"{frame.f_lasti} {[(name, _shown(one)) for name, one in frame.f_locals.items()]}"
    if hasattr(value, "__dict__"):  # a data loader's
        return repr({name: one for name, one in vars(value).items() if isinstance(one, _PLAIN)})
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # from Python 3.12 on, itertools warns here
            return repr(value.__reduce__())
    except Exception:  # noqa: BLE001  it does not say, or holds what cannot be shown
        return repr(value)


def equal(one: Any, two: Any) -> bool:
    """Whether two values are one object, or equal numbers or texts of one type."""
    if one is two:
        return True
    if type(one) is not type(two) or not isinstance(one, _PLAIN):
        return False
    return bool(one == two) or (one != one and two != two)


def alike(some: Any, others: Any) -> bool:
    """Whether each of some values equals its counterpart."""
    return all(map(operator.is_, some, others)) or all(map(equal, some, others))


def kind_of(before: Any, after: Any) -> Kind:
    """The kind of change from one value to another."""
    if isinstance(after, NUMBERS) and (before is ABSENT or isinstance(before, NUMBERS)):
        return Kind.NUMBER
    return Kind.NUMBER if isinstance(before, Tensor) and isinstance(after, Tensor) else Kind.RECORD


def _state(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state().tolist()
    if isinstance(generator, np.random.Generator):
        return dict(generator.bit_generator.state)
    if isinstance(generator, np.random.RandomState):
        name, keys, *rest = generator.get_state(legacy=True)
        return (name, np.asarray(keys).tolist(), *rest)
    return generator.getstate()


def _shown(value: Any) -> Any:
    return value if isinstance(value, _PLAIN) else (id(value), progress(value) if is_iterator(value) else "")
