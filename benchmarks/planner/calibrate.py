"""Fits the planner's A100 constants to vTrain's rows and reports how well they predict other rows.

    python benchmarks/planner/calibrate.py [--write]

Writes `calibration.json` and `calibration.svg` to ../results. `--write` also replaces the shipped constants
(`planner/data/efficiencies.json`). Only the vTrain rows are fitted; every other table is predicted with the
unchanged result. Takes 15 s on one core.
"""

import argparse
import json
import math
import time
from dataclasses import asdict
from pathlib import Path
from statistics import mean, median
from typing import Any

import headrace_services.planner as package
from headrace_services.planner import catalogue
from headrace_services.planner.calibration import RANGES, description, fit, rounded
from headrace_services.planner.cluster import lent
from headrace_services.planner.measured import predicted_s, read_rows
from headrace_services.planner.published import Comparison, h100, korthikanti, sc21
from headrace_services.planner.validation import accuracy, cross_validated_s, groups, leave_one_model_out

HERE = Path(__file__).parent
DATA, RESULTS = HERE / "data", HERE.parent / "results"
SOURCE = "fitted by benchmarks/planner/calibrate.py on vTrain's 793 rows (73 on several nodes)"
Point = tuple[str, float, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    write = parser.parse_args().write
    started = time.process_time()
    rows = read_rows([DATA / "vtrain_multi_node.csv", DATA / "vtrain_single_node.csv"])
    fitted_on = catalogue.cluster("a100-80g-hdr4-512")
    constants = rounded(fit(rows, fitted_on))
    calibrated = fitted_on.with_efficiencies(constants)
    held_out = cross_validated_s(rows, fitted_on)
    several = rows["gpus"] > 8
    own_cards = lent(constants, 8, 8)
    a100 = catalogue.cluster("a100-80g-512").with_efficiencies(own_cards)
    hopper = catalogue.cluster("h100-80g-512").with_efficiencies(own_cards)
    published = [
        *sc21(DATA / "megatron_sc21.csv", a100),
        *korthikanti(DATA / "korthikanti22.csv", a100),
        *h100(DATA / "megatron_h100.csv", hopper),
    ]
    config = ["hidden", "layers", "gpus", "global_batch"]
    single = groups(rows.where(~several), held_out[~several], config, least=4)
    record = {
        "constants": {name: getattr(constants, name) for name in RANGES},
        "shapes_with_a_factor": len(constants.shapes),
        "at_their_limit": [
            n for n, r in RANGES.items() if not r.low * 1.01 < getattr(constants, n) < r.high * 0.99
        ],
        "fitted": asdict(accuracy(predicted_s(rows, calibrated), rows.seconds)),
        "cross_validated": {
            "all": asdict(accuracy(held_out, rows.seconds)),
            "one_node": asdict(accuracy(held_out[~several], rows.seconds[~several])),
            "several_nodes": asdict(accuracy(held_out[several], rows.seconds[several])),
        },
        "leave_one_model_out": [
            {**asdict(one.accuracy), "model": one.model, "groups": len(one.groups)}
            | {"spearman": one.spearman, "least_spearman": min(g.spearman for g in one.groups)}
            | {"regret": one.regret}
            for one in leave_one_model_out(rows, fitted_on, least=4)
        ],
        "one_node_groups_cross_validated": {
            "groups": len(single),
            "median_spearman": median(one.spearman for one in single),
            "median_regret": median(one.regret for one in single),
            "largest_regret": max(one.regret for one in single),
        },
        "published": {
            table: _summary([c for c in published if c.table == table]) for table in _tables(published)
        },
        "cpu_s": round(time.process_time() - started, 1),
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "calibration.json").write_text(json.dumps(record, indent=1) + "\n")
    points = [
        *(
            ("vTrain, cross-validated", m, p)
            for m, p in zip(rows.seconds.tolist(), held_out.tolist(), strict=True)
        ),
        *((one.table, one.measured_s, one.predicted_s) for one in published),
    ]
    (RESULTS / "calibration.svg").write_text(figure(points))
    if write:
        path = Path(package.__path__[0]) / "data" / "efficiencies.json"
        path.write_text(profile("a100-megatron", description(constants)))
    print(json.dumps(record, indent=1))


def profile(name: str, constants: dict[str, Any]) -> str:
    """The data file: one line for each constant and each shape."""
    shapes = ",\n".join(f"    {json.dumps(one)}" for one in constants.pop("shapes"))
    text = json.dumps({name: {"source": SOURCE, "constants": {**constants, "shapes": "SHAPES"}}}, indent=1)
    return text.replace('"SHAPES"', f"[\n{shapes}\n   ]") + "\n"


def _tables(published: list[Comparison]) -> list[str]:
    return list(dict.fromkeys(one.table for one in published))


def _summary(some: list[Comparison]) -> dict[str, object]:
    misses = [abs(one.miss) for one in some]
    rows = [
        {**asdict(one), "miss": round(one.miss, 4), "predicted_s": round(one.predicted_s, 3)} for one in some
    ]
    return {"median": median(misses), "mean": mean(misses), "largest": max(misses), "rows": rows}


COLOURS = {
    "vTrain, cross-validated": "#4477aa",
    "megatron-sc21": "#ee6677",
    "korthikanti22": "#228833",
    "megatron-h100": "#ccbb44",
}


def figure(points: list[Point]) -> str:
    """Predicted against measured, both logarithmic, with lines at ±10%."""
    size, margin = 560, 60
    low, high = math.log10(0.04), math.log10(90)

    def at(value: float) -> float:
        return margin + (math.log10(value) - low) / (high - low) * size

    def x(value: float) -> str:
        return f"{at(value):.1f}"

    def y(value: float) -> str:
        return f"{2 * margin + size - at(value):.1f}"

    whole = size + 2 * margin
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {whole} {whole}" font-family="sans-serif">',
        f'<rect width="{whole}" height="{whole}" fill="white"/>',
        f'<text x="{margin}" y="28" font-size="16">Iteration time, predicted against measured (±10%)</text>',
        '<g font-size="13">',
    ]
    for tick in (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50):
        out += [
            f'<line x1="{x(tick)}" x2="{x(tick)}" y1="{margin}" y2="{margin + size}" stroke="#e4e4e4"/>',
            f'<line y1="{y(tick)}" y2="{y(tick)}" x1="{margin}" x2="{margin + size}" stroke="#e4e4e4"/>',
            f'<text x="{x(tick)}" y="{margin + size + 18}" text-anchor="middle">{tick:g}</text>',
            f'<text x="{margin - 8}" y="{y(tick)}" text-anchor="end" dominant-baseline="middle">{tick:g}</text>',
        ]
    for factor, dash in ((1.0, ""), (1.1, "4 4"), (0.9, "4 4")):
        a, b = 0.05, 75.0
        line = f'x1="{x(a)}" y1="{y(a * factor)}" x2="{x(b)}" y2="{y(b * factor)}"'
        out.append(f'<line {line} stroke="#555" stroke-dasharray="{dash}"/>')
    for series, measured, predicted in points:
        radius, opacity = (2.2, 0.45) if series.startswith("vTrain") else (5, 1)
        out.append(
            f'<circle cx="{x(measured)}" cy="{y(predicted)}" r="{radius}" fill="{COLOURS[series]}" '
            f'fill-opacity="{opacity}"><title>{series}: {measured:.3g} s, predicted {predicted:.3g} s</title></circle>'
        )
    for number, (series, colour) in enumerate(COLOURS.items()):
        top = margin + 20 + 20 * number
        out.append(f'<circle cx="{margin + 16}" cy="{top - 4}" r="5" fill="{colour}"/>')
        out.append(f'<text x="{margin + 28}" y="{top}">{series}</text>')
    out += [
        f'<text x="{margin + size / 2}" y="{whole - 14}" text-anchor="middle">measured, s</text>',
        f'<text transform="translate(16 {margin + size / 2}) rotate(-90)" text-anchor="middle">predicted, s</text>',
        "</g></svg>\n",
    ]
    return "\n".join(out)


if __name__ == "__main__":
    main()
