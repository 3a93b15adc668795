"""Trials per hour of one study, fused and unfused, on two slots, and members' curves compared with their runs
alone.

One `headrace up` serves all turns. A turn is `headrace run` of `study.yaml` or of `unfused.yaml` of the example
`fused_digits`. Before the first turn a few trials run as a warm-up. The order changes from pair to pair. A study's
time is from its first trial's creation to its last trial's end. ASHA decides by the results so far, so the number
of steps differs from run to run: steps per hour are given too. Each ratio is the median over the pairs, with a 90
% bootstrap interval.

An epoch of one trial takes some hundredths of a second, and a process that imports PyTorch takes seconds to start.
So most of the difference comes from the processes that the fused study does not start.

Then each trial of the first fused run is trained alone, in plain PyTorch: its model, AdamW, the same batches. The
result is the greatest relative difference of its losses, per epoch. An epoch is 38 steps.

    python benchmarks/bundles/fused_against_unfused.py --pairs 5
"""

import argparse
import csv
import io
import json
import random
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
import yaml

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "fused_digits"
sys.path[:0] = [str(EXAMPLE), str(ROOT / "benchmarks" / "scheduler")]

from benchmark_site import write_record  # noqa: E402  its folder is on the path from here on
from running_service import Service  # noqa: E402
from train import load_data, loss_of, make_model, validate  # noqa: E402

from headrace_services.scheduler.session.messages import trial_seed  # noqa: E402
from headrace_torch import hydro  # noqa: E402

RESULTS = Path(__file__).resolve().parents[1] / "results" / "fused_against_unfused.json"
FILES = {"fused": EXAMPLE / "study.yaml", "unfused": EXAMPLE / "unfused.yaml"}
STUDY_SEED, ROWS, ORDER_SEED = 7, 32, 7  # as in the study files and in train.py


def rows(text: str) -> list[dict[str, str]]:
    """The output of `export`."""
    return list(csv.DictReader(io.StringIO(text)))


def turn(service: Service, way: str, name: str) -> dict[str, float]:
    """Run a study to its end. Returns its figures."""
    service.call("run", str(FILES[way]), "--name", name)
    trials = rows(service.call("export", name, "--format", "csv"))
    failed = [one["trial"] for one in trials if one["reason"] == "failed"]
    if failed:
        raise SystemExit(f"{name}: trials {', '.join(failed)} failed; see `headrace why {name} {failed[0]}`")
    began = min(datetime.fromisoformat(one["created"]) for one in trials if one["created"])
    ended = max(datetime.fromisoformat(one["ended"]) for one in trials if one["ended"])
    seconds, steps = (ended - began).total_seconds(), sum(int(one["steps_spent"]) for one in trials)
    return {
        "seconds": seconds,
        "trials": len(trials),
        "steps": steps,
        "trials_per_hour": len(trials) / seconds * 3600,
        "steps_per_hour": steps / seconds * 3600,
        "best": min(float(one["best_value"]) for one in trials if one["best_value"]),
    }


def warm_up(service: Service, folder: Path) -> None:
    """Run a few trials, so that the first turn does not pay for what is read and started once."""
    study = yaml.safe_load(FILES["unfused"].read_text())
    study["trial"]["working_dir"] = str(EXAMPLE)
    (folder / "warm-up.yaml").write_text(yaml.safe_dump({**study, "trials": 4, "name": "warm-up"}))
    service.call("run", str(folder / "warm-up.yaml"))


def interval(ratios: list[float]) -> tuple[float, float]:
    """A 90 % bootstrap interval of the median."""
    chance = random.Random(1)
    medians = [median(chance.choices(ratios, k=len(ratios))) for _ in range(2000)]
    cuts = quantiles(medians, n=20)
    return round(cuts[0], 3), round(cuts[-1], 3)


def alone(number: int, lr: float, weight_decay: float, epochs: int) -> list[float]:
    """One trial's validation losses in plain PyTorch."""
    images, labels, val_images, val_labels = load_data()
    torch.manual_seed(trial_seed(STUDY_SEED, number))
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=weight_decay)
    batches = hydro.EpochBatches(hydro.fuse(make_model), images, labels, batch_size=ROWS, seed=ORDER_SEED)
    found = []
    for epoch in range(epochs):
        model.train()
        for place in range(len(batches)):
            optimizer.zero_grad()
            loss_of(model, batches.of(epoch * len(batches) + place)).backward()
            optimizer.step()
        found.append(validate(model, val_images, val_labels))
    return found


def differences(service: Service, name: str) -> dict[int, float]:
    """The greatest relative difference of a member's loss from its run alone, by epoch."""
    params = {int(one["trial"]): one for one in rows(service.call("export", name, "--format", "csv"))}
    curves: Mapping[int, dict[int, float]] = defaultdict(dict)
    for one in rows(service.call("export", name, "--reports", "--format", "csv")):
        curves[int(one["trial"])][int(one["step"])] = float(one["metric.val_loss"])
    worst: dict[int, float] = defaultdict(float)
    for number, curve in sorted(curves.items()):
        own = params[number]
        expected = alone(number, float(own["param.lr"]), float(own["param.weight_decay"]), max(curve))
        for step, value in curve.items():
            worst[step] = max(worst[step], abs(value - expected[step - 1]) / abs(expected[step - 1]))
    return dict(sorted(worst.items()))


def main() -> None:
    """Measure, print, and write the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    pairs: list[dict[str, dict[str, float]]] = []
    with tempfile.TemporaryDirectory() as home:
        service = Service(Path(home))
        with service.up(arguments.slots):
            warm_up(service, Path(home))
            for number in range(arguments.pairs):
                order = ("fused", "unfused") if number % 2 == 0 else ("unfused", "fused")
                pairs.append({way: turn(service, way, f"{way}-{number}") for way in order})
                print(json.dumps({"pair": number + 1, **pairs[-1]}), flush=True)
            apart = differences(service, "fused-0")
    ratios: dict[str, Any] = {}
    for figure in ("trials_per_hour", "steps_per_hour"):
        found = [pair["fused"][figure] / pair["unfused"][figure] for pair in pairs]
        ratios[figure] = {"median": round(median(found), 3), "interval_90": interval(found)}
    print(json.dumps({"ratios": ratios, "curves_apart": apart}, indent=1))
    write_record(arguments.out, slots=arguments.slots, ratios=ratios, curves_apart=apart, pairs=pairs)


if __name__ == "__main__":
    main()
