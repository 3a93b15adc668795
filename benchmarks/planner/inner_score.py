"""Scores the cost model's form for each left-out model on several nodes, without a row of that model.

    python benchmarks/planner/inner_score.py

A change of form that is judged by the left-out models must not be chosen by them. For each of the two models
measured on several nodes, its rows are excluded and two errors of the rest are added. One is the mean error of the
other such model's rows, when not fitted (five folds, drawn twice). The other is the mean error at a width that was
not fitted, each width in turn (a new model's width is new). Lower is better; a form is better if it is better for
both. Decision 0027 compares forms by it. Writes `inner_score.json` to ../results. Takes 15 s on one core.
"""

import json
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace_services.planner import catalogue
from headrace_services.planner.calibration import fit
from headrace_services.planner.cluster import Cluster
from headrace_services.planner.measured import Rows, predicted_s, read_rows

HERE = Path(__file__).parent
SEVERAL = {"3.6B": 3072.0, "39.1B": 8192.0}
"""The models measured on several nodes, with their widths, which no other model has."""
FOLDS, DRAWS = 5, 2
Mask = NDArray[np.bool_]


def main() -> None:
    rows = read_rows([HERE / "data" / f"vtrain_{kind}_node.csv" for kind in ("multi", "single")])
    cluster = catalogue.cluster("a100-80g-hdr4-512")
    record = {}
    for model, width in SEVERAL.items():
        rest = rows.where(rows["hidden"] != width)
        (other,) = (one for one in SEVERAL.values() if one != width)
        folds, widths = folds_error(rest, rest["hidden"] == other, cluster), widths_error(rest, cluster)
        record[f"{model} set aside"] = {"folds": folds, "widths": widths, "sum": folds + widths}
    (HERE.parent / "results" / "inner_score.json").write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record, indent=1))


def folds_error(rows: Rows, some: Mask, cluster: Cluster) -> float:
    """The mean relative error of some rows when a fifth of them is not fitted; all other rows always are."""
    places = np.flatnonzero(some)
    misses = []
    for draw in range(DRAWS):
        fold = np.random.default_rng(draw).integers(0, FOLDS, len(places))
        for number in range(FOLDS):
            held = np.zeros(len(rows), dtype=bool)
            held[places[fold == number]] = True
            misses.extend(missed(rows, held, cluster).tolist())
    return fmean(misses)


def widths_error(rows: Rows, cluster: Cluster) -> float:
    """The mean over widths of the mean relative error of rows when no row of their width is fitted."""
    return fmean(
        float(missed(rows, rows["hidden"] == width, cluster).mean()) for width in np.unique(rows["hidden"])
    )


def missed(rows: Rows, held: Mask, cluster: Cluster) -> NDArray[Any]:
    """The errors, in logarithms, of the held-out rows with constants fitted to the others."""
    constants = fit(rows.where(~held), cluster)
    predicted = predicted_s(rows.where(held), cluster.with_efficiencies(constants))
    return np.abs(np.log(predicted / rows.where(held).seconds))


if __name__ == "__main__":
    main()
