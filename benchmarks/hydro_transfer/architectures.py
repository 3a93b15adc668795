"""Fourteen models: which engine, how exact, how fast, what the gate says, and whether the best rate stays.

    python benchmarks/hydro_transfer/architectures.py [name ...] [--seeds 12] [--out FILE]
    python benchmarks/hydro_transfer/architectures.py --table     (the record as Markdown, nothing is run)

Exactness is the probe's, in float64 against torch.optim. Speed is that of 8 members of the surrogate over separate
runs, by the probe. The gate runs with Adam as a user runs it: its own widths, rate and seeds. The control is the
standard parametrization.

The shift says by how many factors of 2 Adam's best rate moves over 16 times the width. Each seed trains on one
batch with a cosine decay of the rate, and a parabola through the best rate and its neighbours finds the minimum.
The interval is Student's, at 95 %. The wide model is the user's own under torch.optim in both parametrizations.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import fmean, stdev
from typing import Any, Protocol

import torch
from architecture_models import MODELS, Trained
from record import measure, named_rows, signed, slope
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR

from headrace_torch import hydro
from headrace_torch.hydro.coordinate_check.student import quantile

NARROW, WIDE, STEPS, MEMBERS = 16, 256, 20, 8
START, LOWEST, HIGHEST = 7, 1, 16  # exponents of the rate: 2^-7, ...
DIVERGED = 9.0  # of the logarithm of a loss
STEP = 1.0  # a factor of two
PARTS = ("fused", "transfer", "gate")
Prepared = tuple[nn.Module, torch.optim.Optimizer]


def by_rules(member: hydro.Surrogate, seed: int, rate: float, optimizer: str = "adam") -> Prepared:
    """Our parametrization."""
    model = member.build(seed)
    return model, member.optimizer(model, optimizer, lr=rate)


def standard(member: hydro.Surrogate, seed: int, rate: float, optimizer: str = "adam") -> Prepared:
    """The control: the user's initial values and torch.optim, no multiplier anywhere."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = member.family.source.make(member.sizes)
    kind: Any = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[optimizer]
    return model, kind(model.parameters(), lr=rate)


Prepare = Callable[[hydro.Surrogate, int, float], Prepared]
WAYS: Mapping[str, Prepare] = {"rules": by_rules, "standard": standard}


def score(prepared: Prepared, task: Trained) -> float:
    """The logarithm of the loss at the end of training."""
    model, optimizer = prepared
    schedule = CosineAnnealingLR(optimizer, STEPS)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = task.of(model(*task.inputs))
        if not torch.isfinite(loss):
            return DIVERGED
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(float(loss.detach()))
    return min(DIVERGED, math.log(max(1e-12, fmean(losses[-3:]))))


def best_rate(prepare: Prepare, member: hydro.Surrogate, task: Trained, seed: int) -> float | None:
    """log2 of the best rate, found by walking downhill; None at the end of the grid."""
    known: dict[int, float] = {}

    def at(exponent: int) -> float:
        if exponent not in known:
            known[exponent] = score(prepare(member, seed, 2.0**-exponent), task)
        return known[exponent]

    here = START
    while (best := min((here, here - 1, here + 1), key=at)) != here:
        here = best
        if not LOWEST < here < HIGHEST:
            return None
    curve = at(here - 1) - 2 * at(here) + at(here + 1)
    return -(here + (0.5 * (at(here - 1) - at(here + 1)) / curve if curve > 0 else 0.0))


def shifts(surrogate: hydro.Surrogate, task: Trained, seeds: int) -> dict[str, Any]:
    """The shifts from the narrow model, by the rules and in the standard parametrization, to the user's own."""
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    for seed in range(seeds):
        wide = best_rate(by_rules, surrogate.target(), task, seed)
        for way, prepare in WAYS.items():
            narrow = best_rate(prepare, surrogate, task, seed)
            if narrow is not None and wide is not None:
                found[way].append(wide - narrow)
    return {
        way: {
            "shift": fmean(each),
            "half": quantile(0.975, len(each) - 1) * stdev(each) / len(each) ** 0.5,
            "seeds": len(each),
        }
        for way, each in found.items()
        if len(each) > 2
    }


def verdict(report: hydro.CoordinateReport) -> dict[str, Any]:
    """The part of a report that is kept."""
    worst = report.worst
    return {
        "verdict": report.outcome.value,
        "slope": worst.slope,
        "error": report.error(worst),
        "at": worst.name,
        "seeds": report.seeds,
        **({"diverges": str(report.divergence)} if report.divergence else {}),
    }


class Checked(Protocol):
    """A batch, and the loss on the model's output."""

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The inputs of the forward pass."""

    def of(self, output: Any) -> Tensor:
        """The loss."""


def gates(surrogate: hydro.Surrogate, task: Checked, optimizer: str = "adam") -> dict[str, Any]:
    """The gate as a user runs it, and with the standard parametrization at the rate that it found."""
    check = partial(hydro.coordinate_check, surrogate, optimizer=optimizer)
    began = time.process_time()
    report = check(inputs=task.inputs, loss_fn=task.of)
    seconds = time.process_time() - began
    # A plain rate for all widths, in the middle of those that the rules derive from the one for hidden matrices.
    # One seed has no verdict, so there is no second check.
    pilot = check(widths=(32, 64), seeds=1, inputs=task.inputs, loss_fn=task.of)
    rate = pilot.lr if optimizer == "sgd" else pilot.lr * (WIDE / 32) ** 0.5
    try:
        control = check(
            inputs=task.inputs,
            loss_fn=task.of,
            steps=pilot.steps,
            prepare=lambda member, seed: standard(member, seed, rate, optimizer),
        )
        plain = verdict(control)
    except hydro.CoordinateCheckError as error:
        plain = {"verdict": "failed", "why": str(error)}
    return {
        "rules": {**verdict(report), "seconds": round(seconds, 1)},
        "standard": plain,
        "lr": report.lr,
        "steps": report.steps,
    }


def fused(surrogate: hydro.Surrogate, task: Trained) -> dict[str, Any]:
    """What the probe says about a group."""
    members: list[dict[str, Any]] = [{"lr": 1e-3, "seed": one} for one in range(MEMBERS)]
    with hydro.fuse(surrogate, members, "adam", gate=False) as group:
        group.step(task.inputs, task.loss)
        assert group.report is not None
        return {
            "engine": group.engine,
            "reason": group.report.reason,
            "error": group.report.error.get(group.report.engine),
            "speedup": max(group.report.speedup.values(), default=1.0),
        }


def measured(
    make: Callable[..., nn.Module], task: Trained, parts: Sequence[str], seeds: int
) -> dict[str, dict[str, Any]]:
    """Some of the measurements of one model."""
    surrogate = hydro.shrink(make, width=NARROW, target={"width": WIDE}, inputs=task.inputs)
    ways: dict[str, Callable[[], dict[str, Any]]] = {
        "fused": lambda: fused(surrogate, task),
        "transfer": lambda: shifts(surrogate, task, seeds),
        "gate": lambda: gates(surrogate, task),
    }
    return {part: ways[part]() for part in parts}


def stays(shift: Mapping[str, float]) -> str:
    """Where the interval is: within one factor of 2, outside, or across."""
    low, high = shift["shift"] - shift["half"], shift["shift"] + shift["half"]
    if low >= -STEP and high <= STEP:
        return "stays"
    return "moves" if low > STEP or high < -STEP else "open"


AGREEMENT = {("passed", "stays"): "yes", ("failed", "moves"): "yes"} | {
    ("passed", "moves"): "**no**",
    ("failed", "stays"): "**no**",
}


def agrees(found: Mapping[str, Any], way: str) -> str:
    """Whether gate and transfer agree; "open" if one of them is undecided."""
    if way not in found["transfer"]:
        return "open"
    return AGREEMENT.get((found["gate"][way]["verdict"], stays(found["transfer"][way])), "open")


def table(rows: Mapping[str, Any]) -> str:
    """The record as Markdown."""
    lines = [
        "| model | engine, speed, difference | parametrization | steepest slope | seeds | gate | shift | agree |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, found in rows.items():
        group = found["fused"]
        for way in WAYS:
            gate, shift = found["gate"][way], found["transfer"].get(way)
            moved = f"{signed(shift['shift'])} ± {shift['half']:.2f}" if shift else "off the grid"
            first = f"{name} | {group['engine']}, {group['speedup']:.1f}×, {group['error']:.0e}"
            lines.append(
                f"| {first if way == 'rules' else ' | '} | {'ours' if way == 'rules' else way} | {slope(gate)} | "
                f"{gate.get('seeds', 3)} | {gate['verdict']} | {moved} | {agrees(found, way)} |"
            )
    return "\n".join(lines)


def main() -> None:
    """Prints a line per model, and writes all of them; then prints the table."""
    options = named_rows(__file__, __doc__, seeds=12)
    options.add_argument("--parts", nargs="*", default=PARTS, choices=PARTS)
    given = options.parse_args()

    def row(name: str, before: Mapping[str, Any]) -> dict[str, Any]:
        make, data = MODELS[name]
        return {**before, **measured(make, Trained(*data()), given.parts, given.seeds)}

    rows = measure(given, MODELS, row)
    if all(part in one for one in rows.values() for part in PARTS):
        print(table(rows))


if __name__ == "__main__":
    main()
