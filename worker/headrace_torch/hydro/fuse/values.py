"""Converts what members remember to plain values and tensors, which every loader of a checkpoint accepts, and
back.

A number, a text and None are written as they are. Everything else is a dict with its `kind`. A value that cannot
be written, such as an object of the user's class, raises `NotPlainError`: the caller knows whose it is.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from headrace_torch.hydro.fuse.errors import FuseError
from headrace_torch.hydro.fuse.lanes import is_stacked

_SCALARS: Final = (bool, int, float, str, bytes)
_SEQUENCES: Final[Mapping[str, type]] = {
    one.__name__: one for one in (list, tuple, set, frozenset, torch.Size)
}
_MAPPINGS: Final[Mapping[str, type]] = {one.__name__: one for one in (dict, OrderedDict, Counter)}


class NotPlainError(TypeError):
    """A value that no state can hold."""


class Writer:
    """Writes values; an object with a name is written as that name.

    Args:
        named: names of objects that the reader has too, by identity.
    """

    def __init__(self, named: Mapping[int, str]) -> None:
        """Starts empty."""
        self._named = named
        self._written: dict[int, Any] = {}  # kept, so that no other object gets the same id

    def write(self, value: Any) -> Any:
        """Writes a value.

        Raises:
            NotPlainError: it is not a plain value, or two places share it and would not do so after a load.
        """
        kind = type(value)
        if value is None or kind in _SCALARS:
            return value
        if (name := self._named.get(id(value))) is not None:
            return {"kind": "named", "items": name}
        if kind is complex:
            return {"kind": "complex", "items": [value.real, value.imag]}
        if isinstance(value, torch.dtype | torch.device):
            return {"kind": kind.__name__, "items": str(value).removeprefix("torch.")}
        if isinstance(value, np.generic) and not value.dtype.hasobject:
            return _array("scalar", np.asarray(value))
        if kind not in (tuple, frozenset, torch.Size):
            if id(value) in self._written:
                raise NotPlainError
            self._written[id(value)] = value
        if kind is Tensor and not is_stacked(value) and value.layout is torch.strided:
            return {"kind": "tensor", "items": value.detach().clone(), "host": value.device.type == "cpu"}
        if kind is np.ndarray and not value.dtype.hasobject:
            return _array("array", value)
        if kind is deque:
            return {"kind": "deque", "items": [self.write(one) for one in value], "length": value.maxlen}
        if _SEQUENCES.get(kind.__name__) is kind:
            return {"kind": kind.__name__, "items": [self.write(one) for one in value]}
        if _MAPPINGS.get(kind.__name__) is kind:
            items = [[self.write(name), self.write(one)] for name, one in value.items()]
            return {"kind": kind.__name__, "items": items}
        raise NotPlainError


def read(value: Any, named: Callable[[str], Any], device: torch.device) -> Any:
    """Reads a value that was written.

    Args:
        value: from `Writer.write`.
        named: returns the object of a name.
        device: the device for tensors that were not on the host.

    Raises:
        KeyError: `named` does not know a name.
        FuseError: a kind is unknown.
    """
    if not isinstance(value, Mapping):
        return value
    kind, items = value["kind"], value["items"]
    if kind == "named":
        return named(items)
    if kind == "tensor":
        return items.detach().clone().to("cpu" if value["host"] else device)
    if kind == "complex":
        return complex(*items)
    if kind in ("dtype", "device"):
        return getattr(torch, items) if kind == "dtype" else torch.device(items)
    if kind in ("array", "scalar"):
        flat = np.frombuffer(items, dtype=np.dtype(value["dtype"]))
        array = flat.reshape(tuple(value["shape"])).copy()
        return array if kind == "array" else array[()]
    if kind in _MAPPINGS:
        pairs = ((read(name, named, device), read(one, named, device)) for name, one in items)
        return _MAPPINGS[kind](dict(pairs))
    if kind != "deque" and kind not in _SEQUENCES:
        raise FuseError(
            f"a state remembers a value of unknown kind {kind!r}: it was written by a newer Headrace; upgrade this one"
        )
    inside = [read(one, named, device) for one in items]
    return deque(inside, value["length"]) if kind == "deque" else _SEQUENCES[kind](inside)


def _array(kind: str, value: Any) -> dict[str, Any]:
    data = np.ascontiguousarray(value).tobytes()
    return {"kind": kind, "dtype": value.dtype.str, "shape": list(value.shape), "items": data}
