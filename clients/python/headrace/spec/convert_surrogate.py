"""Surrogates and gates between the models and their messages."""

from typing import Any

from headrace.spec.surrogate import Gate, Surrogate
from headrace.v1 import spec_pb2 as pb


def surrogate_to_proto(surrogate: Surrogate) -> pb.Surrogate:
    """The surrogate as a message."""
    return pb.Surrogate(
        model=surrogate.model,
        width=surrogate.width or 0,
        scale=surrogate.scale or 0,
        optimizer=surrogate.optimizer,
        inputs=surrogate.inputs or "",
        accept=surrogate.accept,
    )


def surrogate_data(message: pb.Surrogate) -> dict[str, Any]:
    """The plain data of a message."""
    names = ("width", "scale", "optimizer", "inputs")
    set_ones = {name: value for name in names if (value := getattr(message, name))}
    return {"model": message.model, **set_ones, "accept": list(message.accept)}


def gate_to_proto(gate: Gate) -> pb.Gate:
    """The gate as a message."""
    return pb.Gate(off=gate.off, widths=gate.widths, key=gate.key, study=gate.study)


def gate_data(message: pb.Gate) -> dict[str, Any]:
    """The plain data of a message."""
    return {
        "off": message.off,
        "widths": list(message.widths),
        "key": message.key,
        "study": message.study,
    }
