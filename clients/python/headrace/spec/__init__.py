"""The description of a study: models with their validation, study files, protobuf and JSON.

The SDK, the CLI and the scheduler all use it. The models mirror `spec.proto` field for field; `parse_spec`,
`load_study_file` and `from_proto` raise `headrace.errors.InvalidFieldError` with every violation at once.

Names are imported on first use: a worker only uses a few constants and needs no model.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.spec.auto import AutoPolicy
    from headrace.spec.code import OnCodeChange
    from headrace.spec.convert import from_proto, to_proto
    from headrace.spec.domains import CategoricalDomain, Condition, Domain, FloatDomain, IntDomain
    from headrace.spec.file import StudyFile, load_study_file, parse_named_spec, parse_spec
    from headrace.spec.halving import (
        AshaArrival,
        AshaFromTheTop,
        AshaPolicy,
        AshaVariant,
        HyperbandPolicy,
        PashaPolicy,
        SuccessiveHalvingPolicy,
    )
    from headrace.spec.objective import Constraint, Goal, Keep, Objective, Scope, WarmStart
    from headrace.spec.own import OwnPolicy, OwnSampler
    from headrace.spec.pbt import PbtPolicy
    from headrace.spec.pilot import Pilot
    from headrace.spec.plan import PlanDegrees, TransferPlan, TrialPlan
    from headrace.spec.policy import POLICIES, Policy, RunAllPolicy
    from headrace.spec.resources import Resources
    from headrace.spec.sampler import (
        BestOfSampler,
        CmaEsSampler,
        GpSampler,
        GridSampler,
        ModelBased,
        MultiFidelitySampler,
        Nsga2Sampler,
        Nsga3Sampler,
        RandomSampler,
        Sampler,
        SobolSampler,
        StartsWithDraws,
        TpeSampler,
    )
    from headrace.spec.scalars import Value
    from headrace.spec.stopping import MedianPolicy, MedianVariant, RungMedianPolicy
    from headrace.spec.study import (
        StudySpec,
        check_assignment,
        check_assignments,
        check_study_id,
        violations_of,
    )
    from headrace.spec.surrogate import Gate, Surrogate
    from headrace.spec.template import CommandLine, TrialTemplate
    from headrace.spec.transfer import Transfer
    from headrace.spec.until import Until
    from headrace.spec.values import (
        params_from_json,
        params_from_proto,
        params_to_json,
        params_to_proto,
        value_from_proto,
        value_to_proto,
    )

__all__ = [
    "POLICIES",
    "AshaArrival",
    "AshaFromTheTop",
    "AshaPolicy",
    "AshaVariant",
    "AutoPolicy",
    "BestOfSampler",
    "CategoricalDomain",
    "CmaEsSampler",
    "CommandLine",
    "Condition",
    "Constraint",
    "Domain",
    "FloatDomain",
    "Gate",
    "Goal",
    "GpSampler",
    "GridSampler",
    "HyperbandPolicy",
    "IntDomain",
    "Keep",
    "MedianPolicy",
    "MedianVariant",
    "ModelBased",
    "MultiFidelitySampler",
    "Nsga2Sampler",
    "Nsga3Sampler",
    "Objective",
    "OnCodeChange",
    "OwnPolicy",
    "OwnSampler",
    "PashaPolicy",
    "PbtPolicy",
    "Pilot",
    "PlanDegrees",
    "Policy",
    "RandomSampler",
    "Resources",
    "RunAllPolicy",
    "RungMedianPolicy",
    "Sampler",
    "Scope",
    "SobolSampler",
    "StartsWithDraws",
    "StudyFile",
    "StudySpec",
    "SuccessiveHalvingPolicy",
    "Surrogate",
    "TpeSampler",
    "Transfer",
    "TransferPlan",
    "TrialPlan",
    "TrialTemplate",
    "Until",
    "Value",
    "WarmStart",
    "check_assignment",
    "check_assignments",
    "check_study_id",
    "from_proto",
    "load_study_file",
    "params_from_json",
    "params_from_proto",
    "params_to_json",
    "params_to_proto",
    "parse_named_spec",
    "parse_spec",
    "to_proto",
    "value_from_proto",
    "value_to_proto",
    "violations_of",
]

_NAMES: dict[str, tuple[str, ...]] = {
    "auto": ("AutoPolicy",),
    "code": ("OnCodeChange",),
    "convert": ("from_proto", "to_proto"),
    "domains": ("CategoricalDomain", "Condition", "Domain", "FloatDomain", "IntDomain"),
    "file": ("StudyFile", "load_study_file", "parse_named_spec", "parse_spec"),
    "halving": (
        "AshaArrival",
        "AshaFromTheTop",
        "AshaPolicy",
        "AshaVariant",
        "HyperbandPolicy",
        "PashaPolicy",
        "SuccessiveHalvingPolicy",
    ),
    "objective": ("Constraint", "Goal", "Keep", "Objective", "Scope", "WarmStart"),
    "own": ("OwnPolicy", "OwnSampler"),
    "pbt": ("PbtPolicy",),
    "pilot": ("Pilot",),
    "plan": ("PlanDegrees", "TransferPlan", "TrialPlan"),
    "policy": ("POLICIES", "Policy", "RunAllPolicy"),
    "resources": ("Resources",),
    "sampler": (
        "BestOfSampler",
        "CmaEsSampler",
        "GpSampler",
        "GridSampler",
        "ModelBased",
        "MultiFidelitySampler",
        "Nsga2Sampler",
        "Nsga3Sampler",
        "RandomSampler",
        "Sampler",
        "SobolSampler",
        "StartsWithDraws",
        "TpeSampler",
    ),
    "scalars": ("Value",),
    "stopping": ("MedianPolicy", "MedianVariant", "RungMedianPolicy"),
    "study": ("StudySpec", "check_assignment", "check_assignments", "check_study_id", "violations_of"),
    "surrogate": ("Gate", "Surrogate"),
    "template": ("CommandLine", "TrialTemplate"),
    "transfer": ("Transfer",),
    "until": ("Until",),
    "values": (
        "params_from_json",
        "params_from_proto",
        "params_to_json",
        "params_to_proto",
        "value_from_proto",
        "value_to_proto",
    ),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'headrace.spec' has no attribute {name!r}", name=name)
    value = getattr(import_module(f"headrace.spec.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
