"""What an engine is asked for, and what it gives back."""

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
"""What each call of the user's code runs in; gets the ids of its members. See `remembering.Memory.turn`."""
Batch = Any
LossFn = Callable[[nn.Module, Batch], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One batch for some members.

    Attributes:
        loss_fn: the loss of one member: (model, batch) to a number, or to one per row where `rows` is given.
        batch: any nest of tuples, lists and dicts; with `own`, a list of one per member.
        own: whether every member has a batch of its own.
        rows: of a padded batch, how many of its rows count, per member.
    """

    loss_fn: LossFn
    batch: Batch
    own: bool = False
    rows: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the members' losses were.

    Attributes:
        losses: (n,), detached.
        unused: per member the parameters without a gradient; torch.optim leaves such parameters alone.
    """

    losses: Tensor
    unused: Sequence[frozenset[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What a plain run of the model showed.

    Attributes:
        mutable: buffers that a step changes.
        dropout: whether the forward pass has dropout.
        random: whether it draws from a generator of torch, numpy or Python for anything else.
        recomputes: whether the backward pass runs layers again (activation checkpointing). Its dropout then draws
            from torch's generator, which checkpointing winds back; a count of calls it would not.
        batch_norm: the first layer that normalises over the batch, or empty.
        needs: what each member must have of its own, with the reason; see `obstacles`.
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
    """The turn of members that remember nothing."""
    return _FREE


_FREE: AbstractContextManager[None] = nullcontext()


def copied(batch: Batch) -> Batch:
    """A batch with tensors and containers of its own."""
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
        """Runs these positions, writes each one's gradient of its own loss into its row of `grads` (n, row).

        Buffers that the model changes are changed in `states`; parameters are not. Segments that the loss does not
        depend on get zeros. A member's scale (`Slot.scale`) multiplies its gradient, not its reported loss.
        """
        ...

    def close(self) -> None:
        """Ends what the engine started; it is not used after."""
        ...
