"""Converts values of parameters, and configurations, between Python, messages and JSON."""

from collections.abc import Mapping
from typing import Any

from headrace.errors import InvalidFieldError, Violation
from headrace.spec.scalars import check_value, value_to_json
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
    """The value of a message; None if no kind is set, which validation rejects with its path."""
    kind = message.WhichOneof("kind")
    if kind is None:
        return None
    value: Scalar = getattr(message, kind)
    return value


def params_to_proto(params: Mapping[str, Scalar]) -> pb.ParameterAssignment:
    """A configuration as a message."""
    return pb.ParameterAssignment(values={name: value_to_proto(value) for name, value in params.items()})


def params_data(message: pb.ParameterAssignment) -> dict[str, Scalar | None]:
    """A configuration, or the options of a user's own policy or sampler, as plain data for validation."""
    return {name: value_from_proto(message.values[name]) for name in sorted(message.values)}


def params_from_proto(message: pb.ParameterAssignment, *, field: str = "parameters") -> dict[str, Scalar]:
    """A configuration from a message; raises `InvalidFieldError` if a value is not set."""
    params = params_data(message)
    missing = [name for name, value in params.items() if value is None]
    if missing:
        raise InvalidFieldError(
            Violation(
                field=f"{field}.{name}", message="has no value", remedy="Set one of the kinds of value."
            )
            for name in missing
        )
    return {name: value for name, value in params.items() if value is not None}


def params_to_json(params: Mapping[str, Scalar]) -> dict[str, Any]:
    """A configuration as JSON from which JSONB restores every value's type."""
    return {name: value_to_json(value) for name, value in params.items()}


def params_from_json(data: Mapping[str, Any]) -> dict[str, Scalar]:
    """The configuration written by `params_to_json`."""
    return {name: check_value(value) for name, value in data.items()}
