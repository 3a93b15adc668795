"""Digests of values: two digests are equal exactly if every bit of the values is."""

import re
import sys
from array import array
from collections import deque
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from headrace.check.plain_values import is_one_value, written_out

_SHORT = 64
_copies: "re.Pattern[str] | None" = None


def alike(copies: str) -> None:
    """From now on, folders whose paths have this prefix and end in a number share one digest, as each process
    runs in a different one.
    """
    global _copies
    _copies = re.compile(re.escape(copies) + r"\d+")


def digest(value: Any) -> str:
    """The value itself if it is short and plain, otherwise a hash of its type, shape and bits."""
    if is_one_value(value) or (
        isinstance(value, list | tuple) and len(value) <= _SHORT and all(map(is_one_value, value))
    ):
        text = _told(value)
        if len(text) <= _SHORT:
            return text
    hasher = blake2b(digest_size=8)
    _feed(hasher, value)
    return f"#{hasher.hexdigest()}"


def _told(value: Any) -> str:
    told = written_out(value) or repr(value)
    return told if _copies is None else _copies.sub("(folder)", told)


def _is_pickle(value: bytes) -> bool:
    """An object that is pickled, read and pickled again may have different bytes although nothing changed.

    So pickles are compared by what the script computes with them, like objects whose bits cannot be read.
    """
    return value[:1] == b"\x80" and value[-1:] == b"."


def _feed(hasher: "blake2b", value: Any) -> None:
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(value, torch.Tensor):
        _feed_tensor(hasher, value, torch)
    elif numpy is not None and isinstance(value, numpy.ndarray | numpy.generic) and not value.dtype.hasobject:
        hasher.update(f"array {value.dtype} {value.shape}".encode())
        hasher.update(numpy.ascontiguousarray(value).tobytes())
    elif isinstance(value, Mapping):
        hasher.update(f"mapping {len(value)}".encode())
        for key in sorted(value, key=repr):
            _feed(hasher, key)
            _feed(hasher, value[key])
    elif isinstance(value, list | tuple | deque):
        hasher.update(f"sequence {len(value)}".encode())
        for item in value:
            _feed(hasher, item)
    elif isinstance(value, set | frozenset):
        _feed(hasher, sorted(value, key=repr))
    elif isinstance(value, bytes | bytearray):
        value = bytes(value)
        hasher.update(b"pickle" if _is_pickle(value) else value)
    elif isinstance(value, array):
        hasher.update(f"array {value.typecode} {value.tobytes()!r}".encode())
    elif is_one_value(value) or isinstance(value, int | float | str):
        hasher.update(f"{type(value).__name__} {_told(value)};".encode())
    else:  # an object whose bits cannot be read: only its type can be compared
        hasher.update(f"object {type(value).__qualname__};".encode())


def _feed_tensor(hasher: "blake2b", tensor: Any, torch: Any) -> None:
    hasher.update(f"tensor {tensor.dtype} {tuple(tensor.shape)}".encode())
    if hasattr(tensor, "to_local"):  # a DTensor: this rank's part of it
        tensor = tensor.to_local()
    flat = tensor.detach().to("cpu").contiguous().reshape(-1)
    if flat.numel():
        raw = flat.view(torch.uint8)
        hasher.update(raw.numpy().tobytes() if "numpy" in sys.modules else bytes(raw.tolist()))
