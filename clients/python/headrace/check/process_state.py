"""The state of all imported modules, as far as it can be read: what a trial changes in them.

    look() → a trial → changes() → another trial → changes()

`headrace.trial.reuse` reads the user's own modules after each trial, so it has to be quick. This search may take
seconds, and goes on into libraries: their variables, the attributes of their classes and functions, their caches. It
is made only to name the cause of a difference that is known. A class or a function of another module is read there.
"""

import functools
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from ctypes import CDLL
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

from headrace import sources
from headrace.check.reuse_record import Changed
from headrace.trial.reuse.changes import difference
from headrace.trial.reuse.fingerprint import Node, variables
from headrace.trial.reuse.own import is_own, is_own_file, is_own_module
from headrace.trial.reuse.parts import reader
from headrace.trial.reuse.patches import _mentioned
from headrace.trial.reuse.tokens import ATOMS, Parts, Tensors, atom, attributes, by_identity, has_c_state

MOST_OBJECTS: Final = 2_000_000
"""How much one look reads, at 5 µs each. PyTorch, SciPy and scikit-learn together are 600 000 objects."""
_OF_PYTHON: Final = frozenset(
    {"sys", "gc", "linecache", "threading", "_thread", "tracemalloc", "weakref", "_weakrefset", "abc", "_abc"}
)
"""Modules in which Python counts and caches for itself."""
_OF_CLASS: Final = frozenset(
    {
        "__dict__",
        "__weakref__",
        "__doc__",
        "__module__",
        "__annotations__",
        "__abstractmethods__",
        "_abc_impl",
    }
)
_USERS: Final = "the user's"
_OTHER: Final = "leave it as it was before the function returns"

_Prints = dict[str, list[Node]]


class ProcessState:
    """What was last seen of the modules."""

    def __init__(self, most: int = MOST_OBJECTS, used: Iterable[str] = ()) -> None:
        """`used` are modules of which it is known that the user's functions import them."""
        self._most = most
        self._used = frozenset(map(_library, used))
        self._seen = _Look(most, self._used)
        self._before: dict[str, _Prints] = {}
        self._first: frozenset[str] = frozenset()

    @property
    def unread(self) -> tuple[str, ...]:
        """The libraries that were too many to read."""
        left = sys.modules.keys() - self._before.keys()
        names = {_library(name) for name in left if _counts(name, sys.modules[name])}
        return tuple(sorted(names - set(map(_library, self._before)))) if self._seen.is_full else ()

    @property
    def late(self) -> tuple[str, ...]:
        """The modules that were imported after the first look."""
        found = sys.modules.items() if self._first else ()
        return tuple(name for name, module in found if name not in self._first and _counts(name, module))

    def look(self) -> None:
        """Reads all modules."""
        self._seen = _Look(self._most, self._used)
        self._before = self._seen.modules()
        self._first = self._first or frozenset(sys.modules)

    def changes(self) -> tuple[Changed, ...]:
        """What has changed since the last look, in the modules that were imported then; looks again."""
        before, kept = self._before, self._seen
        self.look()
        names = frozenset(_mentioned(kept.codes | self._seen.codes))
        return tuple(
            _changed(module, name, was.get(name), now.get(name), names)
            for module, was in before.items()
            if (now := self._before.get(module)) is not None
            for name in dict.fromkeys((*was, *now))
            if was.get(name) != now.get(name)
        )


class _Look:
    """One look at all modules. What it has met stays alive with it, so that ids stay unique."""

    def __init__(self, most: int, used: frozenset[str]) -> None:
        self._left, self._used = most, used
        self._met: dict[int, tuple[str, int]] = {}
        self._alive: list[Any] = []
        self._tensors: Tensors = {}
        self.codes: set[CodeType] = set()
        self.is_full = False

    def modules(self) -> dict[str, _Prints]:
        """The fingerprints of the modules' variables, by module; the user's own and what they import come first."""
        found: dict[str, _Prints] = {"": {name: [(-1, "", atom(value))] for name, value in _of_c()}}
        for name, module in _in_order(sys.modules.items(), self._used):
            prints: _Prints = {}
            for variable, value in variables(module):
                prints[f"{name}.{variable}"] = self._nodes(name, variable, value)
                self._left -= len(prints[f"{name}.{variable}"])
                if self._left < 0:
                    self.is_full = True
                    return found
            found[name] = prints
        return found

    def _nodes(self, module: str, variable: str, root: Any) -> list[Node]:
        found: list[Node] = []
        stack: list[tuple[int, Any, Any]] = [(-1, "", root)]
        while stack:
            parent, key, value = stack.pop()
            if type(value) in ATOMS:
                found.append((parent, key, atom(value)))
                continue
            here = len(found)
            if (met := self._met.get(id(value))) is not None:
                found.append((parent, key, ("met", *met)))
                continue
            elsewhere = _is_of_another(value, module)
            if not elsewhere:
                self._met[id(value)] = f"{module}.{variable}", here
            self._alive.append(value)
            token, held, _, code = _named(value) if elsewhere else self._read(value)
            found.append((parent, key, token))
            if code is not None:
                self.codes.add(code)
            stack.extend((here, step, part) for step, part in held)
        return found

    def _read(self, value: Any) -> Parts:
        try:
            read = self._parts(value)
            return read._replace(parts=list(read.parts))
        except Exception:  # noqa: BLE001 - objects of libraries may refuse anything
            return by_identity(value, {})

    def _parts(self, value: Any) -> Parts:
        kind: Any = type(value)  # mypy does not accept type[Any] as hashable
        if issubclass(kind, type) and not is_own(value):
            held = [(f".{name}", one) for name, one in list(vars(value).items()) if name not in _OF_CLASS]
            return Parts(("class", len(held), tuple(name for name, _ in held)), held)
        if kind is FunctionType and not is_own(value):
            cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
            held = [(f".{name}", cell) for name, cell in cells]
            held += [(f"({place})", one) for place, one in enumerate(value.__defaults__ or ())]
            held += [(f".{name}", one) for name, one in list(value.__dict__.items())]
            whose = _USERS if is_own_file(value.__code__.co_filename) else ""
            return Parts(("function", id(value.__code__), len(held), whose), held)
        if kind is functools._lru_cache_wrapper:
            info = value.cache_info()
            return Parts(("cache", info.currsize, info.misses), [("", value.__wrapped__)])
        if has_c_state(kind) and not is_own(kind) and reader(kind) is reader(object):
            held = list(attributes(value))  # how else a library's object is read may have effects
            return Parts(("object", kind.__qualname__, len(held), id(value)), held)
        return reader(kind)(value, self._tensors)


def _counts(name: str, module: object) -> bool:
    if not issubclass(type(module), ModuleType) or name.startswith("_frozen") or name in _OF_PYTHON:
        return False
    spec = vars(module).get("__spec__")  # that of `python -m` is Headrace's own
    return not (sources.is_own(name) or sources.is_own(getattr(spec, "name", name)))


def _in_order(
    modules: Iterable[tuple[str, ModuleType]], used: frozenset[str]
) -> list[tuple[str, ModuleType]]:
    """The modules that count: the user's own, then the libraries that those import, then the others. Among the
    libraries, those of few modules come first.
    """
    found = [(name, module) for name, module in list(modules) if _counts(name, module)]
    own = [module for _, module in found if is_own_module(module)]
    sizes = Counter(_library(name) for name, _ in found)
    used |= {
        _library(name)
        for module in own
        for value in list(vars(module).values())
        if isinstance(name := _module_of(value), str)
    }

    def rank(one: tuple[str, ModuleType]) -> tuple[bool, bool, int]:
        library = _library(one[0])
        return not is_own_module(one[1]), library not in used, sizes[library]

    return sorted(found, key=rank)


def _library(module: str) -> str:
    return module.partition(".")[0]


def _module_of(value: Any) -> object:
    if issubclass(type(value), ModuleType):
        return vars(value).get("__name__")
    return value.__module__ if issubclass(type(value), type | FunctionType) else None


def _is_of_another(value: Any, module: str) -> bool:
    """Whether a class or a function belongs to another module, which is read for itself."""
    if not issubclass(type(value), type | FunctionType):
        return False
    home = value.__module__
    return home != module and isinstance(home, str) and _counts(home, sys.modules.get(home))


def _of_c() -> Iterator[tuple[str, int]]:
    """What Python cannot read, and arithmetic depends on."""
    try:
        yield "the rounding mode of the processor (C's fesetround)", CDLL("libm.so.6").fegetround()
    except (OSError, AttributeError):
        return


def _named(value: Any) -> Parts:
    """A class or a function that belongs to another module."""
    return Parts(
        ("class" if isinstance(value, type) else "function", id(value), _USERS if is_own(value) else "")
    )


def _changed(
    module: str, name: str, before: list[Node] | None, after: list[Node] | None, mentioned: frozenset[str]
) -> Changed:
    """A change of a module's variable, by the names that the user's code mentions."""
    finding, _, remedy = difference(name, before, after).rpartition(": ")
    place = next((word for word in finding.split() if word.startswith(name)), name)
    words = re.findall(r"\w+", place.removeprefix(f"{module}."))
    new = set(after or ()).difference(before or ())
    holds_users = any(isinstance(token, tuple) and token[-1] == _USERS for _, _, token in new)
    return Changed(
        name=name,
        finding=finding or remedy,
        remedy=remedy if finding else _OTHER,
        users=holds_users or not mentioned.isdisjoint(words),
    )
