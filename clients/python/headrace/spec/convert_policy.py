"""Between a policy's message and its model, for every kind of policy alike.

Fields have the same names on both sides, so there is nothing to write for a new policy. A number that is 0 in a
message, or an empty list, was not set: the model's default stands. Where 0 is a value of its own, the field is
`optional` in `spec.proto`. The one exception is older than this rule: ASHA's η must be given.
"""

from typing import Any, Final

from google.protobuf.descriptor import EnumDescriptor

from headrace.spec.convert_values import options_data, params_to_proto
from headrace.spec.policy import Policy
from headrace.v1 import spec_pb2 as pb

_REQUIRED: Final = frozenset({"headrace.v1.AshaPolicy.eta"})


def policy_to_proto(policy: Policy) -> pb.Policy:
    """The policy as a message."""
    message = pb.Policy(price_pauses=getattr(policy, "price_pauses", False))
    body = getattr(message, policy.kind)
    body.SetInParent()
    for field in body.DESCRIPTOR.fields:
        value = getattr(policy, field.name)
        if value is None:
            continue
        if field.is_repeated:
            getattr(body, field.name).extend(value)
        elif field.message_type is not None:  # the options of a policy of the user's own
            getattr(body, field.name).CopyFrom(params_to_proto(value))
        elif field.enum_type is not None:
            setattr(body, field.name, _numbers(field.enum_type)[value.value])
        else:
            setattr(body, field.name, value)
    return message


def policy_data(message: pb.Policy) -> dict[str, Any] | None:
    """The policy as plain data for validation; None where no kind is set."""
    kind = message.WhichOneof("kind")
    if kind is None:
        return None
    body = getattr(message, kind)
    data: dict[str, Any] = {"kind": kind}
    if message.price_pauses:
        data["price_pauses"] = True
    for field in body.DESCRIPTOR.fields:
        value = getattr(body, field.name)
        if field.is_repeated:
            value = list(value)
        elif field.message_type is not None:
            value = options_data(value)
        given = body.HasField(field.name) if field.has_presence else bool(value)
        if not given and field.full_name not in _REQUIRED:
            continue
        if field.enum_type is not None:
            names = {number: name for name, number in _numbers(field.enum_type).items()}
            value = names.get(value, str(value))
        data[field.name] = value
    return data


def listed_rungs(message: pb.Policy) -> bool:
    """Whether the policy lists its rungs, the last of which is the full budget."""
    kind = message.WhichOneof("kind")
    return kind is not None and bool(getattr(getattr(message, kind), "rungs", ()))


def _numbers(enum: EnumDescriptor) -> dict[str, int]:
    """The numbers of an enum by the values of the model's: ASHA_VARIANT_STOPPING is `stopping`."""
    prefix = enum.values_by_number[0].name.removesuffix("UNSPECIFIED")
    return {value.name.removeprefix(prefix).lower(): value.number for value in enum.values if value.number}
