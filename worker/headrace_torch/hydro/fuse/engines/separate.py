"""One member after another, in this process: any model can run this way.

Each member has a module of its own (own Python attributes, own hooks), whose parameters and buffers are the
module's own objects on a row's memory. So whatever holds them, a list or a closure, sees the member's values.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from headrace_torch.hydro.errors import HydroError
from headrace_torch.hydro.fuse.between import Between
from headrace_torch.hydro.fuse.dropout import Masks, key
from headrace_torch.hydro.fuse.engines.loss import checked
from headrace_torch.hydro.fuse.engines.work import Batch, Outcome, Traits, Turn, Work, copied, free
from headrace_torch.hydro.fuse.errors import FuseError, MemberError, is_out_of_memory
from headrace_torch.hydro.fuse.layout import Placed, check_frozen, check_placed, placed
from headrace_torch.hydro.fuse.member import Member
from headrace_torch.hydro.fuse.obstacles import EngineName, Need
from headrace_torch.hydro.fuse.ops import MemberOps
from headrace_torch.hydro.fuse.states import MemberStates, Slot

_RANDOM = 0x48594452  # separates the generator's keys from dropout's
Own = Callable[[Member], nn.Module]


class SeparateEngine:
    """The fallback.

    Args:
        own: makes a member's module; its registered tensors get the member's memory.
        traits: of the model.
        turn: the context of each member's call.
        owns: receives each module that the engine makes, with the member's id.
    """

    def __init__(
        self,
        own: Own,
        traits: Traits,
        turn: Turn = free,
        owns: Callable[[int, nn.Module], None] | None = None,
    ) -> None:
        """Makes nothing yet."""
        self._turn, self._owns = turn, owns
        self.name: EngineName = "separate"
        self._own, self._traits = own, traits
        self._modules: dict[int, OwnModule] = {}
        self._between: Between | None = None
        self._of: object = None  # the memory that they are views of
        self._copies = Need.BATCH in traits.needs
        # Hooks run, and what is frozen may change.
        self._by_backward = traits.recomputes or any(need is not Need.RECORD for need in traits.needs)

    def close(self) -> None:
        """There is nothing to close."""

    def watch(self, between: Between) -> None:
        """See `Engine.watch`."""
        self._between = between
        for held in self._modules.values():
            _watch(held, between)

    def run(self, states: MemberStates, positions: Sequence[int], work: Work, grads: Tensor) -> Outcome:
        """See `Engine.run`.

        Raises:
            FuseError: the forward pass changes its batch, and did not do so at the first step.
            MemberError: the model or the loss raised; names the member.
        """
        if self._of is not states.token:
            # A module that stayed would keep the memory of members that have gone. (A pool's worker knows only its
            # own members.)
            here = {slot.id for slot in states.slots if slot}
            self._modules = {key: one for key, one in self._modules.items() if key in here}
            for one in self._modules.values():
                one.moved = True
            self._of = states.token
        pristine = copied(work.batch) if self._copies and not work.own and len(positions) > 1 else None
        losses, unused = [], []
        for place, position in enumerate(positions):
            batch = work.batch[place] if work.own else work.batch
            if pristine is not None and place:  # the first member changes the user's batch, as it would alone
                batch = copied(pristine)
            before = None if self._copies or place else _versions(batch)
            with blamed(states.slots[position]):
                loss, missing = self._one(states, position, work, batch, place, grads[place])
            if before is not None and _versions(batch) != before:
                raise FuseError(
                    "the forward pass changes its batch in place, which it did not at the first step: let it "
                    "change a copy"
                )
            losses.append(loss)
            unused.append(missing)
        return Outcome(losses=torch.stack(losses), unused=unused)

    def _one(
        self, states: MemberStates, position: int, work: Work, batch: Batch, place: int, grads: Tensor
    ) -> tuple[Tensor, frozenset[str]]:
        slot, traits = states.slots[position], self._traits
        held = self._modules.get(slot.id)
        if held is None:
            held = OwnModule(self._own(slot.member))
            if self._owns is not None:
                self._owns(slot.id, held.module)
            self._modules[slot.id] = held
            if self._between is not None:
                held.move_to(states, position)
                _watch(held, self._between)
        if held.moved:
            held.move_to(states, position)
        try:
            with (
                self._turn([slot.id]),
                member_ops(slot, traits, states.rows.device),
                generators_of(slot, traits),
            ):
                count = None if work.rows is None else work.rows[place]
                loss = checked(work.loss_fn(held.module, batch), count)
                held.check()
                total = loss if slot.scale == 1.0 else loss * slot.scale
                found = self._gradients(total, held.leaves)  # inside: checkpointing runs layers again
        finally:
            held.keep_buffers()  # the model may have reassigned them
        with torch.no_grad():
            states.layout.pack_row(found, grads)
        missing = frozenset(name for name, one in zip(held.names, found, strict=True) if one is None)
        return loss.detach(), missing

    def _gradients(self, total: Tensor, leaves: Sequence[Tensor]) -> Sequence[Tensor | None]:
        if not total.requires_grad:
            return [None] * len(leaves)
        if not self._by_backward and all(leaf.requires_grad for leaf in leaves):
            return torch.autograd.grad(total, leaves, allow_unused=True)
        for leaf in leaves:
            leaf.grad = None
        torch.autograd.backward(total)
        found = [leaf.grad for leaf in leaves]
        for leaf in leaves:
            leaf.grad = None
        return found


class OwnModule:
    """A member's module, whose registered tensors are in the member's rows.

    Attributes:
        module: the user's type and names.
        names, leaves: its trainable parameters, in the order of the layout; a step may freeze them.
        constants: its other parameters, by name.
        moved: whether the rows have moved.
    """

    def __init__(self, module: nn.Module) -> None:
        """Collects the tensors, once."""
        self.module, self.moved = module, True
        self.names: list[str] = []
        self.leaves: list[Tensor] = []
        self.constants: list[tuple[str, Tensor]] = []
        self._placed: Placed = ()
        owners = dict(module.named_modules())
        self._buffers = {
            name: (one, owners[name.rpartition(".")[0]]._buffers, name.rpartition(".")[2])
            for name, one in module.named_buffers()
        }

    def move_to(self, states: MemberStates, position: int) -> None:
        """Moves the module's tensors into a member's memory, dropping what they held before."""
        rows = states.layout.of_row(states.rows[position].detach())
        own = dict(self.module.named_parameters())
        self.names, self.leaves = list(rows), [own[name] for name in rows]
        self.constants = [(name, own[name]) for name in states.layout.constants]
        for name, view in rows.items():
            own[name].data = view
        for name, value in states.buffers.items():
            held = own[name] if name in own else self._buffers[name][0]
            held.data = value[position]
        buffers = [(name, one[0]) for name, one in self._buffers.items()]
        self._placed = placed((*own.items(), *buffers))
        self.moved = False

    def check(self) -> None:
        """Rejects what a step must not do with the member's tensors."""
        check_frozen(self.constants)
        try:
            check_placed(self._placed)
        except FuseError:
            self.moved = True
            raise

    def keep_buffers(self) -> None:
        """Copies buffers that were reassigned into the member's memory."""
        for one, place, name in self._buffers.values():
            if (now := place.get(name)) is not one and isinstance(now, Tensor):
                one.data.copy_(now.detach())
                place[name] = one


def member_ops(slot: Slot, traits: Traits, device: torch.device) -> MemberOps | nullcontext[None]:
    """Lets dropout of one member draw its own masks."""
    if not traits.dropout:
        return _NOTHING
    masks = Masks([key(slot.member.seed, slot.seen)], [slot.member.dropout], device)
    return MemberOps(None, masks, grouped=False)


def generators_of(slot: Slot, traits: Traits) -> AbstractContextManager[None]:
    """Seeds generators for one member's step, if the model draws from them; restores them after."""
    return _seeded(slot, everything=Need.DRAWS in traits.needs) if traits.random else _NOTHING


def _watch(held: OwnModule, between: Between) -> None:
    between.watch_layers(held.module)
    between.watch_gradients(held.leaves)


_NOTHING: nullcontext[None] = nullcontext()


@contextmanager
def blamed(slot: Slot) -> Iterator[None]:
    """Says in whose step the user's code raised. Nobody in particular is to blame for a lack of memory."""
    try:
        yield
    except HydroError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise MemberError(f"member {slot.id}: {type(error).__name__}: {error}", member=slot.id) from error


@contextmanager
def _seeded(slot: Slot, *, everything: bool) -> Iterator[None]:
    seed = key(slot.member.seed ^ _RANDOM, slot.seen) >> 1
    before = (random.getstate(), np.random.get_state()) if everything else None
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if everything:
            random.seed(seed)
            np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            if before is not None:
                random.setstate(before[0])
                np.random.set_state(before[1])


def _versions(batch: Batch) -> list[int]:
    return [one._version for one in tree_leaves(batch) if isinstance(one, Tensor)]
