"""What an engine is asked to do, and what it returns."""

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor, nn
from torch.utils._pytree import tree_map

from headrace_torch.hydro.fuse.between import Between
from headrace_torch.hydro.fuse.obstacles import EngineName, Need
from headrace_torch.hydro.fuse.states import MemberStates

Turn = Callable[[Sequence[int]], AbstractContextManager[None]]
"""Returns the context of each call of the user's code, given the ids of its members. See
`remembering.Memory.turn`."""
Batch = Any
LossFn = Callable[[nn.Module, Batch], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One batch for some members.

    Attributes:
        loss_fn: the loss of one member: maps (model, batch) to a number, or to one per row if `rows` is given.
        batch: any nest of tuples, lists and dicts; with `own`, a list of one per member.
        own: whether every member has a separate batch.
        rows: for a padded batch, how many of its rows count, per member.
    """

    loss_fn: LossFn
    batch: Batch
    own: bool = False
    rows: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The members' losses.

    Attributes:
        losses: (n,), detached.
        unused: per member, the parameters without a gradient; torch.optim leaves such parameters alone.
    """

    losses: Tensor
    unused: Sequence[frozenset[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What a plain run of the model showed.

    Attributes:
        mutable: buffers that a step changes.
        dropout: whether the forward pass has dropout.
        random: whether it draws from a generator of torch, numpy or Python for another purpose.
        recomputes: whether the backward pass runs layers again (activation checkpointing). Its dropout then draws
            from torch's generator, which checkpointing rewinds; it would not rewind a count of calls.
        batch_norm: the first layer that normalises over the batch, or empty.
        needs: what each member must have separately, with the reason; see `obstacles`.
        counts: what counts steps in Python, in the model or outside: a number that a call changes. Empty if nothing.
    """

    mutable: frozenset[str] = field(default_factory=frozenset)
    dropout: bool = False
    random: bool = False
    recomputes: bool = False
    batch_norm: str = ""
    needs: Mapping[Need, str] = field(default_factory=dict)
    counts: str = ""


def free(_: Sequence[int]) -> AbstractContextManager[None]:
    """The context for members that remember nothing."""
    return _FREE


_FREE: AbstractContextManager[None] = nullcontext()


def copied(batch: Batch) -> Batch:
    """A batch with its own tensors and containers."""
    return tree_map(
        lambda one: one.detach().clone() if isinstance(one, Tensor) else copy.deepcopy(one), batch
    )


class Engine(Protocol):
    """Computes losses and gradients."""

    name: EngineName

    def watch(self, between: Between, /) -> None:
        """Puts places between the parts of each later step; called once.

        Raises:
            FuseError: the engine trains in other processes.
        """
        ...

    def run(self, states: MemberStates, positions: Sequence[int], work: Work, grads: Tensor) -> Outcome:
        """Runs these positions, and writes the gradient of each one's own loss into its row of `grads` (n, row).

        Buffers that the model changes are changed in `states`; parameters are not. Segments on which the loss does
        not depend get zeros. A member's scale (`Slot.scale`) multiplies its gradient, not its reported loss.
        """
        ...

    def close(self) -> None:
        """Ends what the engine started; the engine is not used afterwards."""
        ...
