"""Converts the state of users' objects to what a checkpoint may contain, and back.

A checkpoint is loaded without running code from it (`torch.load(weights_only=True)`, or JSON). So only values
that need no code are accepted: scalars, strings, bytes, lists, tuples, dicts, sets, tensors, and NumPy arrays
and scalars, which are written as their bytes. Values that JSON does not support (tuples, bytes, keys that are
not strings) are wrapped in a tagged dict, and unwrapped when loaded. Anything else is rejected with its path,
before the first step rather than when a trial is resumed.
"""

import base64
import sys
from collections import Counter, OrderedDict, defaultdict
from typing import Any, Final

TAG = "~headrace"
_SCALARS = (bool, int, float, str)
_FACTORIES: Final = {made.__name__: made for made in (bool, dict, float, int, list, set, str)}
"""The factories with which a defaultdict is restored as one: no code from a checkpoint runs."""


def try_encode(state: Any, name: str) -> None:
    """Raises `TypeError`, naming the part, if a checkpoint could not hold this state."""
    encode(state, name, for_json="torch" not in sys.modules)


def encode(value: Any, path: str, *, for_json: bool) -> Any:
    """`value` in types that a safe load accepts; raises `TypeError` with the path of a value that has no such
    form.
    """
    kind = type(value)
    if value is None or kind in _SCALARS:
        return value
    if kind in (dict, OrderedDict):
        return _encode_dict(value, path, for_json=for_json)
    if kind is list:
        return [encode(item, f"{path}[{i}]", for_json=for_json) for i, item in enumerate(value)]
    if kind in (tuple, set, frozenset):
        items = [encode(item, f"{path}[{i}]", for_json=for_json) for i, item in enumerate(value)]
        if kind is not tuple:
            items.sort(key=repr)  # a set's own order differs in each process
        return tuple(items) if kind is tuple and not for_json else {TAG: kind.__name__, "items": items}
    if kind is bytes:
        return {TAG: "bytes", "data": base64.b64encode(value).decode()}
    if (torch := sys.modules.get("torch")) is not None and not for_json:
        if isinstance(value, torch.Tensor):
            if hasattr(value, "device_mesh"):  # a DTensor: this rank has a shard of it
                raise TypeError(
                    f"{path} is sharded over the ranks (a DTensor), and a part of a checkpoint is one rank's own; "
                    "track headrace_torch.sharded.ShardedState(model, optimizer), which saves the shards of all ranks"
                )
            return value.detach() if value.requires_grad else value
        if isinstance(value, torch.dtype | torch.device | torch.Size):
            return value
    if (numpy := sys.modules.get("numpy")) is not None:
        masked = isinstance(value, numpy.ma.MaskedArray)  # its mask is stored elsewhere
        if isinstance(value, numpy.ndarray) and not masked and _fits_in_bytes(value.dtype):
            return _encode_array(value, "array", numpy)
        if isinstance(value, numpy.generic) and _fits_in_bytes(value.dtype):
            return _encode_array(numpy.asarray(value), "scalar", numpy)
    if kind is Counter or (
        kind is defaultdict and any(value.default_factory is f for f in _FACTORIES.values())
    ):
        items = [_encode_pair(key, item, path, for_json=for_json) for key, item in value.items()]
        made = "" if kind is Counter else value.default_factory.__name__
        return {TAG: kind.__name__, "items": items, "makes": made}
    if isinstance(value, dict):  # other kinds of dict are restored as a dict
        return _encode_dict(dict(value), path, for_json=for_json)
    for base in _SCALARS:  # enumerations and other subclasses of plain values
        if isinstance(value, base):
            return base(value)
    raise TypeError(
        f"{path} is a {kind.__module__}.{kind.__qualname__}, which a checkpoint cannot hold; "
        "keep tensors, arrays, numbers, strings, lists and dicts in state_dict() and in t.state"
    )


def decode(value: Any) -> Any:
    """The inverse of `encode`."""
    if isinstance(value, list):
        return [decode(item) for item in value]
    if type(value) is tuple:
        return tuple(decode(item) for item in value)
    if not isinstance(value, dict):
        return value
    match value.get(TAG):
        case None:
            plain = type(value)((key, decode(item)) for key, item in value.items())
            return _with_metadata(plain, value)
        case "tuple":
            return tuple(decode(item) for item in value["items"])
        case "set":
            return {decode(item) for item in value["items"]}
        case "frozenset":
            return frozenset(decode(item) for item in value["items"])
        case "dict":
            return {decode(key): decode(item) for key, item in value["items"]}
        case "Counter":
            return Counter({decode(key): decode(item) for key, item in value["items"]})
        case "defaultdict":
            items = {decode(key): decode(item) for key, item in value["items"]}
            return defaultdict(_FACTORIES[value["makes"]], items)
        case "bytes":
            return base64.b64decode(value["data"])
        case kind:
            return _decode_array(value, kind)


def _encode_dict(value: dict[Any, Any], path: str, *, for_json: bool) -> dict[Any, Any]:
    plain_keys = (str,) if for_json else _SCALARS
    if all(type(key) in plain_keys and key != TAG for key in value):
        pairs = ((key, encode(item, f"{path}.{key}", for_json=for_json)) for key, item in value.items())
        return _with_metadata(type(value)(pairs), value)
    items = [_encode_pair(key, item, path, for_json=for_json) for key, item in value.items()]
    return {TAG: "dict", "items": items}


def _encode_pair(key: Any, item: Any, path: str, *, for_json: bool) -> list[Any]:
    return [
        encode(key, f"a key of {path}", for_json=for_json),
        encode(item, f"{path}[{key!r}]", for_json=for_json),
    ]


def _with_metadata(target: dict[Any, Any], source: dict[Any, Any]) -> dict[Any, Any]:
    """A module's state_dict has its modules' versions in an attribute, which a copy must keep."""
    metadata = getattr(source, "_metadata", None)
    if metadata is not None and isinstance(target, OrderedDict):
        target._metadata = metadata  # type: ignore[attr-defined]  # PyTorch's own convention
    return target


def _fits_in_bytes(dtype: Any) -> bool:
    """Whether an array's bytes and the name of its type are sufficient: fields have names, and objects are
    stored elsewhere.
    """
    return not dtype.hasobject and dtype.names is None


def _encode_array(array: Any, kind: str, numpy: Any) -> dict[str, Any]:
    data = numpy.ascontiguousarray(array).tobytes()
    return {
        TAG: kind,
        "dtype": array.dtype.str,
        "shape": list(array.shape),
        "data": base64.b64encode(data).decode(),
    }


def _decode_array(value: dict[str, Any], kind: Any) -> Any:
    import numpy as np  # only a checkpoint of a script that uses NumPy gets here

    flat = np.frombuffer(base64.b64decode(value["data"]), dtype=np.dtype(value["dtype"]))
    array = flat.reshape(value["shape"]).copy()
    if kind == "array":
        return array
    if kind == "scalar":
        return array[()]
    raise ValueError(
        f"the checkpoint holds a value of unknown kind {kind!r}; it was written by a newer Headrace"
    )
