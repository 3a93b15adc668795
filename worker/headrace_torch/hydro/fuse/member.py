"""A member: one trial's hyperparameters. `FIELDS` is the table of the settings, and of the optimizers that use
them."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from headrace_torch.hydro.fuse.schedules import Schedule, Setting

OptimizerName = Literal["sgd", "adam", "adamw"]
OPTIMIZERS: tuple[OptimizerName, ...] = ("sgd", "adam", "adamw")


@dataclass(frozen=True, slots=True, kw_only=True)
class LossScale:
    """Settings of a member's own gradient scaler; the same as those of `torch.amp.GradScaler`."""

    init_scale: float = 2.0**16
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """The hyperparameters of one member; everything but the rate has torch.optim's default.

    Attributes:
        lr: learning rate, in terms of the base model for a surrogate.
        schedule: of the rate over the member's own steps; None means constant.
        weight_decay: None means the optimizer's default: 0.01 for AdamW, else 0.
        betas: Adam's and AdamW's β₁ and β₂.
        eps: Adam's and AdamW's ε.
        momentum: SGD's.
        dampening: SGD's.
        nesterov: SGD's.
        clip: the maximum norm of the member's gradient; None does not clip.
        dropout: the rate at every dropout of the model; None keeps the model's own rates.
        seed: of the initial values, if there is a factory, and of dropout.
        batch_size: the member sees this many rows of each batch; None sees all.
        scaler: its own gradient scaler, for float16; None means no scaler.
        model: keyword arguments for the model's factory; they must not change shapes.
    """

    lr: float
    schedule: Schedule | None = None
    weight_decay: float | None = None
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False
    clip: float | None = None
    dropout: float | None = None
    seed: int = 0
    batch_size: int | None = None
    scaler: LossScale | None = None
    model: Mapping[str, Any] | None = None

    def setting(self, step: int) -> Setting:
        """Returns the rate and momentum of a step of this member's own count."""
        return Setting(lr=self.lr) if self.schedule is None else self.schedule.setting(step, self.lr)

    def decay(self, optimizer: OptimizerName) -> float:
        """Returns the weight decay, with the optimizer's default."""
        if self.weight_decay is None:
            return 0.01 if optimizer == "adamw" else 0.0
        return self.weight_decay


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """The rules for one of a member's settings."""

    valid: Callable[[Any], bool]
    must: str
    optimizers: tuple[OptimizerName, ...] = OPTIMIZERS


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _rate(value: Any) -> bool:
    return _number(value) and 0 <= value < 1


FIELDS: Mapping[str, Field] = {
    "lr": Field(valid=lambda v: _number(v) and v >= 0, must="be a finite number, at least 0"),
    "schedule": Field(
        valid=lambda v: v is None or isinstance(v, Schedule),
        must="have setting(step, lr), like those of hydro.fuse.schedules; a torch scheduler belongs to one optimizer",
    ),
    "weight_decay": Field(
        valid=lambda v: v is None or (_number(v) and v >= 0), must="be a finite number, at least 0"
    ),
    "betas": Field(
        valid=lambda v: isinstance(v, tuple | list) and len(v) == 2 and all(map(_rate, v)),
        must="be two numbers in [0, 1)",
        optimizers=("adam", "adamw"),
    ),
    "eps": Field(valid=lambda v: _number(v) and v >= 0, must="be at least 0", optimizers=("adam", "adamw")),
    "momentum": Field(valid=lambda v: _number(v) and v >= 0, must="be at least 0", optimizers=("sgd",)),
    "dampening": Field(valid=_number, must="be a finite number", optimizers=("sgd",)),
    "nesterov": Field(valid=lambda v: isinstance(v, bool), must="be a boolean", optimizers=("sgd",)),
    "clip": Field(valid=lambda v: v is None or (_number(v) and v > 0), must="be positive, or None"),
    "dropout": Field(valid=lambda v: v is None or (_number(v) and 0 <= v <= 1), must="be in [0, 1], or None"),
    "seed": Field(valid=lambda v: isinstance(v, int), must="be a whole number"),
    "batch_size": Field(
        valid=lambda v: v is None or (isinstance(v, int) and v >= 1),
        must="be a whole number of rows, at least 1",
    ),
    "scaler": Field(valid=lambda v: v is None or isinstance(v, LossScale), must="be a LossScale, or None"),
    "model": Field(
        valid=lambda v: v is None or isinstance(v, Mapping),
        must="be keyword arguments for the model's factory",
    ),
}
assert [one.name for one in fields(Member)] == list(FIELDS)
