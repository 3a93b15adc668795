"""From gradients to parameters: unscale, clip, one optimizer step, count; row by row.

A row whose parameters all have gradients, and always had, is updated as a whole. torch.optim leaves a parameter
without a gradient unchanged: no decay, no update of its moments, no count. Such rows are updated in pieces.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from headrace_torch.hydro.fuse.between import Between
from headrace_torch.hydro.fuse.gradients import after, clip, unscale
from headrace_torch.hydro.fuse.layout import Layout
from headrace_torch.hydro.fuse.member import OptimizerName
from headrace_torch.hydro.fuse.optimizers import RowMultipliers, update
from headrace_torch.hydro.fuse.row_kernels import Spans, fits, spans_of, update_by_kernels
from headrace_torch.hydro.fuse.states import MemberStates, Slot
from headrace_torch.hydro.parametrize.parametrization import Parametrization


@dataclass(frozen=True, slots=True, kw_only=True)
class Updates:
    """A group's optimizer."""

    optimizer: OptimizerName
    layout: Layout
    multipliers: RowMultipliers
    spans: Spans
    parametrization: Parametrization

    @torch.no_grad()
    def apply(
        self,
        states: MemberStates,
        grads: Tensor,
        unused: Sequence[frozenset[str]],
        between: Between | None = None,
    ) -> None:
        """Takes one step of every member that does not skip it, in place; `grads` is used as scratch space.

        Args:
            states: parameters, moments and counters are changed.
            grads: (N, row), scaled if a member has a scaler.
            unused: per member, the parameters without a gradient.
            between: called before each member's update, if members are updated by kernels.
        """
        going = unscale(states.slots, grads)
        clip(states.slots, grads)
        whole = [i for i, slot in enumerate(states.slots) if going[i] and not unused[i] and not slot.skipped]
        if len(whole) == len(states):
            if between is not None and between.callback is not None and fits(states.rows):
                self._one_by_one(states, grads, between)
            else:
                self._update(states, grads)
        else:
            if whole:
                part = states.select(whole)
                self._update(part, grads[whole])
                _write_back(states, part, whole)
            for i, goes in enumerate(going):
                if goes and (unused[i] or states.slots[i].skipped):
                    self._in_pieces(states, grads, i, unused[i])
        states.slots = [
            after(slot, none, stepped=go) for slot, none, go in zip(states.slots, unused, going, strict=True)
        ]

    def _update(self, states: MemberStates, grads: Tensor) -> None:
        """One step of the optimizer; by torch's kernels if they can, a choice on which the bits depend."""
        name, rows, moments = self.optimizer, states.rows, states.moments
        taken = [slot.step for slot in states.slots]
        if fits(rows):
            update_by_kernels(name, states.slots, rows, grads, moments, self.spans, taken)
        else:
            update(name, states.slots, rows, grads, moments, self.multipliers, taken)

    def _one_by_one(self, states: MemberStates, grads: Tensor, between: Between) -> None:
        """The same kernels, one member at a time: the result for a row does not depend on the others."""
        for i, slot in enumerate(states.slots):
            between.reached()
            one = slice(i, i + 1)
            moments = {name: value[one] for name, value in states.moments.items()}
            rows, taken = states.rows[one], [slot.step]
            update_by_kernels(self.optimizer, [slot], rows, grads[one], moments, self.spans, taken)

    def _in_pieces(self, states: MemberStates, grads: Tensor, i: int, unused: frozenset[str]) -> None:
        slot, kernels = states.slots[i], fits(states.rows)
        for piece in self._pieces(slot, unused):
            cut = (slice(i, i + 1), slice(piece.start, piece.end))
            moments = {name: one[cut] for name, one in states.moments.items()}
            if kernels:
                spans = Spans(sizes=(piece.end - piece.start,), calls=((piece.multipliers, (0,)),))
                update_by_kernels(
                    self.optimizer, [slot], states.rows[cut], grads[cut], moments, spans, [piece.taken]
                )
            else:
                multipliers = self.multipliers.part(piece.start, piece.end)
                update(
                    self.optimizer, [slot], states.rows[cut], grads[cut], moments, multipliers, [piece.taken]
                )

    def _pieces(self, slot: Slot, unused: frozenset[str]) -> list["_Piece"]:
        """Splits a row into runs of parameters with a gradient, equal counts and equal multipliers."""
        segments = self.layout.segments
        ends = [one.offset for one in segments[1:]] + [self.layout.row]
        out: list[_Piece] = []
        for segment, end in zip(segments, ends, strict=True):
            if segment.name in unused:
                continue
            piece = _Piece(
                segment.offset,
                end,
                slot.step - slot.skipped.get(segment.name, 0),
                self.parametrization[segment.name].key,
            )
            last = out[-1] if out else None
            if last and last[1:] == (piece.start, *piece[2:]):
                out[-1] = last._replace(end=end)
            else:
                out.append(piece)
        return out


class _Piece(NamedTuple):
    """A run of parameters in a row, and how many steps they have taken."""

    start: int
    end: int
    taken: int
    multipliers: tuple[float, float, float]


def updates_of(
    optimizer: OptimizerName, layout: Layout, parametrization: Parametrization, model: nn.Module
) -> Updates:
    """Makes a group's optimizer; `model` says where it runs."""
    return Updates(
        optimizer=optimizer,
        layout=layout,
        multipliers=_row_multipliers(layout, parametrization, next(model.parameters()).device),
        spans=spans_of(layout, parametrization),
        parametrization=parametrization,
    )


def _write_back(states: MemberStates, part: MemberStates, at: Sequence[int]) -> None:
    where = list(at)
    states.rows[where] = part.rows
    for name, value in part.moments.items():
        states.moments[name][where] = value


def _row_multipliers(
    layout: Layout, parametrization: Parametrization, device: torch.device
) -> RowMultipliers:
    if parametrization.is_identity:
        return RowMultipliers()
    rows = {}
    for field in ("lr", "weight_decay", "eps"):
        values = {one.name: float(getattr(parametrization[one.name], field)) for one in layout.segments}
        if any(value != 1 for value in values.values()):
            rows[field] = layout.per_element(values, layout.dtype).to(device)
    return RowMultipliers(**rows)
