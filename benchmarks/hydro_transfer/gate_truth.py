"""Twelve more models: does the best rate stay, does the model train where its copy does, and what does the gate say?

    python benchmarks/hydro_transfer/gate_truth.py [name ...] [--parts curves gate] [--seeds 4] [--out FILE]
    python benchmarks/hydro_transfer/gate_truth.py --table     (the record as Markdown, nothing is run)

A curve is the loss over the rate, in powers of two, on a copy 16 wide and on the model, 256 wide, under Adam. Each
seed has rows of its own, 60 steps with 32 of them each, and a cosine decay of the rate; the loss is that of all
rows at the end. The best rate has the lowest mean logarithm over seeds. It stays if it moves by at most one power
of two. It moves if it moves further and the model's loss at the copy's best rate is greater than at its own, by
Student's whole interval at 95 %, paired by seed. The model diverges if most seeds do at a rate at which most seeds
of the copy halve their loss.

The gate runs as a user runs it, on 16 rows.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import torch
from architectures import NARROW, WAYS, WIDE, Prepared, gates
from record import measure, named_rows, signed, slope
from torch import Tensor
from torch.optim.lr_scheduler import CosineAnnealingLR
from truth_data import TASKS, Batch, Task

from headrace_torch import hydro
from headrace_torch.hydro.coordinate_check.student import quantile

STEPS, BATCH, CHECKED = 60, 32, 16
HIGHEST, LOWEST, BELOW = (
    3,
    13,
    2,
)  # 2^-3 down to 2^-13, but not more than two steps below the best, once it learns
LEARNT = 0.9  # of the loss before training: a network that died at a high rate is a little below it
DIVERGED = 1.1  # of the loss before training
PARTS = ("curves", "gate")
Curve = Mapping[str, Any]


def trained(prepared: Prepared, task: Task, data: Batch, seed: int) -> float | None:
    """The loss of all rows after training; None if it becomes NaN on the way."""
    model, optimizer = prepared
    schedule = CosineAnnealingLR(optimizer, STEPS)
    order = torch.Generator().manual_seed(seed)
    inputs, wanted = data
    torch.manual_seed(seed)  # a model may draw noise
    for _ in range(STEPS):
        some = torch.randperm(task.count, generator=order)[:BATCH]
        optimizer.zero_grad()
        loss = task.loss(model(*(one[some] for one in inputs)), wanted[some])
        if not torch.isfinite(loss):
            return None
        loss.backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        loss = task.loss(model(*inputs), wanted)
    return float(loss) if torch.isfinite(loss) else None


def curve(way: str, member: hydro.Surrogate, task: Task, seeds: int, also: Iterable[int] = ()) -> Curve:
    """Losses by the exponent of the rate, one per seed, always including the rates in `also`; and before training."""

    def losses(exponent: int) -> list[float | None]:
        rate = 2.0**-exponent
        return [trained(WAYS[way](member, seed, rate), task, task.rows(seed), seed) for seed in range(seeds)]

    start = []
    for seed in range(seeds):
        inputs, wanted = task.rows(seed)
        with torch.no_grad():
            start.append(float(task.loss(WAYS[way](member, seed, 1.0)[0](*inputs), wanted)))
    found: dict[str, list[float | None]] = {}
    best = math.inf, 0
    for exponent in range(HIGHEST, LOWEST + 1):
        found[str(-exponent)] = losses(exponent)
        middle = fmean(max(start) if one is None else min(max(start), one) for one in found[str(-exponent)])
        best = min(best, (middle, exponent))
        if exponent - best[1] >= BELOW and best[0] < LEARNT * fmean(start):
            break
    for exponent in also:
        if str(-exponent) not in found:
            found[str(-exponent)] = losses(exponent)
    return {"start": start, "losses": found}


def surrogate_of(task: Task) -> hydro.Surrogate:
    """The copy."""
    return hydro.shrink(task.make, width=NARROW, target={"width": WIDE}, inputs=task.rows(0, CHECKED)[0])


def curves(task: Task, seeds: int) -> dict[str, Curve]:
    """The curves of the copy, by the rules and in the standard parametrization, and of the model."""
    surrogate = surrogate_of(task)
    copies = {way: curve(way, surrogate, task, seeds) for way in WAYS}
    also = [-best(logarithms(one)) for one in copies.values()]
    return {**copies, "model": curve("rules", surrogate.target(), task, seeds, also)}


@dataclass(frozen=True)
class Rows:
    """The gate's inputs and loss."""

    task: Task

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The first rows."""
        return self.task.rows(0, CHECKED)[0]

    def of(self, output: Any) -> Tensor:
        """The loss on them."""
        return self.task.loss(output, self.task.rows(0, CHECKED)[1])


def logarithms(found: Curve) -> dict[int, list[float]]:
    """The logarithms of the losses, by exponent; a diverged run counts as e times the loss before training."""
    return {
        int(exponent): [
            math.log(min(math.e * start, max(1e-12, math.inf if one is None else one)))
            for one, start in zip(losses, found["start"], strict=True)
        ]
        for exponent, losses in found["losses"].items()
    }


def best(logs: Mapping[int, list[float]]) -> int:
    """The exponent of the best rate."""
    return min(logs, key=lambda exponent: fmean(logs[exponent]))


def diverges(copy: Curve, model: Curve) -> int | None:
    """The highest exponent at which the copy learns and the model diverges."""

    def most(found: Curve, exponent: int, low: float, high: float) -> bool:
        losses = found["losses"].get(str(exponent))
        if losses is None:
            return False
        inside = [
            low * start <= (math.inf if one is None else one) <= high * start
            for one, start in zip(losses, found["start"], strict=True)
        ]
        return sum(inside) > len(inside) / 2

    return next(
        (
            exponent
            for exponent in range(-HIGHEST, -LOWEST - 1, -1)
            if most(copy, exponent, 0, 0.5) and most(model, exponent, DIVERGED, math.inf)
        ),
        None,
    )


def truth(found: Mapping[str, Curve], way: str) -> dict[str, Any]:
    """What the best rate does, and what using the copy's rate costs the model: a difference of logarithms."""
    copy, model = logarithms(found[way]), logarithms(found["model"])
    here, there = best(copy), best(model)
    costs = [one - own for one, own in zip(model[here], model[there], strict=True)]
    half = quantile(0.975, len(costs) - 1) * stdev(costs) / len(costs) ** 0.5
    edge = diverges(found[way], found["model"])
    what = "stays"
    if edge is not None:
        what = "diverges"
    elif abs(there - here) > 1:
        what = "moves" if fmean(costs) > half else "open"
    return {"copy": here, "model": there, "cost": fmean(costs), "half": half, "edge": edge, "what": what}


def agrees(verdict: str, what: str) -> str:
    """Whether the gate is right."""
    if what == "open":
        return "open"
    if what == "stays":
        return "yes" if verdict == "passed" else "**false alarm**"
    return "**false pass**" if verdict == "passed" else "yes"


def power(exponent: int) -> str:
    """A power of two as text."""
    return "2" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def table(rows: Mapping[str, Any]) -> str:
    """The record as Markdown."""
    lines = [
        "| model | parametrization | best rate | its cost | it | steepest slope | seeds | gate | right |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, found in rows.items():
        for way in WAYS:
            gate, real = found["gate"][way], truth(found["curves"], way)
            steepest = slope(gate) + ("; a wide model diverges" if "diverges" in gate else "")
            same = real["copy"] == real["model"]
            cost = "the same" if same else f"{signed(real['cost'])} ± {real['half']:.2f}"
            lines.append(
                f"| {name if way == 'rules' else ''} | {'ours' if way == 'rules' else way} | "
                f"{power(real['copy'])} → {power(real['model'])} | {cost} | {real['what']} | {steepest} | "
                f"{gate.get('seeds', 3)} | {gate['verdict']} | {agrees(gate['verdict'], real['what'])} |"
            )
    return "\n".join(lines)


def main() -> None:
    """Prints a line per model, and writes all of them; then prints the table."""
    options = named_rows(__file__, __doc__, seeds=4)
    options.add_argument("--parts", nargs="*", default=PARTS, choices=PARTS)
    given = options.parse_args()

    def row(name: str, before: Mapping[str, Any]) -> dict[str, Any]:
        task, found = TASKS[name], dict(before)
        if "curves" in given.parts:
            found["curves"] = curves(task, given.seeds)
        if "gate" in given.parts:
            found["gate"] = gates(surrogate_of(task), Rows(task))
        return found

    rows = measure(given, TASKS, row)
    if all(part in one for one in rows.values() for part in PARTS):
        print(table(rows))


if __name__ == "__main__":
    main()
