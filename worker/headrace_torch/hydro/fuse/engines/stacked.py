"""All members in one forward and one backward pass: `torch.vmap` over stacked parameters.

Losses are mapped, and autograd differentiates their sum from outside: slice n of the gradient of Σ_n L_n with
respect to a stacked parameter holds the gradient of L_n with respect to member n's parameter, and nothing of the
others. A mean would divide each member's gradient by N.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import disable_saved_tensors_hooks
from torch.utils._pytree import tree_map

from headrace_torch.hydro.fuse.between import Between
from headrace_torch.hydro.fuse.dropout import Masks, key
from headrace_torch.hydro.fuse.engines.loss import checked
from headrace_torch.hydro.fuse.engines.swap import Sockets
from headrace_torch.hydro.fuse.engines.work import Outcome, Traits, Turn, Work, free
from headrace_torch.hydro.fuse.lanes import Lanes, members, quiet
from headrace_torch.hydro.fuse.layout import Layout, check_frozen
from headrace_torch.hydro.fuse.obstacles import EngineName
from headrace_torch.hydro.fuse.ops import MemberOps
from headrace_torch.hydro.fuse.states import MemberStates, Slot
from headrace_torch.hydro.fuse.twin import has_hooks

NO_HOOKS = "hooks on saved tensors (activation checkpointing, offloading) cannot follow members under vmap"


class StackedEngine:
    """The engines `vmap` and `grouped`; the latter has the grouped rules.

    Args:
        model: a copy that the engine may keep; its own tensors are not read.
        traits: of the model.
        grouped: whether to use the rules.
        turn: the context of each call.
    """

    def __init__(self, model: nn.Module, traits: Traits, *, grouped: bool, turn: Turn = free) -> None:
        """Prepares the places of tensors; computes nothing."""
        self.name: EngineName = "grouped" if grouped else "vmap"
        self._sockets, self._traits, self._grouped, self._turn = Sockets(model), traits, grouped, turn
        self._constant_in: object = None
        self._leaves_in: object = None
        self._views: dict[str, Tensor] = {}
        self._packed_in: Tensor | None = None
        self._targets: list[Tensor] = []
        self._gaps: list[Tensor] = []
        self._constants: frozenset[str] = frozenset()
        self._between: Between | None = None

    @property
    def module(self) -> nn.Module:
        """The module that runs."""
        return self._sockets.module

    def close(self) -> None:
        """There is nothing to close."""

    def watch(self, between: Between) -> None:
        """See `Engine.watch`."""
        self._between = between
        between.watch_layers(self.module)
        between.watch_gradients(self._views.values())

    def run(self, states: MemberStates, positions: Sequence[int], work: Work, grads: Tensor) -> Outcome:
        """See `Engine.run`."""
        # On a CPU, kernels for one matrix and for several round differently: a single member gets a dummy member
        # beside it.
        ghost = len(positions) == 1 and states.rows.device.type == "cpu"
        at = [*positions, *positions] if ghost else list(positions)
        whole = at == list(range(len(states)))
        part = states if whole else states.select(at)
        leaves = self._leaves(part)
        found: Sequence[Tensor | None] = [None] * len(leaves)
        with self._turn([slot.id for slot in part.slots]):
            losses, changed = self._mapped(leaves, part, _repeated(work) if ghost else work)
            total = total_of(losses, part.slots)
            if total.requires_grad:
                found = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
        n = len(positions)
        with torch.no_grad():
            self._pack(part.layout, found, grads)
            self._keep(states, part, at, n, changed, whole=whole)
        unused = frozenset(name for name, one in zip(leaves, found, strict=True) if one is None)
        return Outcome(losses=losses.detach()[:n], unused=[unused] * n)

    def _mapped(self, leaves: dict[str, Tensor], part: MemberStates, work: Work) -> Any:
        """Returns losses (n,), and the buffers that the model has reassigned."""
        n, traits = len(part), self._traits
        constant = self._constant(part)
        shared = {name: value[0] for name, value in part.buffers.items() if name in constant}
        own = {name: value for name, value in part.buffers.items() if name not in constant}
        masks = None
        if traits.dropout:
            keys = [key(slot.member.seed, slot.seen) for slot in part.slots]
            masks = Masks(keys, [slot.member.dropout for slot in part.slots], part.rows.device)

        batch = work.batch
        if work.own:
            batch = tree_map(lambda *parts: _stack(parts), work.batch[0], *work.batch[1:])
        with disable_saved_tensors_hooks(NO_HOOKS), quiet(), members(n) as lanes:
            held = {name: lanes.join(value) for name, value in own.items()}
            params = {name: lanes.join(value) for name, value in leaves.items()}
            for one in params.values():  # a flag only, as alone: how the forward pass uses it shows later
                one.requires_grad = True
            count = None
            if work.rows is not None:
                count = lanes.join(torch.tensor(work.rows, device=part.rows.device))
            if work.own:
                batch = tree_map(lambda leaf: lanes.join(leaf) if isinstance(leaf, Tensor) else leaf, batch)
            inside = {**params, **shared, **held}
            with self._sockets.holding(inside):
                with self._ops(lanes, masks, inside):
                    loss = checked(work.loss_fn(self._sockets.module, batch), count)
                self._check_flags(part.layout, params)  # outside the mode, which sees each attribute access
                now = {name: self._sockets.current(name) for name in held}
            changed = {name: lanes.at(value, 0) for name, value in now.items() if value is not held[name]}
            return lanes.at(loss, 0), changed

    def _check_flags(self, layout: Layout, params: dict[str, Tensor]) -> None:
        """Rejects what the forward pass has frozen, unfrozen or hooked: it would apply to all members at once."""
        check_frozen((name, self._sockets.current(name)) for name in layout.constants)
        for name, one in params.items():
            if not one.requires_grad:
                raise RuntimeError(f"a step freezes parameter {name}")
            if has_hooks(one):
                raise RuntimeError(f"a step puts a hook on parameter {name}")

    def _leaves(self, part: MemberStates) -> dict[str, Tensor]:
        """Views of the rows with respect to which autograd differentiates; the same ones as long as the rows are."""
        if self._leaves_in is not part.token:
            views = part.layout.stacked(part.rows.detach())
            self._views = {name: view.requires_grad_() for name, view in views.items()}
            self._leaves_in = part.token
            if self._between is not None:
                self._between.watch_gradients(self._views.values())
            self._packed_in, self._targets, self._gaps = None, [], []  # of members that may have gone
        return self._views

    def _pack(self, layout: Layout, found: Sequence[Tensor | None], grads: Tensor) -> None:
        """Writes gradients (n or more, *shape), or zeros for None, into rows (n, row), with one copy."""
        if self._packed_in is not grads:
            self._packed_in, self._targets = grads, list(layout.stacked(grads).values())
            self._gaps = layout.gaps(grads)
        n, written = grads.shape[0], [value is not None for value in found]
        torch._foreach_copy_(
            [target for target, one in zip(self._targets, written, strict=True) if one],
            [value[:n] for value in found if value is not None],
        )
        for target, one in zip(self._targets, written, strict=True):
            if not one:
                target.zero_()
        for gap in self._gaps:
            gap.zero_()

    def _constant(self, part: MemberStates) -> frozenset[str]:
        """Names the buffers that all members share (a mask, a table of positions): they need no member dim."""
        if self._constant_in is not part.token:
            self._constants = frozenset(
                name
                for name, value in part.buffers.items()
                if name not in self._traits.mutable and bool((value == value[:1]).all())
            )
            self._constant_in = part.token
        return self._constants

    def _ops(self, lanes: Lanes, masks: Masks | None, inside: dict[str, Tensor]) -> Any:
        if masks is None and not self._grouped and not self._traits.needs:
            return _NOTHING
        return MemberOps(lanes, masks, grouped=self._grouped, tensors=inside)

    def _keep(
        self,
        states: MemberStates,
        part: MemberStates,
        at: Sequence[int],
        n: int,
        changed: dict[str, Tensor],
        *,
        whole: bool,
    ) -> None:
        """Writes buffers back: reassigned ones, and those changed in place in a selection of rows."""
        for name, value in changed.items():
            part.buffers[name].copy_(value)
        if not whole:
            where = torch.tensor(at[:n], device=states.rows.device)
            for name in self._traits.mutable:
                states.buffers[name].index_copy_(0, where, part.buffers[name][:n])


def total_of(losses: Tensor, slots: Sequence[Slot]) -> Tensor:
    """The value to differentiate: the sum over members of their (scaled) losses."""
    scales = [slot.scale for slot in slots]
    if all(one == 1.0 for one in scales):
        return losses.sum()
    wide = losses.to(torch.promote_types(losses.dtype, torch.float32))  # a scale may exceed float16's range
    return wide @ wide.new_tensor(scales)


class _Nothing:
    """A context that does nothing."""

    def __enter__(self) -> None:
        """Does nothing."""

    def __exit__(self, *exc: object) -> None:
        """Does nothing."""


_NOTHING = _Nothing()


def _stack(parts: Sequence[Any]) -> Any:
    return torch.stack(list(parts)) if isinstance(parts[0], Tensor) else parts[0]


def _repeated(work: Work) -> Work:
    return Work(
        loss_fn=work.loss_fn,
        batch=[*work.batch, *work.batch] if work.own else work.batch,
        own=work.own,
        rows=None if work.rows is None else (*work.rows, *work.rows),
    )
