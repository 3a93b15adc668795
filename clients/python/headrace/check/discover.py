"""Finds the training state of a process without being told where it is.

There are two ways to find it. The first walks the script's own variables, from the outermost frame inwards and
then through attributes, containers, closures, defaults of arguments, the script's modules and classes, and
suspended generators. This gives names, and finds generators that the garbage collector does not list. The second
asks the garbage collector for every module, optimizer, schedule, scaler, loader and callback, wherever it is.
Code of the standard library and of installed packages is not inspected: its variables are not the script's.
"""

import dis
import functools
import gc
import inspect
import random
import sys
import sysconfig
import threading
from argparse import Namespace
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import (
    FrameType,
    FunctionType,
    GeneratorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import headrace
from headrace.check.framework_attributes import of_library
from headrace.check.plain_values import WEAK, items_of, named, of_choice

_MOST_OBJECTS = 20_000
_MOST_ITEMS = 256
_DEPTH = 5
_CONTAINERS = (dict, list, tuple, set, frozenset, deque)
_HOLDERS = (*_CONTAINERS, *WEAK, SimpleNamespace, Namespace, threading.local, ContextVar)
"""Library classes whose objects hold only what the script puts into them."""
_PYTHON = {"builtins", "abc", "typing", "types", "_thread", "argparse"}
_FOREIGN = (
    str(Path(headrace.__file__).parent),
    sysconfig.get_path("stdlib"),
    sysconfig.get_path("platstdlib"),
)
_FOREIGN_FOLDERS = ("site-packages", "dist-packages", "headrace_torch")


def script_frames(frame: FrameType | None) -> list[FrameType]:
    """The script's own frames among the callers of `frame`, outermost first."""
    frames = []
    while frame is not None:
        if is_own(frame.f_code.co_filename):
            frames.append(frame)
        frame = frame.f_back
    return frames[::-1]


@dataclass(frozen=True, slots=True)
class Found:
    """An object, and the shortest path to it from the script's variables."""

    path: str
    value: Any
    # Whether the path is the script's own: its only library objects are containers and modules.
    own: bool
    # Whether the path leads through a weak container: something else keeps the object alive, and it may be
    # replaced.
    weak: bool = False


def walk(
    variables: Iterable[tuple[str, Any]],
    is_plain: Callable[[Any], bool],
    closed: Set[int] = frozenset(),
    unread: dict[str, None] | None = None,
    *,
    own_only: bool = False,
) -> Iterator[Found]:
    """Every object that the variables lead to, breadth first. Objects in `closed` (ids) are not searched; with
    `own_only`, nor are those of a library.

    A plain value is found on every path to it, as Python shares small numbers; any other object is found once.
    `unread` collects the paths to what the script's own variables hold beyond the limits.
    """
    seen: set[int] = set()
    choices: set[int] = set()
    count = 0
    unread = {} if unread is None else unread
    layer = [Found(name, value, own=True) for name, value in variables]
    for _ in range(_DEPTH):
        deeper: list[Found] = []
        for found in layer:
            value = found.value
            if isinstance(value, ModuleType | type) and not is_transparent(value):
                continue
            if id(value) in seen:
                if found.own and named(value) is not None:  # a variable may later hold a different function
                    yield found
                if found.own and found.weak:
                    again = (Found(*child, own=True) for child in _children(found.path, value))
                    deeper.extend(one for one in again if is_plain(one.value))
                continue
            yield found
            count += 1
            if count > _MOST_OBJECTS:
                unread.update((left.path, None) for left in (*layer, *deeper) if left.own)
                return
            if is_plain(value) or id(value) in closed:
                if (
                    found.own
                    and id(value) not in choices
                    and is_of_script(value)
                    and (kept := of_choice(value))
                ):
                    choices.add(id(value))
                    deeper.extend(
                        Found(f"{found.path}.{name}", item, own=True) for name, item in kept.items()
                    )
                continue
            seen.add(id(value))
            own = found.own and is_transparent(value)
            if own_only and not (own and (is_of_script(value) or not _is_module(value))):
                continue
            if own and isinstance(value, _CONTAINERS) and len(value) > _MOST_ITEMS:
                unread[found.path] = None
            kind: Any = type(value)  # mypy does not accept type[Any] as hashable
            library = of_library(kind, _is_own_module) if own else frozenset()
            deeper.extend(
                Found(path, child, own, isinstance(value, WEAK))
                for path, child in _children(found.path, value, own=own)
                if not (path.rpartition(".")[2] in library and (is_plain(child) or _is_librarys_own(child)))
            )
        # Among paths of the same length, those through a library's private attribute come last.
        layer = sorted(deeper, key=lambda found: not found.own and "._" in found.path)
    unread.update((left.path, None) for left in layer if left.own and id(left.value) not in seen)


def attributes_of(variables: dict[str, Any]) -> dict[str, Any]:
    """The attributes of those variables that are objects of the script's own classes, as `variable.attribute`."""
    found: dict[str, Any] = {}
    for name, value in variables.items():
        if is_of_script(value):
            attributes = {**getattr(value, "__dict__", {}), **dict(_in_slots(value))}
            found.update((f"{name}.{key}", item) for key, item in attributes.items())
    return found


class Heap:
    """The garbage collector's view of the process.

    An imported PyTorch is 400 000 objects, too many to search at each snapshot. So the objects that exist when
    the trial starts are searched once and then set aside (`gc.freeze`). Later searches see only what the script
    has created since.
    """

    def __init__(self) -> None:
        self._early: list[Any] = []

    def settle(self, classes: tuple[type, ...]) -> None:
        """Sets aside everything that exists now, and remembers instances of the classes."""
        self._early += self._instances(classes)
        gc.freeze()

    def find(self, classes: tuple[type, ...]) -> list[Any]:
        """Every live instance of the classes."""
        return [found for found in self._early if issubclass(type(found), classes)] + self._instances(classes)

    def _instances(self, classes: tuple[type, ...]) -> list[Any]:
        gc.collect()
        return [found for found in gc.get_objects() if issubclass(type(found), classes)]


def global_generators() -> set[int]:
    """The ids of the generators behind the global functions, which are saved as a whole."""
    ids = {id(getattr(random, "_inst", None))}
    if (numpy := sys.modules.get("numpy")) is not None:
        ids.add(id(numpy.random.mtrand._rand))
    if (torch := sys.modules.get("torch")) is not None:
        ids.add(id(torch.default_generator))
    return ids


@functools.cache
def is_own(filename: str) -> bool:
    """Whether code in this file is the script's own, not a library's."""
    return not (
        filename.startswith(("<", *_FOREIGN))
        or any(name in Path(filename).parts for name in _FOREIGN_FOLDERS)
    )


def is_transparent(value: Any) -> bool:
    """Whether the contents of an object are the script's own. True for the script's classes, containers and
    modules.
    """
    if isinstance(value, _HOLDERS):
        return True
    if isinstance(value, ModuleType):
        return is_own(getattr(value, "__file__", None) or "<built in>")
    if isinstance(value, type):
        return _is_own_module(value.__module__)
    if isinstance(
        value, FunctionType | MethodType | functools.partial | GeneratorType | staticmethod | classmethod
    ):
        return True
    if cached_results(value) is not None:
        return True
    return _is_module(value) or is_of_script(value)


def cached_results(value: Any) -> int | None:
    """How many results the `lru_cache` of a function of the script holds; None for anything else."""
    if not isinstance(value, functools._lru_cache_wrapper):
        return None
    code = getattr(value.__wrapped__, "__code__", None)
    return None if code is not None and not is_own(code.co_filename) else value.cache_info().currsize


def _is_module(value: Any) -> bool:
    return hasattr(type(value), "named_parameters")


def is_of_script(value: Any) -> bool:
    """Whether a value's class is the script's own."""
    return _is_own_module(type(value).__module__)


def has_attributes(value: Any) -> bool:
    """Whether a value is an object to which the script may add attributes while it runs."""
    if isinstance(value, SimpleNamespace | Namespace | threading.local | FunctionType):
        return True
    return is_of_script(value) or (isinstance(value, ModuleType | type) and is_transparent(value))


def class_defaults(value: Any) -> Iterator[tuple[str, Any]]:
    """The attributes that an object of the script gets from its classes and does not have itself."""
    if not is_of_script(value):
        return
    named = {*attributes_of({"": value})}
    for base in type(value).__mro__:
        for name, item in vars(base).items() if _is_own_module(base.__module__) else ():
            if not name.startswith("__") and f".{name}" not in named:
                named.add(f".{name}")
                yield name, item


def is_own_throughout(value: Any) -> bool:
    """Whether all classes of a value are the script's own or Python's basic ones."""
    return all(base.__module__ in _PYTHON or _is_own_module(base.__module__) for base in type(value).__mro__)


def _is_computed(kind: type, name: str) -> bool:
    """Whether the attribute is stored by a cached property, which can compute it again."""
    return isinstance(getattr(kind, name, None), functools.cached_property)


def _is_own_module(name: str) -> bool:
    return is_own(getattr(sys.modules.get(name), "__file__", None) or "<built in>")


def _is_librarys_own(value: Any) -> bool:
    """Whether a value is a function or a class that the script does not define."""
    return named(value) is not None and not _is_own_module(value.__module__)


def _is_of_framework(value: Any) -> bool:
    """Whether a value is a module of a class such as Lightning's, whose private attributes belong to the
    framework.
    """
    return any(
        hasattr(kind, "named_parameters")
        and not kind.__module__.startswith("torch.")
        and not _is_own_module(kind.__module__)
        for kind in type(value).__mro__
    )


def variables_of(frames: list[FrameType]) -> Iterator[tuple[str, Any]]:
    """The local variables of the frames, then their global ones."""
    for frame in frames:
        yield from ((name, value) for name, value in frame.f_locals.items() if not name.startswith("__"))
    for frame in frames:
        yield from ((name, value) for name, value in frame.f_globals.items() if not name.startswith("__"))


def globals_of(frames: list[FrameType]) -> set[str]:
    """Globals that the innermost frame, a function, can set only after a `global` statement that it does not have."""
    if not frames or frames[-1].f_locals is frames[-1].f_globals:
        return set()
    code = frames[-1].f_code
    stored = {one.argval for one in dis.get_instructions(code) if one.opname == "STORE_GLOBAL"}
    own = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
    return frames[-1].f_globals.keys() - own - stored


def _children(name: str, value: Any, *, own: bool = True) -> Iterator[tuple[str, Any]]:
    if isinstance(value, str | bytes | int | float):
        return
    if isinstance(value, (*_CONTAINERS, *WEAK)):
        yield from _items(name, value)
        if is_of_script(value):
            yield from _named_in(name, getattr(value, "__dict__", {}))
    elif isinstance(value, FunctionType):
        yield from inspect.getclosurevars(value).nonlocals.items()
        if is_own(value.__code__.co_filename):
            yield from _defaults_of(value)
            yield from _named_in(value.__name__, value.__dict__)
    elif isinstance(value, ModuleType | type):
        yield from _named_in(name, vars(value))
    elif isinstance(value, MethodType):
        held = value.__self__
        # Lightning stores the module's `log` on a callback, but nobody writes `callback.log.__self__`.
        yield f"{name}.__self__" if own or not is_of_script(held) else type(held).__name__, held
    elif isinstance(value, staticmethod | classmethod):
        yield name, value.__func__
    elif cached_results(value) is not None:
        yield name, value.__wrapped__
    elif isinstance(value, functools.partial):
        yield f"{name}.func", value.func
        yield from ((f"{name}.args[{i}]", item) for i, item in enumerate(value.args))
        yield from ((f"{name}.{key}", item) for key, item in value.keywords.items())
    elif isinstance(value, ContextVar):
        yield name, value.get(None)
    elif isinstance(value, GeneratorType):
        if value.gi_frame is not None and is_own(value.gi_frame.f_code.co_filename):
            yield from value.gi_frame.f_locals.items()
    elif not type(value).__module__.startswith("headrace.trial.session"):
        if is_of_script(value):
            yield from ((f"{name}.{key}", item) for key, item in _in_slots(value))
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            # The script sets a module's mode in every step.
            hidden = ("_parameters", "_buffers", "_modules", "training")
            private = _is_of_framework(value)
            yield from (
                (f"{name}.{key}", item)
                for key, item in attributes.items()
                if key not in hidden and not (private and key.startswith("_"))
                if is_transparent(item) or not _is_computed(type(value), key)
            )
            children = attributes.get("_modules")
            if isinstance(children, dict):
                yield from ((f"{name}.{key}", item) for key, item in children.items())


def _items(name: str, value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict | WeakKeyDictionary | WeakValueDictionary):
        return items_of(name, value)[:_MOST_ITEMS]
    return [(f"{name}[{place}]", item) for place, item in enumerate(list(value)[:_MOST_ITEMS])]


def _in_slots(value: Any) -> Iterator[tuple[str, Any]]:
    """The attributes in `__slots__` of the value's class and of its base classes that are set."""
    for name in _slots_of(type(value)):
        try:
            yield name, getattr(value, name)
        except AttributeError:  # not set
            continue


def _slots_of(kind: type) -> tuple[str, ...]:
    slots = (
        name
        for base in kind.__mro__
        for name, member in vars(base).items()
        if isinstance(member, MemberDescriptorType) and not name.startswith("__")
    )
    return tuple(dict.fromkeys(slots))


def _defaults_of(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The defaults of a function's arguments, as `function(argument)`. A list among them keeps what calls add to
    it.
    """
    code, defaults = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
    for argument, default in (*zip(names, defaults, strict=True), *(function.__kwdefaults__ or {}).items()):
        yield f"{function.__name__}({argument})", default


def _named_in(name: str, attributes: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield from ((f"{name}.{key}", item) for key, item in list(attributes.items()) if not key.startswith("__"))


def parts_of(value: Any) -> Iterator[tuple[str, Any]]:
    """The samplers and generators of a loader that only the garbage collector knows."""
    for name in ("sampler", "batch_sampler", "generator"):
        part = getattr(value, name, None)
        if part is not None:
            yield f"the loader's {name}", part
            yield f"the loader's {name}.generator", getattr(part, "generator", None)
