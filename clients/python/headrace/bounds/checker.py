"""Checks of whole messages, compiled from the table once per message type."""

from functools import cache

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

from headrace.bounds.kinds import Bound, Check, Entries, Fault, Items, fault
from headrace.bounds.table import SIZES, TABLE
from headrace.bounds.totals import TOTALS


class UnboundedError(LookupError):
    """The table has no bound for a field."""


@cache
def check_of(message: Descriptor) -> Check:
    """The check of a message type. Raises UnboundedError for fields without a bound."""
    checks = {field.number: inner for field in message.fields if (inner := _field_check(field)) is not None}
    most = SIZES.get(message.name)
    totals = TOTALS.get(message.name, ())

    def check(value: Message) -> list[Fault] | None:
        if most is not None and value.ByteSize() > most:
            size = f"{value.ByteSize()} bytes"
            return [Fault(path="", value=size, message=f"is larger than {most} bytes", remedy="Shorten it.")]
        # Totals first: if there are too many entries in all, they are not checked one by one.
        if totals and (excess := [one for total in totals for one in total.check(value)]):
            return excess
        found: list[Fault] | None = None
        for field, content in value.ListFields():
            inner = checks.get(field.number)
            if inner is not None and (wrong := inner(content)):
                found = [*(found or ()), *(one.under(field.name) for one in wrong)]
        return found

    return check


def bound_of(field: FieldDescriptor) -> Bound | None:
    """The table's bound for a field; None if its type bounds it. Raises UnboundedError."""
    message = field.containing_type
    bound = TABLE.get(message.name, {}).get(field.name) if message else None
    if bound is None and (
        field.is_repeated or not (field.message_type or field.enum_type or _is_flag(field))
    ):
        raise UnboundedError(f"{field.full_name} has no bound: add it to headrace.bounds")
    return bound


def map_value(field: FieldDescriptor) -> FieldDescriptor | None:
    """The value field of a map; None for other fields."""
    entry = field.message_type
    return entry.fields_by_name["value"] if entry and entry.GetOptions().map_entry else None


def _field_check(field: FieldDescriptor) -> Check | None:
    match bound_of(field):
        case Items() as bound:
            return bound.check(bound.each.check() if bound.each else _type_check(field))
        case Entries() as bound:
            return bound.check(bound.value.check() if bound.value else _type_check(map_value(field) or field))
        case None:
            return _type_check(field)
        case bound:
            return bound.check()


def _type_check(field: FieldDescriptor) -> Check | None:
    """The check that a value's type requires, if any."""
    if field.message_type is not None:
        return check_of(field.message_type)
    if field.enum_type is not None:
        return _known(field.enum_type)
    return None


def _known(enum: EnumDescriptor) -> Check:
    names = enum.values_by_number
    remedy = f"Give one of {', '.join(value.name for value in enum.values if value.number)}."

    def check(value: int) -> list[Fault] | None:
        return None if value in names else fault(value, "is not a known value", remedy)

    return check


def _is_flag(field: FieldDescriptor) -> bool:
    return bool(field.type == FieldDescriptor.TYPE_BOOL)
