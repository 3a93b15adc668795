"""One member after the other, in this process: what any model can do, and what fusion is measured against.

Each member has a module of its own (own Python attributes, own hooks) whose parameters are views of its row.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn

from headrace_torch.hydro.fuse.dropout import Masks, key
from headrace_torch.hydro.fuse.engines.loss import checked
from headrace_torch.hydro.fuse.engines.swap import Sockets
from headrace_torch.hydro.fuse.engines.work import EngineName, Outcome, Traits, Work
from headrace_torch.hydro.fuse.ops import MemberOps
from headrace_torch.hydro.fuse.states import MemberStates, Slot

_RANDOM = 0x48594452  # sets the generator's keys apart from dropout's


class SeparateEngine:
    """The fallback.

    Args:
        model: what members' modules are copied from; the copies share its tensors until a member's are put in.
        traits: of the model.
    """

    def __init__(self, model: nn.Module, traits: Traits) -> None:
        """Copies nothing yet."""
        self.name: EngineName = "separate"
        self._model, self._traits = model, traits
        self._sockets: dict[int, Sockets] = {}
        self._views: dict[int, tuple[dict[str, Tensor], dict[str, Tensor]]] = {}  # parameters, buffers
        self._of: object = None  # the memory that they are views of

    @property
    def model(self) -> nn.Module:
        """See `Engine.model`."""
        return self._model

    def fresh(self, model: nn.Module) -> "SeparateEngine":
        """See `Engine.fresh`."""
        return SeparateEngine(model, self._traits)

    def close(self) -> None:
        """Nothing was started."""

    def run(self, states: MemberStates, positions: Sequence[int], work: Work, grads: Tensor) -> Outcome:
        """See `Engine.run`."""
        if self._of is not states.token:
            self._views.clear()
            # A module that stayed would keep the memory of who has gone. (A pool's worker knows its own members only.)
            here = {slot.id for slot in states.slots if slot}
            self._sockets = {key: one for key, one in self._sockets.items() if key in here}
            self._of = states.token
        losses, unused = [], {one.name for one in states.layout.segments}
        for place, position in enumerate(positions):
            loss, missing = self._one(states, position, work, place, grads[place])
            losses.append(loss)
            unused &= missing
        return Outcome(losses=torch.stack(losses), unused=frozenset(unused))

    def _one(
        self, states: MemberStates, position: int, work: Work, place: int, grads: Tensor
    ) -> tuple[Tensor, set[str]]:
        slot = states.slots[position]
        sockets = self._sockets.get(slot.id)
        if sockets is None:
            sockets = self._sockets[slot.id] = Sockets(without_copies(self._model))
        views = self._views.get(slot.id)
        if views is None:
            row = states.layout.of_row(states.rows[position].detach())
            views = self._views[slot.id] = (
                {name: view.requires_grad_() for name, view in row.items()},
                {name: value[position] for name, value in states.buffers.items()},
            )
            for name, value in (*views[0].items(), *views[1].items()):
                sockets.plug(name, value)
        leaves, buffers = views
        batch = work.batch[place] if work.own else work.batch
        try:
            with self._ops(slot, states.rows.device), self._generator(slot):
                count = None if work.rows is None else work.rows[place]
                loss = checked(work.loss_fn(sockets.module, batch), count)
                total = loss if slot.scale == 1.0 else loss * slot.scale
                found = self._gradients(
                    total, list(leaves.values())
                )  # in here: checkpointing runs layers again
            for name in self._traits.mutable:
                if (now := sockets.current(name)) is not buffers[name]:
                    buffers[name].copy_(now.detach())
        finally:  # the model may have assigned buffers anew
            for name in self._traits.mutable:
                sockets.plug(name, buffers[name])
        with torch.no_grad():
            states.layout.pack_row(found, grads)
        return loss.detach(), {name for name, one in zip(leaves, found, strict=True) if one is None}

    def _gradients(self, total: Tensor, leaves: Sequence[Tensor]) -> Sequence[Tensor | None]:
        if not self._traits.recomputes:
            return torch.autograd.grad(total, leaves, allow_unused=True)
        for leaf in leaves:
            leaf.grad = None
        torch.autograd.backward(total)  # the reentrant kind of checkpointing knows no other way
        return [leaf.grad for leaf in leaves]

    def _ops(self, slot: Slot, device: torch.device) -> MemberOps | nullcontext[None]:
        if not self._traits.dropout:
            return _NOTHING
        masks = Masks([key(slot.member.seed, slot.seen)], [slot.member.dropout], device)
        return MemberOps(None, masks, grouped=False)

    def _generator(self, slot: Slot) -> AbstractContextManager[None]:
        return _seeded(slot) if self._traits.random else _NOTHING


_NOTHING: nullcontext[None] = nullcontext()


@contextmanager
def _seeded(slot: Slot) -> Iterator[None]:
    """Seeds torch's generator for a member's step, whose model draws from it; restores it after."""
    with torch.random.fork_rng():
        torch.manual_seed(key(slot.member.seed ^ _RANDOM, slot.seen) >> 1)
        yield


def without_copies(model: nn.Module) -> nn.Module:
    """Returns a deep copy of a module that shares its tensors with it."""
    memo = {id(one): one for one in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, memo)
