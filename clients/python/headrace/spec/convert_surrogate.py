"""Surrogates and gates between the models and their messages."""

from typing import Any

from headrace.spec.pilot import Pilot
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
        pilot=None if surrogate.pilot is None else _pilot_to_proto(surrogate.pilot),
        scale_by=surrogate.scale_by or "",
    )


def surrogate_data(message: pb.Surrogate) -> dict[str, Any]:
    """The plain data of a message."""
    names = ("width", "scale", "scale_by", "optimizer", "inputs")
    data: dict[str, Any] = {name: value for name in names if (value := getattr(message, name))}
    if message.HasField("pilot"):
        data["pilot"] = _pilot_data(message.pilot)
    return {"model": message.model, **data, "accept": list(message.accept)}


def _pilot_to_proto(pilot: Pilot) -> pb.Pilot:
    return pb.Pilot(
        scales=pilot.scales,
        configurations=pilot.configurations,
        steps=pilot.steps or 0,
        least_kendall=pilot.least_kendall,
        most_regret=pilot.most_regret,
        study=pilot.study,
    )


def _pilot_data(message: pb.Pilot) -> dict[str, Any]:
    data: dict[str, Any] = {"scales": list(message.scales), "study": message.study}
    data |= {name: value for name in ("configurations", "steps") if (value := getattr(message, name))}
    data |= {
        name: getattr(message, name) for name in ("least_kendall", "most_regret") if message.HasField(name)
    }
    return data


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
