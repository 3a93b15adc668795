"""Policies by the kind that a spec names. A new one is its own file and one case in `make_policy`."""

from typing import assert_never

from headrace.spec import AshaPolicy, PbtPolicy, RunAllPolicy, RungMedianPolicy, StudySpec
from headrace_services.scheduler.policies.asha import make_asha
from headrace_services.scheduler.policies.pbt import make_pbt
from headrace_services.scheduler.policies.protocol import (
    Action,
    Explanation,
    Policy,
    Promotion,
    RungCost,
    RungResult,
    Verdict,
)
from headrace_services.scheduler.policies.run_all import RunAll
from headrace_services.scheduler.policies.rung_median import make_rung_median

__all__ = [
    "Action",
    "Explanation",
    "Policy",
    "Promotion",
    "RungCost",
    "RungResult",
    "Verdict",
    "make_policy",
]


def make_policy(spec: StudySpec) -> Policy:
    """The policy of a study, without any results yet."""
    match spec.policy:
        case RunAllPolicy():
            return RunAll(max_steps=spec.max_steps, maximize=spec.maximizes())
        case AshaPolicy() as asha:
            return make_asha(spec, asha)
        case RungMedianPolicy() as rung_median:
            return make_rung_median(spec, rung_median)
        case PbtPolicy() as pbt:
            return make_pbt(spec, pbt)
        case never:
            assert_never(never)
