"""What a loss and a module's hooks reach in the user's program: lists they fill, counters, generators.

The probe runs the user's code many times more than the user asked for. `untouched` puts everything back that the
code reaches by its closures, the globals that it names and its own attributes. (What lies behind a library's own
functions, or a tensor of more than a million elements, is not looked at.)
"""

import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from headrace_torch.hydro.fuse.objects import parts

LARGEST_TENSOR: Final = 2**20
LARGEST_CONTAINER: Final = (
    10_000  # of more elements the container is put back, and its elements are not entered
)
_LIBRARIES: Final = ("torch", "numpy", "builtins", "functools")
_ABSENT: Final = object()


@contextmanager
def untouched(*code: Any) -> Iterator[None]:
    """Runs the block; then puts back generators, and what these functions or objects have changed.

    Args:
        code: the user's functions that the block calls. Their closures, globals and attributes are put back.
    """
    surroundings = Surroundings(code)
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng():
            yield
    finally:
        surroundings.restore()
        random.setstate(python)
        np.random.set_state(numpy)


def python_generators() -> tuple[Any, ...]:
    """The state of Python's and numpy's global generators, comparable."""
    name, keys, *rest = np.random.get_state(legacy=True)
    return random.getstate(), name, np.asarray(keys).tobytes(), tuple(rest)


@dataclass(frozen=True, slots=True)
class _Kept:
    """How to tell whether one thing has changed, and how to put it back."""

    changed: Callable[[], bool]
    restore: Callable[[], object]


class Surroundings:
    """A record of what functions reach, taken when it is made.

    Args:
        code: functions, or objects whose attributes and methods count.
    """

    def __init__(self, code: Sequence[Any]) -> None:
        """Looks at everything once."""
        self._kept: list[_Kept] = []
        self._seen: set[int] = set()
        self._alive: list[Any] = []  # so that an identity stays that of the object that was seen
        waiting: list[Any] = list(code)
        while waiting:
            value = waiting.pop()
            if id(value) in self._seen or value is None or isinstance(value, int | float | str | bytes):
                continue
            self._seen.add(id(value))
            self._alive.append(value)
            waiting.extend(self._record(value))

    def differ(self) -> bool:
        """Whether anything is not as it was."""
        return any(one.changed() for one in self._kept)

    def restore(self) -> None:
        """Puts everything back; may be called again."""
        for one in self._kept:
            if one.changed():
                one.restore()

    def _record(self, value: Any) -> list[Any]:
        """Notes how to undo changes of one object; returns what else it reaches."""
        if isinstance(value, Tensor):
            self._tensor(value)
            return []
        if isinstance(value, ModuleType | type) or _of_a_library(value):
            return []
        if isinstance(value, FunctionType):
            return self._function(value)
        if isinstance(value, MethodType):
            return [value.__self__, value.__func__]
        if isinstance(value, torch.Generator):
            state = value.get_state()
            self._keep(lambda: not torch.equal(value.get_state(), state), lambda: value.set_state(state))
            return []
        if isinstance(value, nn.Module):
            self._mapping(vars(value)["_buffers"])
            self._mapping(vars(value))
        elif isinstance(value, list | deque):
            kept = list(value)
            self._keep(lambda: not _identical(list(value), kept), lambda: _refill(value, kept))
        elif isinstance(value, set):
            members = set(value)
            self._keep(lambda: value != members, lambda: _reset(value, members))
        elif isinstance(value, dict):
            self._mapping(value)
        elif hasattr(value, "__dict__"):
            self._mapping(vars(value))
        if isinstance(value, Sized) and _length(value) > LARGEST_CONTAINER:
            return []
        inside = [one for _, one in parts(value) if not isinstance(one, nn.Parameter)]
        methods = [one for one in vars(type(value)).values() if isinstance(one, FunctionType)]
        return inside if isinstance(value, nn.Module) else [*inside, *methods]

    def _keep(self, changed: Callable[[], bool], restore: Callable[[], object]) -> None:
        self._kept.append(_Kept(changed, restore))

    def _function(self, value: FunctionType) -> list[Any]:
        reached: list[Any] = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
        for cell in value.__closure__ or ():
            now = _content(cell)
            if now is not _ABSENT:
                self._cell(cell, now)
                reached.append(now)
        space = value.__globals__
        for name in _names(value.__code__):
            now = space.get(name, _ABSENT)
            self._binding(space, name, now)
            if now is not _ABSENT:
                reached.append(now)
        return reached

    def _cell(self, cell: CellType, now: Any) -> None:
        self._keep(lambda: _content(cell) is not now, lambda: setattr(cell, "cell_contents", now))

    def _binding(self, space: dict[str, Any], name: str, now: Any) -> None:
        def restore() -> None:
            if now is _ABSENT:
                del space[name]
            else:
                space[name] = now

        self._keep(lambda: space.get(name, _ABSENT) is not now, restore)

    def _mapping(self, value: dict[Any, Any]) -> None:
        kept = dict(value)

        def changed() -> bool:
            return list(value) != list(kept) or not _identical(list(value.values()), list(kept.values()))

        def restore() -> None:
            value.clear()
            value.update(kept)

        self._keep(changed, restore)

    def _tensor(self, value: Tensor) -> None:
        if value.numel() > LARGEST_TENSOR or value.grad_fn is not None or value.is_meta:
            return
        kept = value.detach().clone()
        self._keep(
            lambda: not torch.equal(value.nan_to_num(), kept.nan_to_num()), lambda: value.data.copy_(kept)
        )


def _of_a_library(value: Any) -> bool:
    """Whether it is a library's function or object, other than a container or a module; Hydro's objects are entered."""
    if isinstance(value, list | dict | set | deque | tuple | torch.Generator | nn.Module):
        return False
    called = isinstance(value, FunctionType | MethodType)
    module = getattr(value if called else type(value), "__module__", None)
    root = module.partition(".")[0] if isinstance(module, str) else ""
    return root in _LIBRARIES or (called and root == "headrace_torch")


def _names(code: CodeType) -> set[str]:
    inner = (one for one in code.co_consts if isinstance(one, CodeType))
    return set(code.co_names).union(*(_names(one) for one in inner))


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled
        return _ABSENT


def _identical(a: list[Any], b: list[Any]) -> bool:
    return len(a) == len(b) and all(one is two for one, two in zip(a, b, strict=True))


def _length(value: Sized) -> int:
    try:
        return len(value)
    except Exception:  # noqa: BLE001  the user's class may raise anything
        return 0


def _refill(value: Any, kept: list[Any]) -> None:
    value.clear()
    value.extend(kept)


def _reset(value: set[Any], kept: set[Any]) -> None:
    value.intersection_update(kept)
    value.update(kept)
