"""How often the gate is wrong: verdicts over many draws of seeds, in the right and in the standard parametrization.

    python benchmarks/hydro_transfer/gate_rates.py [--draws 20] [--out FILE]
    python benchmarks/hydro_transfer/gate_rates.py --table     (the record as Markdown, nothing is run)

The base is 256 wide. The check uses the gate's own widths (32 to 256) and the rate and steps that it finds. The
standard parametrization is torch's own: no multiplier. Its rate under Adam is in the middle of those that the
rules give for hidden matrices. A false alarm is a correct model that failed, a miss is a standard one that passed;
inconclusive verdicts are counted separately. No two draws share a seed.
"""

import json
import math
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from statistics import fmean
from typing import Any

import torch
from architecture_models import MODELS, Data, Trained, drawn, zeroed
from architectures import NARROW, WAYS, WIDE, by_rules, standard
from record import parser, quiet
from torch import Tensor, nn

from headrace_torch import hydro


class Perceptron(nn.Module):
    """Two hidden layers."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(20, width), nn.Linear(width, width)
        self.readout = zeroed(nn.Linear(width, 5))

    def forward(self, x: Tensor) -> Tensor:
        return self.readout(torch.relu(self.second(torch.relu(self.first(x)))))


RUNS: tuple[tuple[str, Callable[..., nn.Module], Callable[[], Data], str], ...] = (
    ("perceptron", Perceptron, drawn(20), "adam"),
    ("perceptron", Perceptron, drawn(20), "sgd"),
    *(
        (name, *MODELS[name], "adam")
        for name in ("ViT, class token", "MoE, learnt router", "tied embeddings")
    ),
)


class Checks:
    """The checks of one model."""

    def __init__(self, make: Callable[..., nn.Module], data: Callable[[], Data], optimizer: str) -> None:
        self.task, self.optimizer = Trained(*data()), optimizer
        self.surrogate = hydro.shrink(make, width=NARROW, target={"width": WIDE}, inputs=self.task.inputs)
        self.pilot = self.check(widths=(32, 64), seeds=1)

    def check(self, **settings: Any) -> hydro.CoordinateReport:
        """One check on the model's batch."""
        return hydro.coordinate_check(
            self.surrogate,
            inputs=self.task.inputs,
            loss_fn=self.task.of,
            optimizer=self.optimizer,
            **settings,
        )

    def verdict(self, way: str, draw: int) -> tuple[str, float, int]:
        """The outcome with seeds of the draw's own, the steepest slope, and how many seeds it took."""
        rate = self.pilot.lr
        if way == "standard" and self.optimizer == "adam":
            rate *= (WIDE / 32) ** 0.5
        prepare = partial(by_rules if way == "rules" else standard, optimizer=self.optimizer)
        try:
            report = self.check(
                steps=self.pilot.steps,
                prepare=lambda member, seed: prepare(member, 1000 * draw + seed, rate),
            )
        except hydro.CoordinateCheckError:  # a loss that becomes NaN is not a pass
            return "failed", math.inf, 0
        return report.outcome.value, round(report.worst.slope or 0.0, 3), report.seeds


def rates(checks: Checks, way: str, draws: int) -> dict[str, Any]:
    """All draws of one way."""
    began = time.process_time()
    found = [checks.verdict(way, draw) for draw in range(draws)]
    return {
        "way": way,
        "draws": draws,
        "outcomes": Counter(outcome for outcome, _, _ in found),
        "seconds": round((time.process_time() - began) / draws, 2),
        "steepest": [slope for _, slope, _ in found],
        "seeds": [seeds for _, _, seeds in found],
    }


def table(rows: list[dict[str, Any]]) -> str:
    """The record as Markdown."""
    lines = [
        "| model | optimizer | parametrization | passed | failed | open | wrong | seeds | s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for one in rows:
        right = one["way"] == "rules"
        counts = [one["outcomes"].get(outcome.value, 0) for outcome in hydro.Outcome]
        lines.append(
            f"| {one['model']} | {one['optimizer']} | {'ours' if right else 'standard'} | "
            f"{' | '.join(map(str, counts))} | {counts[right]} of {one['draws']} | "
            f"{fmean(one['seeds']):.1f} (at most {max(one['seeds'])}) | {one['seconds']:.1f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Prints the rates, and writes every verdict."""
    options = parser(__file__, __doc__)
    options.add_argument("--draws", type=int, default=20)
    given = options.parse_args()
    if given.table:
        print(table(json.loads(given.out.read_text(encoding="utf-8"))))
        return
    quiet()
    rows: list[dict[str, Any]] = []
    for name, make, data, optimizer in RUNS:
        checks = Checks(make, data, optimizer)
        for way in WAYS:
            rows.append({"model": name, "optimizer": optimizer, **rates(checks, way, given.draws)})
            print(rows[-1], flush=True)
            given.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print(table(rows))


if __name__ == "__main__":
    main()
