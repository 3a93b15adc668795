"""One pass of a check: all members trained at one rate, with as many seeds as a verdict needs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from headrace_torch.hydro.coordinate_check.measure import Change, Loss, measure
from headrace_torch.hydro.coordinate_check.report import CoordinateReport, Outcome, trends_of
from headrace_torch.hydro.coordinate_check.stability import Divergence, divergence
from headrace_torch.hydro.shrink.surrogate import Surrogate

FEWEST_SEEDS: Final = 3
MOST_SEEDS: Final = 12
Prepare = Callable[[Surrogate, int], tuple[nn.Module, torch.optim.Optimizer]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Looks:
    """What all passes of a check share; see `coordinate_check`.

    Attributes:
        members: the narrowest first.
        optimizer: its name.
        inputs, loss_fn: one batch, and a loss on the model's output.
        seeds: None means as many as a verdict needs.
        tolerance: of slopes.
        prepare: used in place of the rules; it has its own rate.
    """

    members: Sequence[Surrogate]
    optimizer: str
    inputs: tuple[Tensor, ...]
    loss_fn: Loss
    seeds: int | None
    tolerance: float
    prepare: Prepare | None

    def made(self, member: Surrogate, seed: int, rate: float) -> tuple[nn.Module, torch.optim.Optimizer]:
        """A model and its optimizer."""
        if self.prepare is not None:
            return self.prepare(member, seed)
        model = member.build(seed)
        return model, member.optimizer(model, self.optimizer, lr=rate)

    def slopes(self, rate: float, steps: int, *, learnt: bool) -> CoordinateReport:
        """Trains every member, and fits the slopes.

        Raises:
            CoordinateCheckError: a loss is not finite.
        """
        relative = [1 / member.scale for member in self.members]
        moved: list[list[Mapping[str, Change]]] = [[] for _ in self.members]
        wanted = FEWEST_SEEDS if self.seeds is None else self.seeds
        while True:
            for member, row in zip(self.members, moved, strict=True):
                for seed in range(len(row), wanted):
                    model, chosen = self.made(member, seed, rate)
                    row.append(measure(model, chosen, self.inputs, self.loss_fn, steps=steps))
            report = CoordinateReport(
                widths=relative,
                labels=[member.label for member in self.members],
                trends=trends_of(relative, moved),
                tolerance=self.tolerance,
                optimizer=self.optimizer,
                lr=rate,
                steps=steps,
                seeds=wanted,
                learnt=learnt,
            )
            told = report.outcome is not Outcome.INCONCLUSIVE or not learnt
            if self.seeds is not None or told or wanted == MOST_SEEDS:
                return report
            wanted = min(MOST_SEEDS, report.seeds_needed)

    def divergence(self, surrogate: Surrogate, rate: float, steps: int) -> Divergence | None:
        """Whether the widest member diverges at a rate at which the surrogate, or the narrowest member, learns."""
        narrow, wide = max(surrogate, self.members[0], key=lambda one: one.scale), self.members[-1]
        found = divergence(
            lambda seed, rate: self.made(narrow, seed, rate),
            lambda seed, rate: self.made(wide, seed, rate),
            rate,
            self.inputs,
            self.loss_fn,
            steps=steps,
        )
        if found is None:
            return None
        return Divergence(lr=found, narrow=narrow.label, wide=wide.label)
