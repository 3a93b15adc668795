"""What a module holds besides its registered parameters and buffers: attributes, lists, closures, numbers.

Members of a fused pass share all of it; alone, each would have its own. So Hydro must know whether it differs
between members, and whether a step changes it. Both questions compare two modules: `difference`.
"""

import random
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import type_before_parametrizations

from headrace_torch.hydro.fuse.places import is_iterator, progress

_REGISTRIES = ("_parameters", "_buffers", "_modules")
# The registries, and the hooks that any module may have: this check is quicker than one by name.
_OWN_OF_TORCH = {*_REGISTRIES, *(name for name in vars(nn.Module()) if "_hooks" in name)}
_UNCHANGING = ModuleType | CodeType | BuiltinFunctionType | type | torch.dtype | torch.device | torch.layout
_NUMBERS = int | float | complex | str | bytes | None


@dataclass(frozen=True, slots=True)
class Difference:
    """The first thing that differs.

    Attributes:
        path: its path.
        tensor: whether it is a tensor.
        values: in the first and in the second module; empty if one of them has no value.
    """

    path: str
    tensor: bool = False
    values: tuple[Any, ...] = ()

    @property
    def counts(self) -> bool:
        """Whether a number differs."""
        return any(isinstance(one, bool | int | float | complex) for one in self.values)

    @property
    def advances(self) -> bool:
        """Whether an iterator differs."""
        return any(map(is_iterator, self.values))


def parts(value: object) -> Iterator[tuple[str, Any]]:
    """What an object is made of, with a name for each part; tensors, numbers and opaque objects have no parts."""
    if isinstance(value, Mapping):
        yield from ((f"[{key!r}]", one) for key, one in value.items())
    elif isinstance(value, list | tuple | deque):
        yield from ((f"[{number}]", one) for number, one in enumerate(value))
    elif isinstance(value, partial):
        yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
    elif isinstance(value, MethodType):
        yield from ((".__self__", value.__self__), (".__func__", value.__func__))
    elif isinstance(value, FunctionType):
        names = value.__code__.co_freevars
        for name, cell in zip(names, value.__closure__ or (), strict=True):
            try:
                yield f".{name}", cell.cell_contents
            except ValueError:  # not filled yet
                continue
        if value.__defaults__:
            yield ".__defaults__", value.__defaults__
    elif isinstance(value, nn.Module):
        for registry in _REGISTRIES:
            yield from ((f".{name}", one) for name, one in vars(value)[registry].items())
        yield from (
            (f".{name}", one)
            for name, one in vars(value).items()
            if name not in _OWN_OF_TORCH and not name.endswith("_hooks") and "_hooks_" not in name
        )
    elif not isinstance(value, Tensor | torch.Generator | random.Random | _UNCHANGING) and hasattr(
        value, "__dict__"
    ):
        yield from ((f".{name}", one) for name, one in vars(value).items())


def tensors_within(root: object) -> Iterator[tuple[str, Tensor]]:
    """All reachable tensors, with one path to each; an object is entered once."""
    entered: set[int] = set()
    waiting: list[tuple[str, Any]] = [("", root)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, Tensor):
            yield path.lstrip("."), value
        elif id(value) not in entered and not isinstance(value, _NUMBERS):
            entered.add(id(value))
            waiting.extend((path + name, one) for name, one in parts(value))


def registered(module: nn.Module) -> dict[int, str]:
    """Names of the tensors that the module has registered, by identity."""
    return {id(one): name for name, one in (*module.named_parameters(), *module.named_buffers())}


def unregistered(module: nn.Module) -> list[Tensor]:
    """Tensors that the module holds without having registered them, each once."""
    known = registered(module)
    return list({id(one): one for _, one in tensors_within(module) if id(one) not in known}.values())


def alias(module: nn.Module) -> str:
    """Names a registered parameter that is also reached past the registry, and how; empty if there is none."""
    trained = {id(one): name for name, one in module.named_parameters()}
    places = {
        f"{prefix}.{name}" if prefix else name
        for prefix, child in module.named_modules(remove_duplicate=False)
        for name in child._parameters
    }
    for path, one in tensors_within(module):
        if id(one) in trained and path not in places and "._flat_weights" not in f".{path}":
            return f"parameter {trained[id(one)]} is also reached through {path}"
    return ""


def difference(one: nn.Module, two: nn.Module) -> Difference | None:
    """The first attribute, at any depth, that differs between two modules besides their registered tensors' values.

    Whether a registered parameter requires a gradient counts; its value does not, nor does a hook.
    """
    return _Comparison(registered(one), registered(two)).of("", one, two)


class _Comparison:
    def __init__(self, ours: Mapping[int, str], theirs: Mapping[int, str]) -> None:
        self._ours, self._theirs = ours, theirs
        self._seen: set[tuple[int, int]] = set()

    def of(self, path: str, a: Any, b: Any) -> Difference | None:
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            return self._tensors(path, a, b)
        if _type(a) is not _type(b):
            return Difference(path.lstrip("."), isinstance(a, Tensor) or isinstance(b, Tensor))
        if a is b or (id(a), id(b)) in self._seen:
            return None
        self._seen.add((id(a), id(b)))
        if isinstance(a, _NUMBERS):
            return None if a == b or (a != a and b != b) else Difference(path.lstrip("."), values=(a, b))
        if isinstance(a, FunctionType) and a.__code__ is not b.__code__:
            return Difference(path.lstrip("."))
        mine, yours = dict(parts(a)), dict(parts(b))
        if odd := sorted(mine.keys() ^ yours.keys()):
            return Difference((path + odd[0]).lstrip("."))
        for name, x in mine.items():
            if found := self.of(path + name, x, yours[name]):
                return found
        return None if mine or _same_inside(a, b) else Difference(path.lstrip("."), values=(a, b))

    def _tensors(self, path: str, a: Tensor, b: Tensor) -> Difference | None:
        if a.grad_fn is not None or b.grad_fn is not None:  # an activation that was kept
            return None
        alike = self._ours.get(id(a)) == self._theirs.get(id(b)) and a.requires_grad == b.requires_grad
        if alike and id(a) in self._ours:
            return None
        if alike and a.shape == b.shape and a.dtype == b.dtype and _equal(a, b):
            return None
        return Difference(path.lstrip("."), tensor=True)


def _type(value: Any) -> type:
    """An object's type; a parametrized module has a class of its own, and every copy another."""
    return type_before_parametrizations(value) if isinstance(value, nn.Module) else type(value)


def _equal(a: Tensor, b: Tensor) -> bool:
    if a.is_meta or b.is_meta:
        return a.is_meta == b.is_meta
    if not a.is_floating_point():
        return torch.equal(a, b)
    return torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(), b.nan_to_num())


def _same_inside(a: Any, b: Any) -> bool:
    """Whether two objects without parts are in the same state."""
    if isinstance(a, torch.Generator):
        return torch.equal(a.get_state(), b.get_state())
    if isinstance(a, random.Random):
        return bool(a.getstate() == b.getstate())
    if is_iterator(a):
        return progress(a) == progress(b)
    if isinstance(a, set | frozenset | _UNCHANGING):
        return bool(a == b)
    if isinstance(a, Mapping | list | tuple | deque | FunctionType | nn.Module):
        return True  # empty, and so is the other
    try:
        return repr(a.__reduce_ex__(4)[1:]) == repr(b.__reduce_ex__(4)[1:])
    except Exception:  # noqa: BLE001  an object that does not say what is inside; any class may raise anything
        return True
