"""SGD, Adam and AdamW by torch's fused CPU kernels: one call per member, over its whole row.

A row is a separate tensor, so the kernel's result cannot depend on the rows beside it. The kernel passes over the
row once, while elementwise operations on the matrix pass a dozen times. A surrogate's multipliers split a row into
spans of equal multipliers; all spans of a member that share them go into one call. Spans start and end at
multiples of 64 bytes, so no element is ever at the end of a vector in one group and inside one in another.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headrace_torch.hydro.fuse.layout import Layout
from headrace_torch.hydro.fuse.member import OptimizerName
from headrace_torch.hydro.fuse.states import Slot
from headrace_torch.hydro.parametrize.parametrization import Parametrization

# torch.optim uses them itself, behind `fused=True`; on a CPU since torch 2.4.
_fused_adamw, _fused_adam, _fused_sgd = torch._fused_adamw_, torch._fused_adam_, torch._fused_sgd_
# A call costs some microseconds. If rows are shorter, a dozen operations on the matrix are cheaper for many
# members; for few, neither costs much. The choice must not depend on the number of members: the two round
# differently.
LEAST_ROW = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """A row split where multipliers change.

    Attributes:
        sizes: in elements, padding included; they add up to the row.
        calls: per set of multipliers (lr, weight decay, ε) the spans that have it.
    """

    sizes: tuple[int, ...]
    calls: tuple[tuple[tuple[float, float, float], tuple[int, ...]], ...]


def spans_of(layout: Layout, parametrization: Parametrization) -> Spans:
    """Splits the rows of a layout."""
    sizes: list[int] = []
    keys: list[tuple[float, float, float]] = []
    ends = [one.offset for one in layout.segments[1:]] + [layout.row]
    for segment, end in zip(layout.segments, ends, strict=True):
        one = parametrization[segment.name].key
        if keys and keys[-1] == one:
            sizes[-1] += end - segment.offset
        else:
            keys.append(one)
            sizes.append(end - segment.offset)
    calls = {key: tuple(at for at, other in enumerate(keys) if other == key) for key in keys}
    return Spans(sizes=tuple(sizes), calls=tuple(calls.items()))


def fits(rows: Tensor) -> bool:
    """Whether rows of this kind are updated by kernels: decided by their length and dtype, not by their number."""
    return (
        rows.device.type == "cpu"
        and rows.dtype in (torch.float32, torch.float64)
        and rows.shape[1] >= LEAST_ROW
    )


def update_by_kernels(
    optimizer: OptimizerName,
    slots: Sequence[Slot],
    rows: Tensor,
    grads: Tensor,
    moments: dict[str, Tensor],
    spans: Spans,
    taken: Sequence[int],
) -> None:
    """Takes one step of every row, in place.

    Args:
        optimizer: its name.
        slots: one per row; the member's steps so far set its schedule.
        rows: parameters, (n, row), on a CPU.
        grads: (n, row).
        moments: by torch.optim's names; SGD without momentum has none.
        spans: the spans of a row.
        taken: per row, how many steps these parameters have taken.
    """
    names = ("exp_avg", "exp_avg_sq") if optimizer != "sgd" else ("momentum_buffer",)
    kept = [moments[name] for name in names if name in moments]
    counts = torch.tensor([float(one + 1) for one in taken]).unbind(0)
    by_row = zip(slots, counts, taken, *(one.unbind(0) for one in (rows, grads, *kept)), strict=True)
    whole = len(spans.sizes) == 1
    for slot, count, before, *parts in by_row:
        cut = [[one] if whole else one.split_with_sizes(spans.sizes) for one in parts]
        for multipliers, at in spans.calls:
            tensors = cut if whole else [[one[i] for i in at] for one in cut]
            if optimizer == "sgd":
                _sgd(slot, tensors, multipliers, first=before == 0)
            else:
                _adam(optimizer, slot, tensors, [count] * len(at), multipliers)


def _adam(
    optimizer: OptimizerName,
    slot: Slot,
    tensors: list[list[Tensor]],
    counts: list[Tensor],
    multipliers: tuple[float, float, float],
) -> None:
    member, now = slot.member, slot.member.setting(slot.step)
    rate_by, decay_by, eps_by = multipliers
    rows, grads, means, squares = tensors
    call = _fused_adamw if optimizer == "adamw" else _fused_adam
    call(
        rows,
        grads,
        means,
        squares,
        [],
        counts,
        lr=now.lr * rate_by,
        beta1=member.betas[0] if now.momentum is None else now.momentum,
        beta2=member.betas[1],
        weight_decay=member.decay(optimizer) * decay_by,
        eps=member.eps * eps_by,
        amsgrad=False,
        maximize=False,
    )


def _sgd(
    slot: Slot, tensors: list[list[Tensor]], multipliers: tuple[float, float, float], *, first: bool
) -> None:
    member, now = slot.member, slot.member.setting(slot.step)
    rate_by, decay_by, _ = multipliers
    momentum = member.momentum if now.momentum is None or member.momentum == 0 else now.momentum
    rows, grads, *buffers = tensors
    _fused_sgd(
        rows,
        grads,
        buffers[0] if momentum else [],
        weight_decay=member.decay("sgd") * decay_by,
        momentum=momentum,
        lr=now.lr * rate_by,
        dampening=member.dampening,
        nesterov=member.nesterov,
        maximize=False,
        is_first_step=first,
    )
