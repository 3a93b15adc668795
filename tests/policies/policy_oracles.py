# ruff: noqa: ARG002  (one signature for all)
"""What each policy must decide, written from its definition: every query computes everything again.

The only thing shared with the policies is the names of the folds. Lists, sorts and recursion; no cleverness.
"""

from oracle import Oracle
from oracles_asha import AshaPromotionOracle, AshaStoppingOracle, HedgedOracle, PashaOracle, PricedOracle
from oracles_stopping import RungMedianOracle, RunningMedianOracle, VizierMedianOracle
from oracles_synchronous import PbtOracle, SynchronousOracle

from headrace.spec import AshaPolicy


class RunAllOracle(Oracle):
    def verdict(self, trial, bracket, rung, more):
        return "CONTINUE"


LEARNS = ("tpe", "gp", "multi_fidelity", "cmaes", "nsga2", "nsga3")


def auto(policy, sampler):
    """`auto` in terms of `asha`: hedged on arrival, unless the sampler learns from results."""
    settings = {name: getattr(policy, name) for name in ("eta", "rungs", "effort", "price_pauses")}
    arrival = "cautious" if sampler.kind in LEARNS else "optimistic"
    return AshaPolicy(**settings, min_steps=policy.min_steps, arrival=arrival)


def oracle_of(spec, ladders):
    """The oracle of a study's policy."""
    if spec.policy.kind == "auto":
        spec = spec.model_copy(update={"policy": auto(spec.policy, spec.sampler)})
    policy = spec.policy
    if getattr(policy, "price_pauses", False):
        return PricedOracle(spec, ladders)
    match policy.kind:
        case "run_all":
            return RunAllOracle(spec, ladders)
        case "asha" if policy.effort or policy.arrival == "optimistic":
            return HedgedOracle(spec, ladders)
        case "asha":
            promotes = policy.variant == "promotion"
            return (AshaPromotionOracle if promotes else AshaStoppingOracle)(spec, ladders)
        case "successive_halving" | "hyperband":
            return SynchronousOracle(spec, ladders)
        case "pasha":
            return PashaOracle(spec, ladders)
        case "median":
            vizier = policy.variant == "vizier"
            return (VizierMedianOracle if vizier else RunningMedianOracle)(spec, ladders)
        case "rung_median":
            return RungMedianOracle(spec, ladders)
        case "pbt":
            return PbtOracle(spec, ladders)
    raise ValueError(f"no oracle of {policy.kind}")
