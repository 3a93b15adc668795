"""Resources and elastic grants between the models and their messages."""

from typing import Any, Final

from headrace.spec.resources import Elastic, Processes, Resources
from headrace.v1 import spec_pb2 as pb

_PROCESSES: Final = {Processes.ONE: pb.PROCESSES_ONE, Processes.PER_SLOT: pb.PROCESSES_PER_SLOT}


def resources_to_proto(resources: Resources) -> pb.Resources:
    """The resources as a message."""
    return pb.Resources(
        gpus=resources.gpus,
        gpu_memory_bytes=resources.gpu_memory_bytes,
        labels=resources.labels,
        gpu_milli=resources.gpu_milli,
        gpu_types=resources.gpu_types,
        cpus=resources.cpus,
        processes=_PROCESSES[resources.processes],
    )


def resources_data(message: pb.Resources) -> dict[str, Any]:
    """The plain data of a message."""
    names = {pb.PROCESSES_UNSPECIFIED: "one", **{number: kind.value for kind, number in _PROCESSES.items()}}
    return {
        "gpus": message.gpus,
        "gpu_memory_bytes": message.gpu_memory_bytes,
        "labels": dict(message.labels),
        "gpu_milli": message.gpu_milli,
        "gpu_types": list(message.gpu_types),
        "cpus": message.cpus,
        "processes": names.get(message.processes, str(message.processes)),
    }


def elastic_to_proto(elastic: Elastic) -> pb.Elastic:
    """The table as a message."""
    rows = [pb.ElasticGrant(from_step=row.from_step, slots=row.slots) for row in elastic.grants]
    return pb.Elastic(grants=rows, spare=elastic.spare)


def elastic_data(message: pb.Elastic) -> dict[str, Any]:
    """The plain data of a message."""
    rows = [{"from_step": row.from_step, "slots": row.slots} for row in message.grants]
    return {"grants": rows, "spare": message.spare}
