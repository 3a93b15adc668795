"""What a controller's state must be for the controller to resume from it, and its parts as plain values."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from headrace_torch.hdet.fingerprint import OTHER_PARAMETERS
from headrace_torch.hdet.replicas import ReplicaGroup
from headrace_torch.hdet.rules import Evidence, Trend

VERSION = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The state from which a controller resumes."""

    steps: int
    syncs: int
    centers: list[float]
    starts: list[float]
    velocities: list[float]
    evidence: list[Evidence]
    trend: Trend
    base_before: dict[str, float]
    loss_total: float
    loss_weight: float

    @classmethod
    def of(cls, state: Mapping[str, Any], hyperparameters: int) -> Self:
        """Reads a state with this many hyperparameters; raises Python's own errors if it cannot be read."""

        def values(key: str) -> list[float]:
            return [float(value) for value, _ in zip(state[key], range(hyperparameters), strict=True)]

        return cls(
            steps=int(state["steps"]),
            syncs=int(state["syncs"]),
            centers=values("centers"),
            starts=values("starts"),
            velocities=values("velocities"),
            evidence=[
                Evidence(velocity=float(velocity), variance=float(variance))
                for (velocity, variance), _ in zip(state["evidence"], range(hyperparameters), strict=True)
            ],
            trend=Trend.of(state["trend"]),
            base_before={str(name): float(rate) for name, rate in state["base_before"].items()},
            loss_total=float(state["loss_total"]),
            loss_weight=float(state["loss_weight"]),
        )


def cannot_resume(
    state: Mapping[str, Any], *, mine: Mapping[str, Any], replicas: ReplicaGroup, differ: bool
) -> str | None:
    """Says why a state does not belong to the controller whose own is `mine`.

    Replicas that `differ` at the state's step each need their own.
    """
    if "version" in state and state["version"] != VERSION:
        return f"the checkpoint has version {state['version']!r} of the controller's state, this is {VERSION}"
    if missing := sorted(mine.keys() - state.keys()):
        return f"the state was not written by a controller: it has no {', '.join(missing)}"
    if state["replicas"] != replicas.size:
        return (
            f"the checkpoint was written with {state['replicas']} replicas and there are {replicas.size}: multipliers "
            "and losses belong to replicas; resume with the same number, or start a new controller from the averaged "
            "weights"
        )
    for key in ("names", "sync_every", "seed", "design"):
        if state[key] != mine[key]:
            return f"{key} was {state[key]!r} when the checkpoint was written and is {mine[key]!r} now"
    if not all(math.isfinite(float(center)) for center in state["centers"]):
        return "the checkpoint's centers are not finite"
    if not differ:
        return None
    if state["replica"] != replicas.rank:
        return (
            f"the state of replica {state['replica']} was loaded on replica {replicas.rank} in the middle of an "
            "interval, where replicas differ: save and load one checkpoint per rank, or save at a sync point"
        )
    if state["parameters"] != mine["parameters"]:
        return OTHER_PARAMETERS.format(replica=replicas.rank)
    return None
