"""SGD, Adam and AdamW on all members' rows at once, each row with its own settings and step count.

The arithmetic is torch.optim's (its single-tensor path). Every operation is elementwise with correctly rounded
results (+, ·, /, √), so a row's numbers do not depend on the rows beside it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headrace_torch.hydro.fuse.member import Member, OptimizerName
from headrace_torch.hydro.fuse.states import Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class RowMultipliers:
    """A surrogate's multipliers for each element of a row, (row,); None if all are 1."""

    lr: Tensor | None = None
    weight_decay: Tensor | None = None
    eps: Tensor | None = None

    def part(self, start: int, end: int) -> "RowMultipliers":
        """Returns the multipliers of a part of the row."""
        lr, decay, eps = (
            None if one is None else one[start:end] for one in (self.lr, self.weight_decay, self.eps)
        )
        return RowMultipliers(lr=lr, weight_decay=decay, eps=eps)


def needs_momentum(members: Sequence[Member]) -> bool:
    """Whether SGD must keep momentum buffers for any of these members."""
    return any(one.momentum > 0 or one.schedule is not None for one in members)


def update(
    optimizer: OptimizerName,
    slots: Sequence[Slot],
    rows: Tensor,
    grads: Tensor,
    moments: dict[str, Tensor],
    multipliers: RowMultipliers,
    taken: Sequence[int],
) -> None:
    """Takes one step of every row, in place; `grads` is used as scratch space.

    Args:
        optimizer: its name.
        slots: one per row; the member's steps so far set its schedule.
        rows: parameters, (n, row).
        grads: (n, row).
        moments: by torch.optim's names; SGD without momentum has none.
        multipliers: of a surrogate.
        taken: per row, how many steps these parameters have taken.
    """
    if optimizer == "sgd":
        _sgd(slots, rows, grads, moments.get("momentum_buffer"), multipliers, taken)
    else:
        _adam(slots, rows, grads, moments, multipliers, taken, decoupled=optimizer == "adamw")


def _columns(values: list[list[float]], like: Tensor) -> list[Tensor]:
    """One (n, 1) tensor per setting, from one list per setting; computed in double, rounded once."""
    table = torch.tensor(values, dtype=torch.float64).to(like.dtype).to(like.device, non_blocking=True)
    return list(table.unsqueeze(-1).unbind(0))


def _scaled(column: Tensor, *by: Tensor | None) -> Tensor:
    for one in by:
        if one is not None:
            column = column * one
    return column


def _adam(
    slots: Sequence[Slot],
    rows: Tensor,
    grads: Tensor,
    moments: dict[str, Tensor],
    multipliers: RowMultipliers,
    taken: Sequence[int],
    *,
    decoupled: bool,
) -> None:
    name: OptimizerName = "adamw" if decoupled else "adam"
    settings: list[list[float]] = [[] for _ in range(7)]
    for slot, before in zip(slots, taken, strict=True):
        member, t = slot.member, before + 1
        now = member.setting(slot.step)
        beta1, beta2 = member.betas if now.momentum is None else (now.momentum, member.betas[1])
        decay = member.decay(name)
        each = (
            1 - beta1,
            beta2,
            1 - beta2,
            now.lr * decay if decoupled else decay,
            now.lr / (1 - beta1**t),
            (1 - beta2**t) ** 0.5,
            member.eps,
        )
        for column, value in zip(settings, each, strict=True):
            column.append(value)
    take, keep2, take2, decay_by, rate, correction, eps = _columns(settings, rows)
    if any(settings[3]):
        if not decoupled:
            grads.addcmul_(rows, _scaled(decay_by, multipliers.weight_decay))
        elif multipliers.lr is None and multipliers.weight_decay is None:
            rows.mul_(1 - decay_by)
        else:
            rows.mul_(1 - _scaled(decay_by, multipliers.lr, multipliers.weight_decay))
    mean, square = moments["exp_avg"], moments["exp_avg_sq"]
    mean.lerp_(grads, take.expand_as(mean))
    square.mul_(keep2).addcmul_(grads.mul(take2), grads)
    denominator = torch.sqrt(square, out=grads).div_(correction).add_(_scaled(eps, multipliers.eps))
    change = torch.div(mean, denominator, out=grads).mul_(rate)
    if multipliers.lr is not None:
        change.mul_(multipliers.lr)
    rows.sub_(change)


def _sgd(
    slots: Sequence[Slot],
    rows: Tensor,
    grads: Tensor,
    buffer: Tensor | None,
    multipliers: RowMultipliers,
    taken: Sequence[int],
) -> None:
    settings: list[list[float]] = [[] for _ in range(4)]
    flags = []
    for slot, before in zip(slots, taken, strict=True):
        member = slot.member
        now = member.setting(slot.step)
        momentum = member.momentum if now.momentum is None or member.momentum == 0 else now.momentum
        first = before == 0 or momentum == 0
        each = (now.lr, member.decay("sgd"), momentum, 1.0 if first else 1 - member.dampening)
        for column, value in zip(settings, each, strict=True):
            column.append(value)
        flags.append(member.nesterov)
    rate, decay, momentum_by, take = _columns(settings, rows)
    if any(settings[1]):
        grads.addcmul_(rows, _scaled(decay, multipliers.weight_decay))
    change = grads
    if buffer is not None:
        buffer.mul_(momentum_by).addcmul_(grads, take)
        change = buffer
        if any(flags):
            ahead = grads.addcmul_(buffer, momentum_by)
            nesterov = torch.tensor(flags, device=rows.device).unsqueeze(-1)
            change = ahead if all(flags) else torch.where(nesterov, ahead, buffer)
    if multipliers.lr is None:
        rows.sub_(change * rate)
    else:
        rows.sub_((change * rate).mul_(multipliers.lr))
