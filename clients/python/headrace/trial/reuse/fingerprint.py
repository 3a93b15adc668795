"""Fingerprints of values: everything that can be reached from a value, as a list of nodes.

    value ──► (parent, key, token), (parent, key, token), …

A token is all there is to an object besides its parts: a number itself, a container's length, the checksum of an
array, the position of an iterator. Two lists are equal exactly if nothing has changed that can be read, and the
first node in which they differ leads to the change. An object's second occurrence refers to the first one.

A search stops at modules, at classes and functions of libraries, and at loggers (`settings` restores those). What
an object of C does not show is taken by its identity.
"""

import time
from collections.abc import Callable
from types import CodeType, ModuleType
from typing import Any

from headrace.trial.reuse.parts import reader
from headrace.trial.reuse.tokens import ATOMS, Tensors, atom

Node = tuple[int, Any, Any]
_LOOK_AT_CLOCK_EVERY = 256

NOT_VARIABLES = frozenset(
    {
        *("__annotations__", "__builtins__", "__cached__", "__doc__", "__file__", "__loader__", "__name__"),
        *("__package__", "__path__", "__spec__", "__warningregistry__"),
    }
)
"""Names in a module that Python itself writes."""


class TooLongError(Exception):
    """A search took longer than it may."""


class Search:
    """One search of values, and the objects that it has met."""

    def __init__(self, until: float = float("inf"), clock: Callable[[], float] = time.perf_counter) -> None:
        """It ends with an error after this time of the clock."""
        self._until, self._clock = until, clock
        self._met: dict[int, tuple[str, int]] = {}
        self._alive: list[Any] = []
        """What was met, so that no other object gets the same id."""
        self.identities: list[Any] = []
        """What is known by its id alone: to be kept alive as long as the fingerprint is."""
        self.codes: set[CodeType] = set()
        """The code of the user's functions that were met."""
        self._tensors: Tensors = {}

    def nodes(self, name: str, root: Any) -> list[Node]:
        """The fingerprint of a variable with this name. Raises `TooLongError`."""
        found: list[Node] = []
        stack: list[tuple[int, Any, Any]] = [(-1, "", root)]
        while stack:
            parent, key, value = stack.pop()
            kind: Any = type(value)  # mypy does not accept type[Any] as hashable
            if kind in ATOMS:
                found.append((parent, key, atom(value)))
                continue
            here, address = len(found), id(value)  # an audit event each, which `sources` listens to
            if (met := self._met.get(address)) is not None:
                found.append((parent, key, ("met", *met) if met[0] == name else ("met", met[0])))
                continue
            self._met[address] = name, here
            self._alive.append(value)
            if len(self._alive) % _LOOK_AT_CLOCK_EVERY == 0 and self._clock() > self._until:
                raise TooLongError
            token, held, by_identity, code = reader(kind)(value, self._tensors)
            found.append((parent, key, token))
            if by_identity:
                self.identities.append(value)
            if code is not None:
                self.codes.add(code)
            stack.extend([(here, step, part) for step, part in held][::-1])
        return found


def variables(module: ModuleType) -> list[tuple[str, Any]]:
    """A module's own variables. Other modules that it imports are not."""
    return [
        (name, value)
        for name, value in list(module.__dict__.items())
        if name not in NOT_VARIABLES and not issubclass(type(value), ModuleType)
    ]


def path(nodes: list[Node], place: int) -> str:
    """How a program writes a node, after the name of the root: `.layers[0].weight`."""
    steps = []
    while place >= 0:
        place, key, _ = nodes[place]
        steps.append(key if isinstance(key, str) else f"[{key[0]!r}]")
    return "".join(reversed(steps))
