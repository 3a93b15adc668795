"""What is wrong with the settings of a `OneCycleAutoLR`, or with a state that it is to resume from.

Each rank checks what it sees; `ReplicaGroup.agree` informs all of them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from torch import Tensor

from headrace_torch.hdet.designs import DESIGNS
from headrace_torch.hdet.fingerprint import OTHER_PARAMETERS, of_sample
from headrace_torch.hdet.forms import FORMS
from headrace_torch.hdet.replicas import ReplicaGroup
from headrace_torch.hdet.rules import Trend
from headrace_torch.hdet.settings import not_seconds, not_whole

VERSION = 2
OWN = "hdet"
"""The key under which a state holds the following, beside OneCycle's own."""
HELD = frozenset(
    {
        "replicas",
        "replica",
        "settings",
        "syncs",
        "base",
        "base_before",
        "trend",
        "form",
        "loss_total",
        "loss_weight",
        "orders",
        "parameters",
    }
)
FIXED = (
    "total_steps",
    "ensemble_lr_spread_ratio",
    "model_sync_interval",
    "auto_lr_warmup_steps",
    "enable_auto_lr",
    "seed",
    "design",
    "form",
)
"""The settings that a state must share with the scheduler that loads it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OneCycleSettings:
    """The scheduler's settings under the names of its arguments, not yet checked."""

    ensemble_lr_spread_ratio: float
    model_sync_interval: int
    auto_lr_warmup_steps: int
    enable_auto_lr: bool
    total_steps: int | None
    max_lr: float | list[float]
    pct_start: float
    anneal_strategy: str
    div_factor: float
    final_div_factor: float
    three_phase: bool
    momentum: tuple[bool, float | list[float], float | list[float]]
    last_epoch: int
    momentum_of_lr: float
    loss_scale: float
    lr_of_lr: float
    seed: int
    design: str
    form: str
    probe: bool
    timeout_s: float | None
    groups: int

    def agreed(self) -> dict[str, object]:
        """Returns what must be the same on all ranks."""
        values: dict[str, object] = asdict(self)
        values["parameter groups"] = values.pop("groups")
        return values

    def problem(self, *, has_group: bool, world_size: int) -> str | None:
        """Says what is out of range, as far as one rank can see."""
        alpha, steps, warmup = self.ensemble_lr_spread_ratio, self.total_steps, self.auto_lr_warmup_steps
        if not (math.isfinite(alpha) and 0 <= alpha < 1):
            return f"ensemble_lr_spread_ratio must be in [0, 1), not {alpha}"
        if found := not_whole("model_sync_interval", self.model_sync_interval, least=1, unit=" step"):
            return found
        if steps is None:
            return "give total_steps, or epochs and steps_per_epoch: OneCycle and the decay need the length of the run"
        if found := not_whole("total_steps", steps, least=1):
            return found
        if found := not_whole("auto_lr_warmup_steps", warmup, least=0):
            return found
        if self.enable_auto_lr and warmup >= steps:
            return (
                f"auto_lr_warmup_steps ({warmup}) must be less than total_steps ({steps}), "
                "or auto-LR would never start; lower it, or set enable_auto_lr=False"
            )
        rates = self.max_lr if isinstance(self.max_lr, list | tuple) else [self.max_lr]
        if len(rates) not in (1, self.groups):
            return f"max_lr has {len(rates)} rates and the optimizer {self.groups} parameter groups; give one for each"
        for rate in rates:
            if not (math.isfinite(rate) and rate > 0):
                return f"max_lr must be positive and finite, not {rate}"
        if not 0 <= self.momentum_of_lr < 1:
            return f"momentum_of_lr must be in [0, 1), not {self.momentum_of_lr}"
        for name, value in (("loss_scale", self.loss_scale), ("lr_of_lr", self.lr_of_lr)):
            if not (math.isfinite(value) and value > 0):
                return f"{name} must be positive, not {value}"
        if self.design not in DESIGNS:
            return f"design must be one of {', '.join(DESIGNS)}, not {self.design!r}"
        if found := not_seconds("timeout_s", self.timeout_s):
            return found
        if self.form not in FORMS:
            return f"form must be one of {', '.join(FORMS)}, not {self.form!r}"
        if alpha > 0 and not has_group:
            return (
                f"an ensemble_lr_spread_ratio of {alpha} needs replicas, and there is no process group "
                f"(world_size {world_size} was passed): call torch.distributed.init_process_group first, "
                "or set it to 0"
            )
        if self.enable_auto_lr and self.last_epoch != -1:
            return (
                f"last_epoch={self.last_epoch} cannot restore the state "
                "of auto-LR; use load_state_dict with the default -1"
            )
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """The state from which a scheduler resumes, beside its form's state."""

    orders: tuple[tuple[int, ...], ...]
    syncs: int
    base: list[float]
    base_before: list[float]
    trend: Trend
    loss: tuple[float, float]

    @classmethod
    def of(cls, own: Mapping[str, Any], *, like: Sequence[Sequence[int]]) -> Self:
        """Reads a state whose orders must match others in number and length; raises Python's own errors if it
        cannot."""
        return cls(
            orders=tuple(
                tuple(int(place) for place, _ in zip(order, now, strict=True))
                for order, now in zip(own["orders"], like, strict=True)
            ),
            syncs=int(own["syncs"]),
            base=[float(rate) for rate, _ in zip(own["base"], like, strict=True)],
            base_before=[float(rate) for rate, _ in zip(own["base_before"], like, strict=True)],
            trend=Trend.of(own["trend"]),
            loss=(float(own["loss_total"]), float(own["loss_weight"])),
        )


def cannot_resume(
    state: Mapping[str, Any],
    *,
    settings: Mapping[str, object],
    replicas: ReplicaGroup,
    interval: int,
    parameters: Sequence[Tensor],
) -> str | None:
    """Says why a state does not belong to a scheduler.

    Args:
        state: what `state_dict` gave.
        settings: the scheduler's own, of which those in `FIXED` are compared.
        replicas: the replicas of the scheduler.
        interval: after how many steps replicas that differ are equal again; 1 if they never differ.
        parameters: what this rank has loaded.
    """
    own = state.get(OWN)
    if own is None:
        return "the state was not written by OneCycleAutoLR; start a new run from the checkpoint's weights"
    if own.get("version") != VERSION:
        return (
            f"the checkpoint has version {own.get('version')!r} of the scheduler's state, this is {VERSION}"
        )
    if missing := sorted((HELD - own.keys()) | ({"last_epoch"} - state.keys())):
        return f"the state has no {', '.join(missing)}"
    if own["replicas"] != replicas.size:
        return (
            f"the checkpoint was written with {own['replicas']} replicas and there are {replicas.size}: "
            "multipliers and losses belong to replicas; resume with the same number, or start a new run from "
            "the averaged weights"
        )
    for key in FIXED:
        was = own["settings"].get(key)
        if was != settings[key]:
            return f"{key} was {was!r} when the checkpoint was written and is {settings[key]!r} now"
    if not int(state["last_epoch"]) % interval:
        return None
    if own["replica"] != replicas.rank:
        return (
            f"the state of replica {own['replica']} was loaded on replica {replicas.rank} in the middle of an "
            "interval, where replicas differ: save and load one checkpoint per rank, or save at a sync point"
        )
    if own["parameters"] != of_sample(parameters):
        return OTHER_PARAMETERS.format(replica=replicas.rank)
    return None
