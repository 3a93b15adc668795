"""A group's state: one matrix of parameters, the optimizer's moments beside it, buffers, counters.

It is the single copy of the state: engines read rows and return gradients, the optimizer writes rows. Dropping
members is a selection of rows, with everything that belongs to them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from headrace_torch.hydro.fuse.layout import Layout
from headrace_torch.hydro.fuse.member import Member

MOMENTS: Mapping[str, tuple[str, ...]] = {
    "sgd": ("momentum_buffer",),
    "adam": ("exp_avg", "exp_avg_sq"),
    "adamw": ("exp_avg", "exp_avg_sq"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A member and its counters.

    Attributes:
        id: the member's permanent number: its position when it was added; never reused.
        member: its hyperparameters.
        step: optimizer steps that it has taken.
        seen: batches that it has seen: steps, and those that its scaler skipped. Keys dropout.
        scale: its gradient scaler's scale; 1 without one.
        good_steps: since the scale last changed.
        name: what the user calls it; None if it has no name.
        skipped: how many of these steps a parameter skipped because it had no gradient; by name, 0 is left out.
    """

    id: int
    member: Member
    step: int = 0
    seen: int = 0
    scale: float = 1.0
    good_steps: int = 0
    name: str | None = None
    skipped: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class MemberStates:
    """All members' state.

    Attributes:
        layout: of a row.
        rows: parameters, (N, row).
        moments: by torch.optim's names, each (N, row).
        buffers: by name, each (N, *shape); includes parameters that are not trained.
        slots: one per row.
        token: identifies this object's memory: views that an engine keeps belong to one token.
    """

    layout: Layout
    rows: Tensor
    moments: dict[str, Tensor]
    buffers: dict[str, Tensor]
    slots: list[Slot]
    token: object = field(default_factory=object)

    def __len__(self) -> int:
        return len(self.slots)

    def select(self, positions: Sequence[int]) -> "MemberStates":
        """Returns the state of these positions, in this order, in new memory."""
        at = torch.tensor(list(positions), dtype=torch.long, device=self.rows.device)
        return MemberStates(
            layout=self.layout,
            rows=self.rows.index_select(0, at),
            moments={name: one.index_select(0, at) for name, one in self.moments.items()},
            buffers={name: one.index_select(0, at) for name, one in self.buffers.items()},
            slots=[self.slots[i] for i in positions],
        )

    def slim(self, positions: Sequence[int]) -> "MemberStates":
        """Like `select`, without moments: enough for an engine."""
        return replace(self, moments={}, token=object()).select(positions)

    def append(self, other: "MemberStates") -> "MemberStates":
        """Returns the state of both; a moment that one side lacks is zero there."""
        names = [*self.moments, *(name for name in other.moments if name not in self.moments)]
        return MemberStates(
            layout=self.layout,
            rows=torch.cat([self.rows, other.rows]),
            moments={
                name: torch.cat(
                    [
                        side.moments[name] if name in side.moments else torch.zeros_like(side.rows)
                        for side in (self, other)
                    ]
                )
                for name in names
            },
            buffers={name: torch.cat([one, other.buffers[name]]) for name, one in self.buffers.items()},
            slots=[*self.slots, *other.slots],
        )

    def cast(self, dtype: torch.dtype) -> "MemberStates":
        """Returns a copy whose floating-point tensors have another dtype, without moments."""
        return MemberStates(
            layout=replace(self.layout, dtype=dtype),
            rows=self.rows.to(dtype, copy=True),
            moments={},
            buffers={
                name: one.to(dtype, copy=True) if one.is_floating_point() else one.clone()
                for name, one in self.buffers.items()
            },
            slots=list(self.slots),
        )

    def memory_bytes(self) -> int:
        """Bytes of all tensors."""
        every = (self.rows, *self.moments.values(), *self.buffers.values())
        return sum(one.numel() * one.element_size() for one in every)


def fresh(
    layout: Layout,
    models: Sequence[nn.Module],
    slots: Sequence[Slot],
    moments: Sequence[str],
    device: torch.device,
    *,
    like: nn.Module,
) -> MemberStates:
    """Copies models' tensors into rows; moments are zero. `like` is a model with the same tensors."""
    rows = torch.zeros(len(models), layout.row, dtype=layout.dtype, device=device)
    for row, model in zip(rows, models, strict=True):
        own = dict(model.named_parameters())
        for name, view in layout.of_row(row).items():
            view.copy_(own[name].detach())
    held = [_held(layout, one) for one in models]
    return MemberStates(
        layout=layout,
        rows=rows,
        moments={name: torch.zeros_like(rows) for name in moments},
        buffers={
            name: torch.stack([one[name] for one in held]).to(device)
            if held
            else torch.zeros((0, *value.shape), dtype=value.dtype, device=device)
            for name, value in _held(layout, like).items()
        },
        slots=list(slots),
    )


def _held(layout: Layout, model: nn.Module) -> dict[str, Tensor]:
    """What is kept beside the rows: buffers, and parameters that are not trained."""
    own = dict(model.named_parameters())
    return {
        **{name: one.detach() for name, one in model.named_buffers()},
        **{name: own[name].detach() for name in layout.constants},
    }
