"""Bounds of what a user asks for (spec.proto). The models of `headrace.spec` say what must hold beyond them."""

from typing import Final

from headrace.bounds import numbers as n
from headrace.bounds.kinds import Bound, Entries, Items, Real, Span, Text, Unbounded, Whole

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

SPECS: Final[dict[str, dict[str, Bound]]] = {
    "StudySpec": {
        "space": Items(n.PARAMETERS),
        "max_trials": Whole(0, n.TRIALS),
        "max_parallel": Whole(0, n.TRIALS),
        "max_steps": STEPS,
        "max_retries": COUNT,
        "max_early_failures": COUNT,
        "seed": Whole(0, n.INT64),
        "enqueued": Items(10_000),
        "checkpoints_kept": COUNT,
        "weight": Real(0, n.WEIGHT),
        "priority": Whole(-n.PRIORITY, n.PRIORITY),
        "after": NAME,
        "further_objectives": Items(n.OBJECTIVES - 1),
        "constraints": Items(n.CONSTRAINTS),
    },
    "Until": {"value": FINITE, "hours": Real(0, n.HOURS), "no_improvement": Whole(0, n.TRIALS)},
    "Extended": {"trials": Whole(0, n.TRIALS), "steps": Items(n.EXTENSIONS, STEPS)},
    "Objective": {"metric": NAME, "k": Whole(0, n.LAST_REPORTS)},
    "Parameter": {"name": NAME, "conditions": Items(n.CONDITIONS)},
    "FloatDomain": {"low": FINITE, "high": FINITE, "step": FINITE},
    "IntDomain": {
        "low": Unbounded("the whole of a 64-bit number may be searched"),
        "high": Unbounded("the whole of a 64-bit number may be searched"),
        "step": Whole(0, n.INT64),
    },
    "CategoricalDomain": {"values": Items(10_000)},
    "ParameterValue": {
        "float_value": FINITE,
        "int_value": Unbounded("a parameter may be any 64-bit number"),
        "string_value": PROSE,
    },
    "Condition": {
        "parameter": NAME,
        "values": Items(10_000),
        "at_least": FINITE,
        "above": FINITE,
        "at_most": FINITE,
        "below": FINITE,
    },
    "GridSampler": {"points": Entries(n.PARAMETERS, NAME, Whole(0, n.GRID_POINTS))},
    "TpeSampler": {"startup_trials": COUNT, "candidates": POPULATION, "max_results": RESULTS},
    "GpSampler": {"startup_trials": COUNT, "max_results": RESULTS},
    "MultiFidelitySampler": {"startup_trials": COUNT, "max_results": Whole(0, n.RESULTS_OF_A_MATRIX)},
    "CmaEsSampler": {"startup_trials": COUNT, "population": POPULATION},
    "Nsga2Sampler": {"population": POPULATION},
    "Nsga3Sampler": {"population": POPULATION},
    "AutoPolicy": {
        "effort": SHARE,
        "eta": Whole(0, n.ETA),
        "min_steps": STEPS,
        "rungs": RUNGS,
    },
    "AshaPolicy": {
        "eta": Whole(0, n.ETA),
        "min_steps": STEPS,
        "rungs": RUNGS,
        "brackets": Whole(0, n.BRACKETS),
        "effort": Real(0, 1),
    },
    "SuccessiveHalvingPolicy": {
        "eta": Whole(0, n.ETA),
        "min_steps": STEPS,
        "rungs": RUNGS,
        "cohort": Whole(0, n.TRIALS),
    },
    "HyperbandPolicy": {"eta": Whole(0, n.ETA), "min_steps": STEPS, "rungs": RUNGS},
    "PashaPolicy": {"eta": Whole(0, n.ETA), "min_steps": STEPS, "rungs": RUNGS, "epsilon": Real(0, 1e300)},
    "MedianPolicy": {"interval": STEPS, "rungs": RUNGS, "grace_steps": STEPS, "min_peers": COUNT},
    "RungMedianPolicy": {
        "interval": STEPS,
        "rungs": RUNGS,
        "tolerance": SHARE,
        "grace_steps": STEPS,
        "min_results": COUNT,
    },
    "PbtPolicy": {
        "interval": STEPS,
        "quantile": SHARE,
        "resample_probability": SHARE,
        "factors": Items(64, Real(0, 1e6)),
        "mutable": Items(n.PARAMETERS, NAME),
    },
    "OwnPolicy": {"name": NAME, "interval": STEPS, "rungs": RUNGS, "grace_steps": STEPS},
    "OwnSampler": {"name": NAME},
    "TrialTemplate": {
        "callable": TEXT,
        "working_dir": TEXT,
        "env": Entries(1000, NAME, Text(32_768, prose=True)),
        "python": TEXT,
        "grace": Span(0, n.SECONDS),
        "report_timeout": Span(0, n.SECONDS),
        "timeout": Span(0, n.SECONDS),
        "requirements": TEXT,
    },
    "Code": {
        "digest": Text(64),
        "size_bytes": BYTES,
        "files": COUNT,
        "commit": Text(64),
    },
    "CommandLine": {"args": Items(1000, Text(32_768, prose=True))},
    "Resources": {
        "gpus": GRANT,
        "gpu_memory_bytes": BYTES,
        "labels": Entries(256, NAME, Text(1024)),
        "gpu_milli": Whole(0, 999),
        "gpu_types": Items(64, NAME),
        "cpus": GRANT,
    },
    "SizeTable": {"parameter": NAME, "rows": Items(256)},
    "SizeRow": {"gpus": GRANT, "gpu_milli": Whole(0, 999), "cpus": GRANT},
    "ParameterAssignment": {"values": Entries(n.PARAMETERS, NAME)},
    "Elastic": {"grants": Items(256), "spare": GRANT},
    "ElasticGrant": {"from_step": STEPS, "slots": GRANT, "gpu_milli": Whole(0, 999)},
    "Fuse": {"most": Whole(0, n.SEATS), "apart": Items(n.PARAMETERS, NAME)},
    "Surrogate": {
        "model": TEXT,
        "width": STEPS,
        "scale": STEPS,
        "optimizer": NAME,
        "inputs": TEXT,
        "accept": Items(n.PARAMETERS, NAME),
        "scale_by": NAME,
    },
    "Pilot": {
        "scales": Items(n.WIDTHS, STEPS),
        "configurations": Whole(0, n.PILOT),
        "steps": STEPS,
        "least_kendall": Real(-1, 1),
        "most_regret": Real(0, 1.7976931348623157e308),
        "study": NAME,
    },
    "Gate": {"widths": Items(n.WIDTHS, STEPS), "key": NAME, "study": NAME},
    "BestOfSampler": {"study": NAME, "eager": SHARE},
    "Transfer": {
        "callable": TEXT,
        "top": Whole(0, n.TRIALS),
        "eager": SHARE,
        "steps": STEPS,
    },
    "TransferPlan": {},
    "TrialPlan": {
        "iteration_s": Real(0, n.SECONDS),
        "files": Entries(64, NAME, Text(n.PLAN_BYTES, prose=True)),
    },
    "Constraint": {"metric": NAME, "at_most": FINITE, "at_least": FINITE},
    "WarmStart": {"study": NAME, "max_trials": Whole(0, n.WARM_TRIALS)},
}
