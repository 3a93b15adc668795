"""Which slopes the gate should pass and fail: the same models with rates that are wrong by a known power of the width.

    python benchmarks/hydro_transfer/gate_bound.py [name ...] [--seeds 9] [--out FILE]
    python benchmarks/hydro_transfer/gate_bound.py --table     (the record as Markdown, nothing is run)

Multiplying the rate by (width/32)**p moves the best rate over 16 times the width by 4p factors of two, on top of
the architecture's own shift (`architectures.py`, which must run first). So for every p it is known whether the
best rate stays within a factor of 2, moves, or is too close to the line to tell (the interval of the shift
contains ±1; left out). Every pair of lines gets its errors: passed but moves, failed but stays. The architectures
of the first half choose the lines, those of the second confirm them. Three seeds give one verdict; nine give
three.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from architecture_models import MODELS, Trained
from architectures import NARROW, WIDE, Prepared, stays
from record import measure, named_rows

from headrace_torch import hydro
from headrace_torch.hydro.coordinate_check.report import ActivationTrend

WIDTHS = (32, 64, 128, 256)
DOSES = (-0.5, -0.375, -0.125, 0.0, 0.125, 0.375, 0.5)
NAMES = tuple(one for one in MODELS if "U-Net" not in one)  # they take as long as all the others
FIRST_HALF, SECOND_HALF = NAMES[::2], NAMES[1::2]
LINES = (0.10, 0.15, 0.20, 0.25, 0.30, 0.35)
PAIRS = ((0.10, 0.25), *((one, one) for one in LINES))
Slopes = Mapping[str, Sequence[float]]


def dosed(dose: float, rate: float) -> Callable[[hydro.Surrogate, int], Prepared]:
    """The rules, with all rates multiplied by a power of the width."""

    def prepare(member: hydro.Surrogate, seed: int) -> Prepared:
        model = member.build(seed)
        own = rate * (member.sizes["width"] / WIDTHS[0]) ** dose
        return model, member.optimizer(model, "adam", lr=own)

    return prepare


def slope(changes: Sequence[float]) -> float:
    """The slope of log change against log width."""
    xs, ys = [math.log(one) for one in WIDTHS], [math.log(one) for one in changes]
    middle = fmean(xs)
    return sum((x - middle) * y for x, y in zip(xs, ys, strict=True)) / sum((x - middle) ** 2 for x in xs)


def measured(name: str, seeds: int) -> dict[str, Slopes]:
    """Slopes of each activation, one per seed, by dose; none if the loss became NaN."""
    make, data = MODELS[name]
    task = Trained(*data())
    surrogate = hydro.shrink(make, width=NARROW, target={"width": WIDE}, inputs=task.inputs)

    def check(**settings: Any) -> hydro.CoordinateReport:
        return hydro.coordinate_check(surrogate, inputs=task.inputs, loss_fn=task.of, **settings)

    pilot = check(widths=WIDTHS[:2], seeds=1)
    found: dict[str, Slopes] = {}
    for dose in DOSES:
        try:
            report = check(widths=WIDTHS, seeds=seeds, steps=pilot.steps, prepare=dosed(dose, pilot.lr))
        except hydro.CoordinateCheckError:
            found[str(dose)] = {}
            continue
        found[str(dose)] = {
            one.name: [round(slope([row[seed] for row in one.changes]), 4) for seed in range(seeds)]
            for one in report.moved
        }
    return found


def report_of(slopes: Slopes, seeds: range, line: float) -> hydro.CoordinateReport:
    """A report on some of the seeds."""
    some = {name: [every[seed] for seed in seeds] for name, every in slopes.items()}
    return hydro.CoordinateReport(
        widths=[one / WIDE for one in WIDTHS],
        labels=[str(one) for one in WIDTHS],
        trends=[
            ActivationTrend(name=name, changes=[], slope=fmean(each), spread=stdev(each))
            for name, each in some.items()
        ],
        tolerance=line,
        optimizer="adam",
        lr=1.0,
        steps=1,
        seeds=len(seeds),
    )


def verdict(slopes: Slopes, seeds: range, fails: float, passes: float) -> str:
    """What the gate says with one line beyond which a slope fails, and one within which it passes."""
    if not slopes or report_of(slopes, seeds, fails).failures:
        return "failed"
    return "inconclusive" if report_of(slopes, seeds, passes).open else "passed"


def cases(
    names: Sequence[str], rows: Mapping[str, Mapping[str, Slopes]], shifts: Mapping[str, Any], per: int
) -> Iterator[tuple[str, Slopes, range]]:
    """What the best rate does, with the slopes and the seeds of one verdict."""
    for name in names:
        own = shifts[name]["transfer"]["rules"]
        for dose, slopes in rows[name].items():
            truth = stays({**own, "shift": own["shift"] - 4 * float(dose)})
            total = min((len(one) for one in slopes.values()), default=per)
            for start in range(0, total - per + 1, per):
                if truth != "open":
                    yield truth, slopes, range(start, start + per)


def table(rows: Mapping[str, Mapping[str, Slopes]], shifts: Mapping[str, Any]) -> str:
    """Errors of both halves for each pair of lines, as Markdown."""
    half = "passed, moves | failed, stays | open | of"
    lines = [
        f"| fails beyond | passes within | first half: {half} | second half: {half} |",
        "|---" * 10 + "|",
    ]
    for fails, passes in PAIRS:
        cells = []
        for names in (FIRST_HALF, SECOND_HALF):
            counts = Counter(
                (truth, verdict(slopes, seeds, fails, passes))
                for truth, slopes, seeds in cases(names, rows, shifts, 3)
            )
            unsure = counts["moves", "inconclusive"] + counts["stays", "inconclusive"]
            cells += [counts["moves", "passed"], counts["stays", "failed"], unsure, counts.total()]
        lines.append(f"| {fails:.2f} | {passes:.2f} | " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def main() -> None:
    """Prints a line per model and writes all of them; then prints the table."""
    given = named_rows(__file__, __doc__, seeds=9).parse_args()
    rows = measure(given, NAMES, lambda name, _: measured(name, given.seeds), indent=None)
    shifts = json.loads(
        Path(__file__).parents[1].joinpath("results/architectures.json").read_text(encoding="utf-8")
    )
    print(table(rows, shifts))


if __name__ == "__main__":
    main()
