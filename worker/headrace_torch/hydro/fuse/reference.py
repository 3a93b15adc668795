"""The yardstick: a member as its user would run it alone, in plain torch.

It uses the user's module (a copy, with its hooks), an optimizer of torch.optim, `clip_grad_norm_` and copies of
the batch. It contains no engine's code. Only dropout and random numbers are Hydro's, because a member's are the
same wherever it runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headrace_torch.hydro.fuse.checkpoint import fill, plain_optimizer
from headrace_torch.hydro.fuse.engines.loss import checked
from headrace_torch.hydro.fuse.engines.separate import generators_of, member_ops
from headrace_torch.hydro.fuse.engines.work import Batch, Traits, Work
from headrace_torch.hydro.fuse.gradients import after
from headrace_torch.hydro.fuse.layout import check_frozen
from headrace_torch.hydro.fuse.states import MemberStates
from headrace_torch.hydro.parametrize.parametrization import Parametrization


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The result of one step of one member.

    Attributes:
        loss: the loss before the step.
        gradients: by name; None if torch has none.
        tensors: parameters and buffers after the step, by name.
    """

    loss: Tensor
    gradients: Mapping[str, Tensor | None]
    tensors: Mapping[str, Tensor]


def train(
    module: nn.Module,
    states: MemberStates,
    position: int,
    works: Sequence[Work],
    traits: Traits,
    parametrization: Parametrization,
) -> list[Step]:
    """Trains one member, starting from its state.

    Args:
        module: the member's own; it receives the member's tensors, and is trained.
        states: not changed.
        position: the member's position.
        works: one per step, with batches that may be changed.
        traits: of the model.
        parametrization: of the group.
    """
    fill(module, states, position)
    slot, found = states.slots[position], []
    kept: dict[Any, Any] = {}
    for work in works:
        optimizer = plain_optimizer(module, parametrization, slot.member, slot.step)
        optimizer.state.update(kept)
        optimizer.zero_grad()
        count = None if work.rows is None else work.rows[position]
        with member_ops(slot, traits, states.rows.device), generators_of(slot, traits):
            loss = checked(work.loss_fn(module, batch_of(work, position)), count)
            check_frozen((name, module.get_parameter(name)) for name in states.layout.constants)
            if loss.requires_grad:
                torch.autograd.backward(loss)
        gradients = {
            one.name: None if (grad := module.get_parameter(one.name).grad) is None else grad.detach().clone()
            for one in states.layout.segments
        }
        if slot.member.clip is not None:
            nn.utils.clip_grad_norm_(module.parameters(), slot.member.clip)
        optimizer.step()
        kept = dict(optimizer.state)
        slot = after(slot, frozenset(), stepped=True)
        held = (*module.named_parameters(), *module.named_buffers())
        found.append(
            Step(
                loss=loss.detach(),
                gradients=gradients,
                tensors={name: one.detach().clone() for name, one in held},
            )
        )
    return found


def batch_of(work: Work, position: int) -> Batch:
    """Returns a member's batch."""
    return work.batch[position] if work.own else work.batch
