"""Policies, by the kind that a spec names. A new policy needs its own file and one case in `make_policy`."""

from typing import assert_never

from headrace.spec import (
    AshaPolicy,
    AutoPolicy,
    HyperbandPolicy,
    MedianPolicy,
    OwnPolicy,
    PashaPolicy,
    PbtPolicy,
    RunAllPolicy,
    RungMedianPolicy,
    StudySpec,
    SuccessiveHalvingPolicy,
)
from headrace.spec.rungs import GeometricPolicy
from headrace_services.scheduler.core.policies.asha import make_asha
from headrace_services.scheduler.core.policies.median import make_median
from headrace_services.scheduler.core.policies.own import make_own
from headrace_services.scheduler.core.policies.pasha import make_pasha
from headrace_services.scheduler.core.policies.pbt import make_pbt
from headrace_services.scheduler.core.policies.pricing import PricedPauses
from headrace_services.scheduler.core.policies.protocol import (
    Action,
    Explanation,
    PausePrice,
    Policy,
    Promotion,
    RungResult,
    Verdict,
)
from headrace_services.scheduler.core.policies.run_all import RunAll
from headrace_services.scheduler.core.policies.rung_median import make_rung_median
from headrace_services.scheduler.core.policies.synchronous import make_hyperband, make_successive_halving
from headrace_services.scheduler.core.records import RungCost

__all__ = [
    "Action",
    "Explanation",
    "PausePrice",
    "Policy",
    "Promotion",
    "RungCost",
    "RungResult",
    "Verdict",
    "make_policy",
]


def make_policy(spec: StudySpec) -> Policy:
    """The policy of a study, without any results yet."""
    policy = _plain(spec)
    if isinstance(spec.policy, GeometricPolicy) and spec.prices_pauses:
        return PricedPauses(policy, eta=spec.policy.eta)
    return policy


def _plain(spec: StudySpec) -> Policy:
    match spec.policy:
        case AutoPolicy() as auto:
            return make_asha(spec, auto.asha(spec.sampler))
        case RunAllPolicy():
            return RunAll(ladder=spec.rungs(), maximize=spec.maximizes())
        case AshaPolicy() as asha:
            return make_asha(spec, asha)
        case SuccessiveHalvingPolicy() as halving:
            return make_successive_halving(spec, halving)
        case HyperbandPolicy() as hyperband:
            return make_hyperband(spec, hyperband)
        case PashaPolicy() as pasha:
            return make_pasha(spec, pasha)
        case MedianPolicy() as median:
            return make_median(spec, median)
        case RungMedianPolicy() as rung_median:
            return make_rung_median(spec, rung_median)
        case PbtPolicy() as pbt:
            return make_pbt(spec, pbt)
        case OwnPolicy() as own:
            return make_own(spec, own)
        case never:
            assert_never(never)
