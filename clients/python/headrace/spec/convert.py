"""Converts between the models of a spec and its protobuf messages, by their descriptors. Fields have the same
names on both sides, so a new field needs no code here. The differences are:

- A union of models is a `oneof` whose fields are named by the models' tags. Fields next to it also belong to the
models.
- A mapping of models is a list of messages with a `name`.
- A number that is 0, an empty text and an empty list count as unset: the model's default applies. If such a
value has a meaning and the model's default differs, the field is `optional` in `spec.proto`. The fields in
`_AS_THEY_ARE` are older than this rule.
- The messages in `_OWN` are converted by their own functions.

`from_proto` builds plain data and leaves all validation to `spec_of`, so a client in any language gets the same
violations with the same paths.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import cache
from typing import Any, Final, TypeVar, cast

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from headrace.errors import InvalidFieldError, Violation, show_value
from headrace.spec import shape
from headrace.spec.domains import SpecModel
from headrace.spec.plan import TransferPlan
from headrace.spec.plan_messages import request_data, request_to_proto
from headrace.spec.study import StudySpec, spec_of
from headrace.spec.values import params_data, params_to_proto, value_from_proto, value_to_proto
from headrace.v1 import spec_pb2 as pb

_AS_THEY_ARE: Final = frozenset({"StudySpec.max_retries", "StudySpec.checkpoints_kept", "AshaPolicy.eta"})
"""Numbers for which 0 is a value, or an error, although the model has a different default."""
_FOLLOW: Final = frozenset({"StudySpec.max_steps", "Fuse.most"})
"""Required numbers that may follow from the rest of the spec, if they are 0."""

M = TypeVar("M", bound=Message)


def to_proto(spec: StudySpec) -> pb.StudySpec:
    """The spec as a message."""
    return _filled(pb.StudySpec(), spec)


def from_proto(message: pb.StudySpec, *, stored: bool = False) -> StudySpec:
    """The spec that a message describes; raises `InvalidFieldError` with all violations otherwise.

    With `stored` it is the spec of an existing study: each field is checked, but not the rules between fields,
    because an older release may have accepted what a newer one rejects.
    """
    repeats = _repeated_names(message.space)
    if repeats:
        raise InvalidFieldError(repeats)
    return spec_of(_data(message, {"": StudySpec}), stored=stored)


def _filled(message: M, model: SpecModel) -> M:
    """The message with the fields of the model. None leaves a field unset."""
    shared, body = _shared(message.DESCRIPTOR, type(model))
    for field in shared:
        value = getattr(model, field.name)
        if value is not None:
            _set(message, field, value)
    if body is not None:
        _put(getattr(message, body), model)
    return message


@cache
def _shared(descriptor: Descriptor, model: type[SpecModel]) -> tuple[Sequence[FieldDescriptor], str | None]:
    """The fields that a message and a model have in common, and the field of the `oneof` for this model."""
    known = shape.fields(model)
    body = descriptor.fields_by_name.get(shape.tag(model))
    fields = [field for field in cast("Iterable[FieldDescriptor]", descriptor.fields) if field.name in known]
    return fields, None if body is None else body.name


def _set(message: Message, field: FieldDescriptor, value: Any) -> None:
    held = getattr(message, field.name)
    if field.is_repeated and field.message_type is None:
        held.extend(value)
    elif _is_map(field):
        held.update(value)
    elif field.is_repeated and isinstance(value, Mapping):
        for name, one in value.items():
            _put(held.add(name=name), one)
    elif field.is_repeated:
        for one in value:
            _put(held.add(), one)
    elif field.message_type is not None:
        _put(held, value)
    else:
        setattr(
            message, field.name, value if field.enum_type is None else _numbers(field.enum_type)[value.value]
        )


def _put(message: Message, value: Any) -> None:
    message.SetInParent()
    own = _OWN.get(message.DESCRIPTOR.name)
    if own is not None:
        message.MergeFrom(own[0](value))
    else:
        _filled(message, value)


def _data(message: Message, models: shape.Models) -> dict[str, Any]:
    """The plain data of a message that represents one of the models."""
    if len(models) == 1:
        return _data_of(message, *models.values())
    tag_field = shape.tag_field(next(iter(models.values())))
    kind = message.WhichOneof(message.DESCRIPTOR.oneofs[0].name)
    beside = {
        field.name: value
        for field, value in message.ListFields()
        if field.containing_oneof is None and field.message_type is None and field.name != "name"
    }  # including fields that this model lacks, which validation rejects
    if kind is None or tag_field is None:
        return beside
    model = models[kind]
    return beside | _data_of(message, model) | _data_of(getattr(message, kind), model) | {tag_field: kind}


def _data_of(message: Message, model: type[SpecModel]) -> dict[str, Any]:
    data: dict[str, Any] = {}
    known = shape.fields(model)
    for field in _fields(message):
        one = known.get(field.name)
        if one is not None and _is_given(message, field, one):
            data[field.name] = _value(getattr(message, field.name), field, one)
    return data


def _fields(message: Message) -> Iterable[FieldDescriptor]:
    return cast("Iterable[FieldDescriptor]", message.DESCRIPTOR.fields)


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _is_given(message: Message, field: FieldDescriptor, one: shape.Field) -> bool:
    """Whether a field is set; otherwise it is left to the model's default."""
    if field.message_type is not None and not field.is_repeated:
        is_union = len(one.models) > 1
        held = getattr(message, field.name)
        given = (
            held.WhichOneof(held.DESCRIPTOR.oneofs[0].name) is not None
            if is_union
            else message.HasField(field.name)
        )
        return given or one.required
    if field.has_presence:
        return message.HasField(field.name)
    path = f"{message.DESCRIPTOR.name}.{field.name}"
    asked = one.required and field.enum_type is None and path not in _FOLLOW
    return asked or path in _AS_THEY_ARE or bool(getattr(message, field.name))


def _value(value: Any, field: FieldDescriptor, one: shape.Field) -> Any:
    if field.enum_type is not None:
        names = {number: name for name, number in _numbers(field.enum_type).items()}
        return names.get(value, str(value))
    if field.message_type is None:
        return list(value) if field.is_repeated else value
    if _is_map(field):
        return dict(value)
    own = _OWN.get(field.message_type.name)
    read = own[1] if own is not None else lambda message: _data(message, one.models)
    if one.holds is shape.Holds.BY_NAME and field.is_repeated:
        return {entry.name: read(entry) for entry in value}
    return [read(entry) for entry in value] if field.is_repeated else read(value)


@cache
def _numbers(enum: EnumDescriptor) -> Mapping[str, int]:
    """The numbers of an enum by the values of the model's: ASHA_VARIANT_STOPPING is `stopping`."""
    prefix = enum.values_by_number[0].name.removesuffix("UNSPECIFIED")
    return {value.name.removeprefix(prefix).lower(): value.number for value in enum.values if value.number}


def _duration(value: timedelta) -> Duration:
    message = Duration()
    message.FromTimedelta(value)
    return message


def _seconds(message: Duration) -> timedelta | float:
    """The duration, to the microsecond; one that Python cannot represent becomes a number, for validation to
    reject.
    """
    if not 0 <= message.seconds <= 10**10:
        return float(message.seconds)
    return timedelta(seconds=message.seconds, microseconds=message.nanos // 1000)


def _plan_to_proto(plan: TransferPlan) -> pb.TransferPlan:
    message = request_to_proto(plan)
    if plan.answer is not None:
        _put(message.answer, plan.answer)
    return message


def _plan_data(message: pb.TransferPlan) -> dict[str, Any]:
    answer = shape.fields(TransferPlan)["answer"].models
    return request_data(message) | (
        {"answer": _data(message.answer, answer)} if message.HasField("answer") else {}
    )


_OWN: Final[dict[str, tuple[Callable[[Any], Message], Callable[[Any], Any]]]] = {
    "ParameterValue": (value_to_proto, value_from_proto),
    "ParameterAssignment": (params_to_proto, params_data),
    "Duration": (_duration, _seconds),
    "TransferPlan": (_plan_to_proto, _plan_data),
}
"""Messages without a mirroring model: how each is written and read."""


def _repeated_names(space: Iterable[pb.Parameter]) -> list[Violation]:
    seen: set[str] = set()
    repeats: list[Violation] = []
    for index, parameter in enumerate(space):
        if parameter.name in seen:
            repeats.append(
                Violation(
                    field=f"space[{index}].name",
                    value=show_value(parameter.name),
                    message="is the name of an earlier parameter",
                    remedy="Give every parameter a name of its own.",
                )
            )
        seen.add(parameter.name)
    return repeats
