"""Resources and elastic grants between the models and their messages."""

from typing import Any, Final

from headrace.spec.convert_values import value_from_proto, value_to_proto
from headrace.spec.resources import Elastic, Processes, Resources
from headrace.spec.sizes import SizeTable, TrialSize
from headrace.v1 import spec_pb2 as pb

_PROCESSES: Final = {Processes.ONE: pb.PROCESSES_ONE, Processes.PER_SLOT: pb.PROCESSES_PER_SLOT}


def resources_to_proto(resources: Resources) -> pb.Resources:
    """The resources as a message."""
    message = pb.Resources(
        gpus=resources.gpus,
        gpu_memory_bytes=resources.gpu_memory_bytes,
        labels=resources.labels,
        gpu_milli=resources.gpu_milli,
        gpu_types=resources.gpu_types,
        cpus=resources.cpus,
        processes=_PROCESSES[resources.processes],
    )
    if resources.by is not None:
        message.by.CopyFrom(_table_to_proto(resources.by))
    return message


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
        "by": _table_data(message.by) if message.HasField("by") else None,
    }


def _table_to_proto(table: SizeTable) -> pb.SizeTable:
    rows = [_size_to_proto(row) for row in table.rows]
    for row, found in zip(table.rows, rows, strict=True):
        found.value.CopyFrom(value_to_proto(row.value))
    message = pb.SizeTable(parameter=table.parameter, from_value=table.from_value, rows=rows)
    if table.otherwise is not None:
        message.otherwise.CopyFrom(_size_to_proto(table.otherwise))
    return message


def _size_to_proto(size: TrialSize) -> pb.SizeRow:
    return pb.SizeRow(gpus=size.gpus, gpu_milli=size.gpu_milli, cpus=size.cpus)


def _table_data(message: pb.SizeTable) -> dict[str, Any]:
    return {
        "parameter": message.parameter,
        "from_value": message.from_value,
        "rows": [{"value": value_from_proto(row.value), **_size_data(row)} for row in message.rows],
        "otherwise": _size_data(message.otherwise) if message.HasField("otherwise") else None,
    }


def _size_data(message: pb.SizeRow) -> dict[str, Any]:
    return {"gpus": message.gpus, "gpu_milli": message.gpu_milli, "cpus": message.cpus}


def elastic_to_proto(elastic: Elastic) -> pb.Elastic:
    """The table as a message."""
    rows = [
        pb.ElasticGrant(from_step=row.from_step, slots=row.slots, gpu_milli=row.gpu_milli)
        for row in elastic.grants
    ]
    return pb.Elastic(grants=rows, spare=elastic.spare)


def elastic_data(message: pb.Elastic) -> dict[str, Any]:
    """The plain data of a message."""
    rows = [
        {"from_step": row.from_step, "slots": row.slots, "gpu_milli": row.gpu_milli} for row in message.grants
    ]
    return {"grants": rows, "spare": message.spare}
