"""Plain fields of a message, read by name: numbers, strings, booleans, lists of these, and metrics.

A value of the SDK and a record of the scheduler have the fields of a message under the same names. So a new
plain field needs no line in a conversion. Other messages, enums and resource names are converted by hand.
"""

from collections.abc import Callable
from dataclasses import fields
from functools import lru_cache
from typing import Any

from google.protobuf.message import Message

_Reader = Callable[[Message, str], Any]


def plain_fields(message: type[Message] | Message) -> tuple[Any, ...]:
    """The fields that hold neither another message nor an enum. A map counts by the type of its values."""
    return tuple(field for field in message.DESCRIPTOR.fields if _is_plain(field))


def plain(proto: Message, kind: type) -> dict[str, Any]:
    """The plain fields that a message and the dataclass `kind` have in common. An optional field that is not set
    is None.
    """
    message: Any = type(proto)
    return {name: read(proto, name) for name, read in _readers(message, kind)}


@lru_cache
def _readers(message: Any, kind: Any) -> tuple[tuple[str, _Reader], ...]:
    held = {part.name for part in fields(kind)}
    return tuple((part.name, _reader(part)) for part in plain_fields(message) if part.name in held)


def _reader(field: Any) -> _Reader:
    if field.message_type is not None:
        return lambda proto, name: dict(sorted(getattr(proto, name).items()))
    if field.is_repeated:
        return lambda proto, name: tuple(getattr(proto, name))
    if field.has_presence:
        return lambda proto, name: getattr(proto, name) if proto.HasField(name) else None
    return getattr


def _is_plain(field: Any) -> bool:
    held = field.message_type
    if held is not None and held.GetOptions().map_entry:
        return _is_plain(held.fields_by_name["value"])
    return held is None and field.enum_type is None
