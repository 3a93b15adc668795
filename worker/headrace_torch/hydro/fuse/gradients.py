"""What happens to a member's gradient between the backward pass and its optimizer: unscaling, clipping, skipping.

Everything works row by row: a member that overflows or is clipped changes no number of another.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from headrace_torch.hydro.fuse.states import Slot


def unscale(slots: Sequence[Slot], grads: Tensor) -> list[bool]:
    """Divides by members' scales, in place; says which members take the optimizer's step.

    A member with a scaler whose gradient is not finite skips this step, as under `torch.amp.GradScaler`; a member
    without a scaler always takes it.
    """
    if all(slot.member.scaler is None for slot in slots):
        return [True] * len(slots)
    for slot, row in zip(slots, grads, strict=True):
        if slot.member.scaler is not None:
            row.mul_(1.0 / slot.scale)
    finite = torch.stack([row.isfinite().all() for row in grads]).tolist()
    return [ok or slot.member.scaler is None for slot, ok in zip(slots, finite, strict=True)]


def clip(slots: Sequence[Slot], grads: Tensor) -> None:
    """Scales each row down to its member's maximum norm, in place; torch's `clip_grad_norm_`, per member."""
    if all(slot.member.clip is None for slot in slots):
        return  # splitting the matrix into rows takes as long as a small model's layer
    for slot, row in zip(slots, grads, strict=True):
        if slot.member.clip is not None:
            norm = torch.linalg.vector_norm(
                row
            )  # one row at a time: its rounding does not depend on the others
            row.mul_((slot.member.clip / (norm + 1e-6)).clamp(max=1.0))


def after(slot: Slot, unused: frozenset[str], *, stepped: bool) -> Slot:
    """Returns a member's counters after a batch, with its scale updated as `torch.amp.GradScaler.update` does."""
    scaler = slot.member.scaler
    skipped = slot.skipped
    if stepped and unused:
        skipped = {**skipped, **{name: skipped.get(name, 0) + 1 for name in unused}}
    counted = replace(slot, step=slot.step + stepped, seen=slot.seen + 1, skipped=skipped)
    if scaler is None:
        return counted
    if not stepped:
        return replace(counted, scale=slot.scale * scaler.backoff_factor, good_steps=0)
    if slot.good_steps + 1 == scaler.growth_interval:
        return replace(counted, scale=slot.scale * scaler.growth_factor, good_steps=0)
    return replace(counted, good_steps=slot.good_steps + 1)
