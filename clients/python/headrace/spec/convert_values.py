"""Values of parameters between Python and their messages."""

from collections.abc import Mapping

from headrace.v1 import spec_pb2 as pb

Scalar = bool | int | float | str


def value_to_proto(value: Scalar) -> pb.ParameterValue:
    """A parameter's value with its type."""
    match value:
        case bool():
            return pb.ParameterValue(bool_value=value)
        case int():
            return pb.ParameterValue(int_value=value)
        case float():
            return pb.ParameterValue(float_value=value)
        case str():
            return pb.ParameterValue(string_value=value)


def value_from_proto(message: pb.ParameterValue) -> Scalar | None:
    """The value of a message; None where no kind is set, which validation refuses by its path."""
    kind = message.WhichOneof("kind")
    if kind is None:
        return None
    value: Scalar = getattr(message, kind)
    return value


def params_to_proto(params: Mapping[str, Scalar]) -> pb.ParameterAssignment:
    """A configuration as a message."""
    return pb.ParameterAssignment(values={name: value_to_proto(value) for name, value in params.items()})


def options_data(message: pb.ParameterAssignment) -> dict[str, Scalar | None]:
    """The options of something of the user's own, as plain data; a value that is not set is refused by its path."""
    return {name: value_from_proto(message.values[name]) for name in sorted(message.values)}
