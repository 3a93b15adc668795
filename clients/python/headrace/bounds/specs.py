"""Bounds of a study's specification (spec.proto). The models of `headrace.spec` define what else must hold."""

from typing import Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.duration_pb2 import Duration

from headrace.bounds import numbers as n
from headrace.bounds.kinds import Bound, Entries, Items, Real, Span, Text, Unbounded, Whole
from headrace.v1 import spec_pb2

NAME: Final = Text(n.NAME)
TEXT: Final = Text(n.TEXT)
PROSE: Final = Text(n.TEXT, prose=True)
STEPS: Final = Whole(0, n.STEPS)
COUNT: Final = Whole(0, n.COUNT)
SLOTS: Final = Whole(0, n.SLOTS)
GRANT: Final = Whole(0, n.DEVICES)
BYTES: Final = Whole(0, n.BYTES)
FINITE: Final = Real(-1.7976931348623157e308, 1.7976931348623157e308)
SHARE: Final = Real(0, 1)
RUNGS: Final = Items(n.RUNGS, STEPS)
RESULTS: Final = Whole(0, n.RESULTS)
POPULATION: Final = Whole(0, n.POPULATION)

_OWN: Final[dict[str, dict[str, Bound]]] = {
    "StudySpec": {
        "space": Items(n.PARAMETERS),
        "seed": Whole(0, n.INT64),
        "enqueued": Items(10_000),
        "weight": Real(0, n.WEIGHT),
        "priority": Whole(-n.PRIORITY, n.PRIORITY),
        "further_objectives": Items(n.OBJECTIVES - 1),
        "constraints": Items(n.CONSTRAINTS),
    },
    "Until": {"hours": Real(0, n.HOURS)},
    "Extended": {"steps": Items(n.EXTENSIONS, STEPS)},
    "Objective": {"k": Whole(0, n.LAST_REPORTS)},
    "Parameter": {"conditions": Items(n.CONDITIONS)},
    "IntDomain": {
        "low": Unbounded("the whole of a 64-bit number may be searched"),
        "high": Unbounded("the whole of a 64-bit number may be searched"),
        "step": Whole(0, n.INT64),
    },
    "CategoricalDomain": {"values": Items(10_000)},
    "ParameterValue": {"int_value": Unbounded("a parameter may be any 64-bit number"), "string_value": PROSE},
    "Condition": {"values": Items(10_000)},
    "GridSampler": {"points": Entries(n.PARAMETERS, NAME, Whole(0, n.GRID_POINTS))},
    "TpeSampler": {"candidates": POPULATION, "max_results": RESULTS},
    "GpSampler": {"max_results": RESULTS},
    "MultiFidelitySampler": {"max_results": Whole(0, n.RESULTS_OF_A_MATRIX)},
    "CmaEsSampler": {"population": POPULATION},
    "Nsga2Sampler": {"population": POPULATION},
    "Nsga3Sampler": {"population": POPULATION},
    "AutoPolicy": {"effort": SHARE, "rungs": RUNGS},
    "AshaPolicy": {"rungs": RUNGS, "brackets": Whole(0, n.BRACKETS), "effort": Real(0, 1)},
    "SuccessiveHalvingPolicy": {"rungs": RUNGS},
    "HyperbandPolicy": {"rungs": RUNGS},
    "PashaPolicy": {"rungs": RUNGS, "epsilon": Real(0, 1e300)},
    "MedianPolicy": {"rungs": RUNGS},
    "RungMedianPolicy": {"rungs": RUNGS, "tolerance": SHARE},
    "PbtPolicy": {
        "quantile": SHARE,
        "resample_probability": SHARE,
        "factors": Items(64, Real(0, 1e6)),
        "mutable": Items(n.PARAMETERS, NAME),
    },
    "OwnPolicy": {"rungs": RUNGS},
    "TrialTemplate": {
        "callable": TEXT,
        "working_dir": TEXT,
        "env": Entries(1000, NAME, Text(32_768, prose=True)),
        "python": TEXT,
        "requirements": TEXT,
    },
    "Code": {"digest": Text(64), "size_bytes": BYTES, "commit": Text(64)},
    "CommandLine": {"args": Items(1000, Text(32_768, prose=True))},
    "Resources": {
        "gpus": GRANT,
        "gpu_memory_bytes": BYTES,
        "labels": Entries(256, NAME, Text(1024)),
        "gpu_milli": Whole(0, 999),
        "gpu_types": Items(64, NAME),
        "cpus": GRANT,
    },
    "SizeTable": {"rows": Items(256)},
    "SizeRow": {"gpus": GRANT, "gpu_milli": Whole(0, 999), "cpus": GRANT},
    "ParameterAssignment": {"values": Entries(n.PARAMETERS, NAME)},
    "Elastic": {"grants": Items(256), "spare": GRANT},
    "ElasticGrant": {"slots": GRANT, "gpu_milli": Whole(0, 999)},
    "Fuse": {"most": Whole(0, n.SEATS), "apart": Items(n.PARAMETERS, NAME)},
    "Surrogate": {"model": TEXT, "inputs": TEXT, "accept": Items(n.PARAMETERS, NAME)},
    "Pilot": {
        "scales": Items(n.WIDTHS, STEPS),
        "configurations": Whole(0, n.PILOT),
        "least_kendall": Real(-1, 1),
        "most_regret": Real(0, 1.7976931348623157e308),
    },
    "Gate": {"widths": Items(n.WIDTHS, STEPS)},
    "BestOfSampler": {"eager": SHARE},
    "Transfer": {"callable": TEXT, "eager": SHARE},
    "TrialPlan": {
        "iteration_s": Real(0, n.SECONDS),
        "files": Entries(64, NAME, Text(n.PLAN_BYTES, prose=True)),
    },
    "WarmStart": {"max_trials": Whole(0, n.WARM_TRIALS)},
}
"""Fields whose bound differs from that of their type, and every list and map, as no default length fits them all."""

_BY_TYPE: Final[dict[int, Bound]] = {
    FieldDescriptor.TYPE_INT32: COUNT,
    FieldDescriptor.TYPE_INT64: STEPS,
    FieldDescriptor.TYPE_DOUBLE: FINITE,
    FieldDescriptor.TYPE_STRING: NAME,
}


def _bounds(message: Descriptor) -> dict[str, Bound]:
    own = _OWN.get(message.name, {})
    found = {field.name: bound for field in message.fields if (bound := own.get(field.name) or _usual(field))}
    return found | own


def _usual(field: FieldDescriptor) -> Bound | None:
    """The bound of a field's type; None if it has or needs none."""
    if field.is_repeated:
        return None
    if field.message_type is not None:
        return Span(0, n.SECONDS) if field.message_type.full_name == Duration.DESCRIPTOR.full_name else None
    return _BY_TYPE.get(field.type)


SPECS: Final = {
    message.name: _bounds(message) for message in spec_pb2.DESCRIPTOR.message_types_by_name.values()
}
"""The bounds of every field of spec.proto."""
