"""What is wrong with the settings of a `OneCycleAutoLR`, or with a state that it is to go on from.

Each rank judges what it sees; `ReplicaGroup.agree` tells all of them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace_torch.hdet.designs import DESIGNS
from headrace_torch.hdet.replicas import ReplicaGroup
from headrace_torch.hdet.rules import PaperRule

VERSION = 1
SAME = ("total_steps", "_alpha", "_interval", "_warmup", "_auto", "_seed", "_design")
"""The scheduler's attributes that a state must share with it."""
COMMON = ("last_epoch", "_syncs", "_centers", "_velocities")
"""What is the same in the states of all ranks: with another step on one rank they would wait for each other."""
OWN = "hdet"
"""Under which a state holds what follows, beside OneCycle's own."""
HELD = frozenset({"version", "replicas", "replica", "loss_total", "loss_weight", "orders"})


@dataclass(frozen=True, slots=True, kw_only=True)
class OneCycleSettings:
    """What the scheduler was given, names not yet checked."""

    alpha: float
    interval: int
    warmup: int
    auto: bool
    steps: int | None
    last_epoch: int
    rule: PaperRule
    design: str
    has_group: bool
    world_size: int

    def problem(self) -> str | None:
        """Says what is out of range, as far as one rank can see."""
        if not (math.isfinite(self.alpha) and 0 <= self.alpha < 1):
            return f"ensemble_lr_spread_ratio must be in [0, 1), not {self.alpha}"
        if self.interval < 1:
            return f"model_sync_interval must be at least 1 step, not {self.interval}"
        if self.steps is None:
            return "give total_steps, or epochs and steps_per_epoch: OneCycle and the decay need the length of the run"
        if self.steps < 1:
            return f"total_steps must be at least 1, not {self.steps}"
        if self.warmup < 0:
            return f"auto_lr_warmup_steps must be at least 0, not {self.warmup}"
        if self.auto and self.warmup >= self.steps:
            return (
                f"auto_lr_warmup_steps ({self.warmup}) must be less than total_steps ({self.steps}), "
                "or auto-LR would never begin; lower it, or set enable_auto_lr=False"
            )
        if not 0 <= self.rule.beta < 1:
            return f"momentum_of_lr must be in [0, 1), not {self.rule.beta}"
        for name, value in (("loss_scale", self.rule.sigma), ("lr_of_lr", self.rule.lam)):
            if not (math.isfinite(value) and value > 0):
                return f"{name} must be positive, not {value}"
        if self.design not in DESIGNS:
            return f"design must be one of {', '.join(DESIGNS)}, not {self.design!r}"
        if self.alpha > 0 and not self.has_group:
            return (
                f"an ensemble_lr_spread_ratio of {self.alpha} needs replicas, and there is no process group "
                f"(world_size {self.world_size} was passed): call torch.distributed.init_process_group first, "
                "or set it to 0"
            )
        if self.auto and self.last_epoch != -1:
            return (
                f"last_epoch={self.last_epoch} cannot restore what auto-LR has learnt; "
                "use load_state_dict with the default -1"
            )
        return None


def cannot_resume(
    state: Mapping[str, Any], *, now: Mapping[str, object], replicas: ReplicaGroup, interval: int
) -> str | None:
    """Says why a state does not belong to a scheduler.

    Args:
        state: what `state_dict` gave.
        now: the scheduler's own attributes, of which those in `SAME` are compared.
        replicas: the replicas of the scheduler.
        interval: after how many steps replicas that differ are equal again; 1 where they never differ.
    """
    own = state.get(OWN)
    if own is None:
        return "the state was not written by OneCycleAutoLR; begin a new run from the checkpoint's weights"
    if missing := sorted((HELD - own.keys()) | (set(COMMON) - state.keys())):
        return f"the state has no {', '.join(missing)}"
    if own["version"] != VERSION:
        return f"the checkpoint has version {own['version']!r} of the scheduler's state, this is {VERSION}"
    if own["replicas"] != replicas.size:
        return (
            f"the checkpoint was written with {own['replicas']} replicas and there are {replicas.size}: "
            "multipliers and losses belong to replicas; resume with the same number, or begin a new run from "
            "the averaged weights"
        )
    for key in SAME:
        was = state.get(key)
        if was != now[key]:
            return (
                f"{key.removeprefix('_')} was {was!r} when the checkpoint was written and is {now[key]!r} now"
            )
    if int(state["last_epoch"]) % interval and own["replica"] != replicas.rank:
        return (
            f"the state of replica {own['replica']} was loaded on replica {replicas.rank} in the middle of an "
            "interval, where replicas differ: save and load one checkpoint per rank, or save at a sync point"
        )
    return None
