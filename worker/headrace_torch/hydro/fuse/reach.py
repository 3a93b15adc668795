"""What functions and objects reach in the user's program: closures, globals that they name, attributes, classes.

These are not entered: code of Python and torch; code of other installed packages, except the roots; a tensor of
more than a million elements; the elements of a container of more than ten thousand.
"""

import sys
from argparse import Namespace
from collections import deque
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from dis import get_instructions
from functools import lru_cache, partial
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any, Final
from weakref import ref

from torch import Tensor, nn

from headrace_torch.hydro.fuse.lanes import is_stacked
from headrace_torch.hydro.fuse.named import (
    of_attributes,
    of_cell,
    of_class,
    of_dict,
    of_module,
    of_names,
    of_slots,
)
from headrace_torch.hydro.fuse.objects import parts
from headrace_torch.hydro.fuse.places import (
    ABSENT,
    GENERATORS,
    NUMBERS,
    Advances,
    Draws,
    Elements,
    Items,
    Key,
    Numbers,
    Place,
    is_iterator,
)

LARGEST_TENSOR: Final = 2**20
LARGEST_CONTAINER: Final = 10_000
_LIBRARIES: Final = frozenset({"torch", "numpy", *sys.stdlib_module_names} - {"__main__"})
_HYDRO: Final = "headrace_torch"
_CONTAINERS: Final = list | dict | set | deque | tuple
_HOLDERS: Final = SimpleNamespace | Namespace  # a library's object, but its content is the user's
_HOOKS: Final = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_PLAIN: Final = NUMBERS | str | bytes | None

Roots = Sequence[tuple[str, Any]]
State = dict[Key, tuple[Place, Any]]
"""Everything that is reached, with its content."""


@dataclass(slots=True)
class Owned:
    """Tensors that belong to a group's members, which no snapshot may restore."""

    _known: dict[int, "ref[Tensor]"] = field(default_factory=dict)

    def add(self, module: nn.Module) -> None:
        """Adds the tensors of some member's module."""
        living = {number: one for number, one in self._known.items() if one() is not None}
        self._known = living | {id(one): ref(one) for one in (*module.parameters(), *module.buffers())}

    def has(self, value: Tensor) -> bool:
        """Whether a tensor is one of them."""
        known = self._known.get(id(value))
        return known is not None and known() is value


def read(
    roots: Roots, known: State, owned: Owned, common: Set[int] | None = None, *, as_known: bool = False
) -> State:
    """Reads everything that the roots reach.

    Args:
        roots: objects and functions, each with its name.
        known: an earlier state; unchanged contents are shared with it.
        owned: tensors that are not read.
        common: ids of functions that copies of the roots share: only what a copy has separately is read, without
            classes, globals and hooks. None reads everything.
        as_known: whether to take all contents from `known`, and leave out what it does not have.
    """
    found: State = {}
    seen: set[int] = set(common or ())
    waiting = list(reversed(roots))
    near = {id(one) for _, one in roots}
    while waiting:
        path, value = waiting.pop()
        if value is ABSENT or isinstance(value, _PLAIN) or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, FunctionType | type) and id(value) not in near and _is_installed(value):
            continue
        if common is not None and isinstance(value, type):
            continue
        places, further = _look(path, value, owned)
        if common is not None:
            places = [one for one in places if not _is_shared(one)]
            if isinstance(value, MethodType):
                further = [(path, value.__self__)]
        waiting.extend(further := list(further))
        if isinstance(value, type | MethodType) and id(value) in near:  # its methods are close, too
            near.update(id(one) for _, one in further if isinstance(one, FunctionType))
        for place in places:
            if place.key in found:
                continue
            before = known.get(place.key)
            if as_known:
                if before is None:
                    continue
                content = before[1]
            else:
                content = place.latest(ABSENT if before is None else before[1])
            found[place.key] = place, content
            if not (isinstance(content, list | set | dict) and len(content) > LARGEST_CONTAINER):
                waiting.extend(place.inside(content))
    return found


def refresh(state: State, roots: Roots, owned: Owned, common: Set[int] | None = None) -> State:
    """What `read` returns, starting from an earlier state of the same roots: only what has changed is entered."""
    found: State = {}
    for key, entry in state.items():
        place, content = entry
        now = place.latest(content)
        if now is content:
            found[key] = entry
            continue
        if any(not _known(value, place, content) for _, value in place.inside(now)):
            return read(roots, state, owned, common)
        found[key] = place, now
    return found


def _is_shared(place: Place) -> bool:
    return place.path.endswith(_HOOKS) or place.key[0].startswith("names in ")


def shared(module: nn.Module) -> Roots:
    """What copies of a module have in common: functions and classes, at any depth."""
    found: list[tuple[str, Any]] = []
    entered: set[int] = set()
    waiting: list[tuple[str, Any]] = [("", module)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, Tensor | _PLAIN) or id(value) in entered:
            continue
        entered.add(id(value))
        if isinstance(value, FunctionType | type):
            found.append((path, value))
            continue
        if not _of_a_library(type(value)) and id(type(value)) not in entered:
            entered.add(id(type(value)))
            found.append((path, type(value)))
        waiting.extend((path + name, one) for name, one in parts(value))
    return found


def _known(value: Any, place: Place, before: Any) -> bool:
    return isinstance(value, _PLAIN) or any(value is one for _, one in place.inside(before))


def _look(path: str, value: Any, owned: Owned) -> tuple[list[Place], Iterable[tuple[str, Any]]]:
    """The places of one object, and what it reaches besides their contents."""
    if isinstance(value, Tensor):
        # What a fused pass has kept of its layers is nothing outside the pass.
        skip = (
            is_stacked(value)
            or owned.has(value)
            or value.numel() > LARGEST_TENSOR
            or value.grad_fn is not None
        )
        return ([] if skip or value.is_meta else [Numbers(path, value)]), ()
    if isinstance(value, ModuleType):
        return [], ()
    if isinstance(value, type):
        return _class(value)
    if isinstance(value, FunctionType):
        return _function(value)
    if isinstance(value, MethodType):
        return [], ((path, value.__self__), (path, value.__func__))
    if isinstance(value, partial):
        return [], ((path, one) for one in (value.func, *value.args, *value.keywords.values()))
    if isinstance(value, staticmethod | classmethod):
        return [], ((path, value.__func__),)
    if isinstance(value, property):
        return [], ((path, one) for one in (value.fget, value.fset))
    if isinstance(value, GENERATORS):
        return [Draws(path, value)], ()
    if is_iterator(value):
        return [Advances(path, value)], ()
    if isinstance(value, nn.Module):
        return _module(path, value)
    kind = type(value)
    if isinstance(value, tuple):
        return [], ((f"{path}[{number}]", one) for number, one in enumerate(value[:LARGEST_CONTAINER]))
    places: list[Place] = []
    if isinstance(value, list | deque):
        places.append(Items(path, value))
    elif isinstance(value, set):
        places.append(Elements(path, value))
    elif isinstance(value, dict):
        places.append(of_dict(path, value))
    elif _of_a_library(kind) and not isinstance(value, _HOLDERS):
        return [], ()
    if hasattr(value, "__dict__") and not (isinstance(value, _CONTAINERS) and _of_a_library(kind)):
        places.append(of_attributes(path, value))
    if slots := _slots(kind):
        places.append(of_slots(value, path, slots))
    return places, ((path, kind),)


def _module(path: str, value: nn.Module) -> tuple[list[Place], Iterable[tuple[str, Any]]]:
    inner = [
        (f"{path}.{name}".lstrip("."), one)
        for registry in (value._modules, value._parameters)
        for name, one in registry.items()
    ]
    hooks = [of_dict(f"{path}.{name}".lstrip("."), vars(value)[name]) for name in _HOOKS]
    buffers = of_dict(path, value._buffers, "{path}.{name}")
    return [of_module(path, value), buffers, *hooks], [*inner, ("", type(value))]


def _function(value: FunctionType) -> tuple[list[Place], Iterable[tuple[str, Any]]]:
    root = (value.__module__ or "").partition(".")[0]
    if root in _LIBRARIES or root == _HYDRO:
        return [], ()
    code, space = value.__code__, value.__globals__
    names, inside = _globals(code), _names(code)
    places: list[Place] = [
        of_cell(name, cell) for name, cell in zip(code.co_freevars, value.__closure__ or (), strict=True)
    ]
    places.append(of_names(value.__module__ or "", space, names, code))
    for name in sorted(names & space.keys()):  # in the same order in every process
        one = space[name]
        if isinstance(one, ModuleType) and one.__name__.partition(".")[0] not in _LIBRARIES:
            places.append(of_names(one.__name__, vars(one), inside & vars(one).keys(), code))
    if vars(value):
        places.append(of_attributes(value.__name__, value))
    defaults = value.__defaults__ or ()
    last = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
    given = {**dict(zip(last, defaults, strict=True)), **(value.__kwdefaults__ or {})}
    return places, ((f"argument {name}", one) for name, one in given.items())


def _class(value: type) -> tuple[list[Place], Iterable[tuple[str, Any]]]:
    if _of_a_library(value) or value.__module__.partition(".")[0] == _HYDRO:
        return [], ()
    methods = [("", one) for one in vars(value).values() if isinstance(one, FunctionType)]
    return [of_class(value)], (*(("", one) for one in value.__bases__), *methods)


def _of_a_library(kind: type) -> bool:
    module = getattr(kind, "__module__", None)
    return isinstance(module, str) and module.partition(".")[0] in _LIBRARIES


def _is_installed(value: Any) -> bool:
    return _root_is_installed((value.__module__ or "").partition(".")[0])


@lru_cache(10_000)
def _root_is_installed(root: str) -> bool:
    file = getattr(sys.modules.get(root), "__file__", None) or ""
    return not {"site-packages", "dist-packages"}.isdisjoint(Path(file).parts)


def _slots(kind: type) -> list[str]:
    found: list[str] = []
    for one in kind.__mro__:
        if not _of_a_library(one):
            held = vars(one).get("__slots__", ())
            found += [held] if isinstance(held, str) else list(held)
    return [name for name in found if not name.startswith("__")]


def _inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from _inner(one)


@lru_cache(10_000)
def _names(code: CodeType) -> frozenset[str]:
    """All names that it has, including those of attributes."""
    return frozenset(name for one in _inner(code) for name in one.co_names)


@lru_cache(10_000)
def _globals(code: CodeType) -> frozenset[str]:
    """The globals that it reads or writes."""
    every = (step for one in _inner(code) for step in get_instructions(one))
    return frozenset(
        step.argval for step in every if step.opname in ("LOAD_GLOBAL", "STORE_GLOBAL", "LOAD_NAME")
    )
