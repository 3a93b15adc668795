"""How objects of libraries are read, if the library is imported: arrays, tensors, generators, data frames."""

import sys
from typing import Any

from headrace.trial.reuse import checksum
from headrace.trial.reuse.tokens import Parts, Reader, Tensors, attributes, by_identity, with_attributes


def reader(kind: type) -> Reader | None:
    """How objects of a class are read; None if it belongs to none of these libraries."""
    for library, classes in _READERS.items():
        module = sys.modules.get(library)
        for path, found in classes.items() if module is not None else ():
            base: Any = module
            for name in path.split("."):
                base = getattr(base, name, None)
            if isinstance(base, type) and issubclass(kind, base):
                return found
    return by_identity if kind.__module__.partition(".")[0] == "pyarrow" else None  # its data do not change


def _array(value: Any, _: Tensors) -> Parts:
    token = ("array", value.dtype.str, value.shape)
    if checksum.is_of_file(value):  # it is of any size, and as much the next trial's as any other file
        return Parts((*token, id(value)), by_identity=True)
    if value.dtype.hasobject:
        return with_attributes(value, token, [("", value.tolist())])
    return with_attributes(value, (*token, checksum.of_array(value)))


def _number(value: Any, _: Tensors) -> Parts:
    return Parts(("number", value.dtype.str, value.tobytes()))


def _text(value: Any, _: Tensors) -> Parts:
    return Parts(("text", type(value).__name__, repr(value)))


def _numpy_generator(value: Any, _: Tensors) -> Parts:
    numpy: Any = sys.modules["numpy"]
    if value is numpy.random.mtrand._rand:  # seeded for each trial
        return Parts(("generator",))
    if hasattr(value, "get_state"):
        return Parts(("generator", _told(value.get_state(legacy=False))))
    bits = getattr(value, "bit_generator", value)
    spawned = getattr(getattr(bits, "seed_seq", None), "n_children_spawned", 0)
    return Parts(("generator", spawned, _told(bits.state)))


def _told(state: Any) -> bytes:
    """The state of a generator: numbers and arrays in dictionaries."""
    if isinstance(state, dict):
        return checksum.of_bytes(b"".join(_told([name, _told(held)]) for name, held in state.items()))
    return checksum.of_array(state) if hasattr(state, "dtype") else repr(state).encode()


def _seeds(value: Any, _: Tensors) -> Parts:
    return Parts(("generator", value.n_children_spawned))


def _tensor(value: Any, tensors: Tensors) -> Parts:
    torch: Any = sys.modules["torch"]
    token = ("tensor", str(value.dtype), tuple(value.shape), str(value.device), value.requires_grad)
    held = list(attributes(value))
    if value.is_leaf and value.grad is not None:
        held.append((".grad", value.grad))
    if value._backward_hooks:
        held.append(("._backward_hooks", value._backward_hooks))
    if hasattr(value, "__tensor_flatten__"):  # a tensor that consists of others, such as a distributed one
        return Parts(
            token, [*held, *((f".{name}", getattr(value, name)) for name in value.__tensor_flatten__()[0])]
        )
    if value.layout == torch.sparse_coo:
        return Parts(token, [*held, (".indices()", value._indices()), (".values()", value._values())])
    if value.layout != torch.strided:
        return Parts((*token, id(value), value._version), held, by_identity=True)
    if value.device.type == "meta":
        return Parts(token, held)
    try:
        place = (value.data_ptr(), str(value.device), value.dtype, tuple(value.shape), value.stride())
    except RuntimeError:  # a tensor without elements, by which PyTorch compiles
        return Parts((*token, id(value)), held, by_identity=True)
    if place not in tensors:
        tensors[place] = checksum.of_tensor(value)
    return Parts((*token, tensors[place]), held)


def _torch_generator(value: Any, _: Tensors) -> Parts:
    torch: Any = sys.modules["torch"]
    if value is torch.default_generator or value in torch.cuda.default_generators:
        return Parts(("generator",))
    return Parts(("generator", str(value.device), checksum.of_tensor(value.get_state())))


def _frame(value: Any, _: Tensors) -> Parts:
    columns = [((str(name),), value.iloc[:, place].array) for place, name in enumerate(value.columns)]
    return Parts(
        ("items", "DataFrame", len(value)), [*columns, (".columns", value.columns), (".index", value.index)]
    )


def _series(value: Any, _: Tensors) -> Parts:
    return Parts(
        ("items", "Series", len(value)), [("", value.array), (".index", value.index), (".name", value.name)]
    )


def _index(value: Any, _: Tensors) -> Parts:
    if hasattr(value, "levels"):
        held = [(".levels", tuple(value.levels)), (".codes", tuple(value.codes))]
    else:
        held = [("", value.array)]
    return Parts(("items", "Index", len(value)), [*held, (".names", tuple(value.names))])


def _column_type(value: Any, _: Tensors) -> Parts:
    # Its attributes hold what pandas has computed.
    return Parts(
        ("text", type(value).__name__, str(value)), [(".categories", getattr(value, "categories", None))]
    )


_READERS: dict[str, dict[str, Reader]] = {
    "decimal": {"Decimal": _text},
    "fractions": {"Fraction": _text},
    "uuid": {"UUID": _text},
    "numpy": {
        "ndarray": _array,
        "generic": _number,
        "dtype": _text,
        "random.Generator": _numpy_generator,
        "random.BitGenerator": _numpy_generator,
        "random.RandomState": _numpy_generator,
        "random.SeedSequence": _seeds,
    },
    "torch": {"Tensor": _tensor, "Generator": _torch_generator, "dtype": _text, "device": _text},
    "pandas": {
        "DataFrame": _frame,
        "Series": _series,
        "Index": _index,
        "api.extensions.ExtensionDtype": _column_type,
    },
}
