"""What an object consists of, by its class: its token, and the objects that it leads to."""

import enum
import functools
import gc
import io
import itertools
import logging
import mmap
import os
import random
import re
import threading
import types
import warnings
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator
from contextlib import suppress
from contextvars import ContextVar
from datetime import date, timedelta, tzinfo
from datetime import time as time_of_day
from pathlib import PurePath
from typing import Any, Final

from headrace import sources
from headrace.trial.reuse import checksum, library_values
from headrace.trial.reuse.own import is_own, is_own_file
from headrace.trial.reuse.tokens import (
    ATOMS,
    Parts,
    Reader,
    Tensors,
    Token,
    atom,
    attributes,
    by_identity,
    flat,
    has_c_state,
    with_attributes,
)

_SEQUENCES: Final[tuple[Any, ...]] = (list, tuple, set, frozenset, deque)
_MAPPINGS: Final[tuple[Any, ...]] = (OrderedDict, dict, types.MappingProxyType)
_BASIC: Final = (bool, int, float, complex, str, bytes)
_SAME_TEXT: Final = (date, time_of_day, timedelta, PurePath, range, slice)
"""Classes whose `repr` holds all there is."""
_OPAQUE: Final = (
    *(
        types.ModuleType,
        logging.Logger,
        logging.Handler,
        types.CodeType,
        types.FrameType,
        types.TracebackType,
    ),
    *(types.GenericAlias, types.UnionType, types.GetSetDescriptorType, types.MemberDescriptorType, tzinfo),
    *(types.WrapperDescriptorType, types.MethodDescriptorType, types.ClassMethodDescriptorType),
)
_LOCK: Final = type(threading.Lock())
_RLOCK: Final = type(threading.RLock())
_ITERATORS: Final = (map, filter, zip, enumerate, reversed)
_NOT_OF_CLASS: Final = frozenset(
    {
        *(
            "__dict__",
            "__weakref__",
            "__doc__",
            "__module__",
            "__annotations__",
            "__abstractmethods__",
            "_abc_impl",
        ),
        *(
            "__firstlineno__",
            "__static_attributes__",
            "__annotate__",
            "__annotate_func__",
            "__annotations_cache__",
        ),
        *("_value2member_map_", "__parameters__", "__orig_bases__", "__slotnames__"),
    }
)
"""What Python keeps in a class for itself, and members of a flag that it makes when they are asked for."""
_OF_DISPATCH: Final = frozenset({"dispatch_cache", "cache_token", "_clear_cache"})
"""What `functools.singledispatch` remembers of the classes that it was called with."""


@functools.cache
def reader(kind: type) -> Reader:
    """How objects of a class are read."""
    if sources.is_own(kind.__module__):
        return by_identity  # an object of Headrace's, such as its finder in `sys.meta_path`
    for classes, found in _READERS:
        if issubclass(kind, classes):
            return found
    return library_values.reader(kind) or _instance


def _sequence(value: Any, _: Tensors) -> Parts:
    iterate = next(base.__iter__ for base in _SEQUENCES if issubclass(type(value), base))
    items = tuple(iterate(value))  # as the base class does: no code of the user's runs here
    if (found := flat(items)) is not None:
        return with_attributes(value, ("items", type(value).__name__, len(items), found))
    numbered = [((place,), item) for place, item in enumerate(items)]
    return with_attributes(value, ("items", type(value).__name__, len(items)), numbered)


def _mapping(value: Any, _: Tensors) -> Parts:
    kind: Any = next(base for base in _MAPPINGS if issubclass(type(value), base))
    keys, values = tuple(kind.keys(value)), tuple(kind.values(value))
    told, held = flat(keys), flat(values)
    token = ("items", type(value).__name__, len(keys), told, held)
    further: list[tuple[Any, Any]] = []
    if told is None:
        further += [((f"key {place}",), key) for place, key in enumerate(keys)]
    if held is None:
        further += [
            ((key if type(key) in ATOMS else place,), item)
            for place, (key, item) in enumerate(zip(keys, values, strict=True))
        ]
    if issubclass(type(value), defaultdict):
        further.append((".default_factory", value.default_factory))
    return with_attributes(value, token, further)


def _class(value: Any, _: Tensors) -> Parts:
    if not is_own(value):
        return Parts(("class", id(value)), by_identity=True)
    held = [(f".{name}", item) for name, item in list(vars(value).items()) if name not in _NOT_OF_CLASS]
    names = checksum.of_bytes("\0".join(name for name, _ in held).encode())
    return Parts(("class", len(held), names), [*held, ("", value.__bases__)])


def _function(value: Any, _: Tensors) -> Parts:
    code = value.__code__
    if (compiled := value.__dict__.get("_torchdynamo_orig_callable")) is not None:
        return Parts(("function", id(value)), [("", compiled)], by_identity=True)
    has_own_code = is_own_file(code.co_filename)
    skipped = () if has_own_code else _OF_DISPATCH
    cells = zip(code.co_freevars, value.__closure__ or (), strict=True)
    held = [(f".{name}", cell) for name, cell in cells if name not in skipped]
    if not (has_own_code or is_own(value)):
        return Parts(("function", id(value)), held, by_identity=True)
    defaults, named = value.__defaults__ or (), value.__kwdefaults__ or {}
    names = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
    held += [
        (f"({name})", default) for name, default in (*zip(names, defaults, strict=False), *named.items())
    ]
    held += [(f".{name}", item) for name, item in list(value.__dict__.items()) if name not in skipped]
    # A function that is defined again at each call has the same code.
    return Parts(("function", id(code), len(held)), held, by_identity=True, code=code)


def _cell(value: Any, _: Tensors) -> Parts:
    try:
        return Parts(("cell",), [("", value.cell_contents)])
    except ValueError:
        return Parts(("empty cell",))


def _lru_cache(value: Any, _: Tensors) -> Parts:
    wrapped = value.__wrapped__
    if not is_own(wrapped):
        return Parts(("function", id(value)), [("", wrapped)], by_identity=True)
    info = value.cache_info()
    # A hit reorders the results, so they are read in an order of their own.
    held = sorted((one for one in gc.get_referents(value) if not isinstance(one, type)), key=id)
    results = [(".cache", one) for one in held if type(one) not in ATOMS and one is not wrapped]
    return Parts(("cache", info.currsize, info.misses), [("", wrapped), *results])


def _generator(value: Any, _: Tensors) -> Parts:
    frame = next(
        (
            found
            for name in ("gi_frame", "cr_frame", "ag_frame")
            if (found := getattr(value, name, None)) is not None
        ),
        None,
    )
    # The collector lists local variables, and what a loop within the generator iterates over.
    held = gc.get_referents(value) if frame is not None else []
    return Parts(
        ("iterator", frame is None, -1 if frame is None else frame.f_lasti, len(held)),
        [("", one) for one in held],
    )


def _iterator(value: Any, _: Tensors) -> Parts:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # itertools, from Python 3.12 on
        try:
            return Parts(("iterator", type(value).__name__), [("", value.__reduce__()[1:])])
        except (TypeError, AttributeError):
            return Parts(
                ("iterator", id(value)), [("", one) for one in gc.get_referents(value)], by_identity=True
            )


def _reference(value: Any, _: Tensors) -> Parts:
    to = value()
    return Parts(("reference", to is not None), [("", to)])


def _random(value: Any, _: Tensors) -> Parts:
    if value is getattr(random, "_inst", None):  # seeded for each trial
        return Parts(("generator",))
    try:
        return Parts(("generator", checksum.of_bytes(repr(value.getstate()).encode())))
    except NotImplementedError:  # the system's
        return Parts(("generator",))


def _file(value: Any, _: Tensors) -> Parts:
    if value.closed:
        return Parts(("file", "closed"))
    if isinstance(value, io.BytesIO | io.StringIO):
        content = value.getvalue()
        return Parts(("file", value.tell(), atom(content)))
    place: object = None
    with suppress(OSError, ValueError, AttributeError, io.UnsupportedOperation):
        place = os.lseek(value.fileno(), 0, os.SEEK_CUR)
    with suppress(Exception):  # a text file has no position while it is iterated over
        place = (place, value.tell())
    return Parts(("file", id(value), place), by_identity=True)


def _partial(value: Any, _: Tensors) -> Parts:
    return with_attributes(
        value, ("partial",), [(".func", value.func), (".args", value.args), (".keywords", value.keywords)]
    )


def _builtin(value: Any, _: Tensors) -> Parts:
    owner = value.__self__
    held = [] if owner is None or isinstance(owner, types.ModuleType) else [("", owner)]
    return Parts(("builtin", value.__qualname__), held)


def _instance(value: Any, _: Tensors) -> Parts:
    """An object of any other class: its attributes, its class if that is the user's, and what C holds for it."""
    kind: Any = type(value)  # mypy does not accept type[Any] as hashable
    held = list(attributes(value))
    token: Token = ("object", kind.__qualname__, len(held))
    if has_c_state(kind):
        of_c = _of_c(value)
        return Parts(token + of_c.token, [*held, *of_c.parts], by_identity=of_c.by_identity)
    return Parts(token, [*held, ("", kind)] if is_own(kind) else held)


def _of_c(value: Any) -> Parts:
    """An object of a class written in C: its buffer, how it is pickled, or what the collector knows of it."""
    kind = type(value)
    for base in _BASIC:
        if issubclass(kind, base):
            return Parts((base.__repr__(value),))
    with suppress(TypeError, ValueError, BufferError, NotImplementedError), memoryview(value) as view:
        if isinstance(value, mmap.mmap):
            return Parts(("file", id(value)), by_identity=True)
        return Parts((view.format, view.shape, checksum.of_bytes(view.cast("B"))))
    if any("__reduce__" in vars(base) or "__reduce_ex__" in vars(base) for base in kind.__mro__[:-1]):
        with suppress(Exception):
            read = value.__reduce_ex__(4)
            if isinstance(read, tuple):
                told = [tuple(one) if isinstance(one, Iterator) else one for one in read[1:]]
                return Parts((), [("", told)])
    return Parts((id(value),), [("", one) for one in gc.get_referents(value)], by_identity=True)


_READERS: Final[tuple[tuple[Any, Reader], ...]] = (
    (_OPAQUE, by_identity),
    (enum.Enum, _instance),
    (_MAPPINGS, _mapping),
    (_SEQUENCES, _sequence),
    (type, _class),
    (types.FunctionType, _function),
    (types.CellType, _cell),
    (
        types.MethodType,
        lambda value, _: Parts(("method",), [("", value.__func__), (".__self__", value.__self__)]),
    ),
    (types.BuiltinFunctionType, _builtin),
    ((staticmethod, classmethod), lambda value, _: Parts(("method",), [("", value.__func__)])),
    (property, lambda value, _: Parts(("property",), [("", (value.fget, value.fset, value.fdel))])),
    (functools.partial, _partial),
    (functools._lru_cache_wrapper, _lru_cache),
    ((types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType), _generator),
    ((itertools.count, itertools.repeat), lambda value, _: Parts(("iterator", repr(value)))),
    (_ITERATORS, _iterator),
    (weakref.ref, _reference),
    (_LOCK, lambda value, _: Parts(("lock", value.locked()))),
    (_RLOCK, lambda value, _: Parts(("lock", "unlocked" in repr(value)))),
    (random.Random, _random),
    (io.IOBase, _file),
    (re.Pattern, lambda value, _: Parts(("pattern", value.pattern, value.flags))),
    (_SAME_TEXT, lambda value, _: Parts(("text", type(value).__name__, repr(value)))),
    (ContextVar, lambda value, _: Parts(("variable", value.name), [("", value.get(None))])),
)
