"""A study of small copies and its transfer, compared with the same search on the model: compute, and what is lost.

Each seed has two sides, on one `headrace up`. First run all transfers, then all direct searches. The record is
written after each of them, so that a run that is ended early has the seeds up to that point.

*transfer*: `headrace run` of the example `hydro`: the gate, the fused search on copies 16 times narrower, the best
three on the model. The gate runs only for the first seed; later studies reuse its result.

*direct*: the same 36 configurations under the same ASHA, where each trial is the model in a process of its own.
There is no gate, no copy and no fusion.

The study files that this writes name the parameters in alphabetical order. A seed's draws depend on that order, so
seed 7 here is not seed 7 of the example.

Compute is given in two ways. *Processor seconds* are what the trials' processes used, user and system, on all
cores, from their start, imports included, to their end. They hardly depend on what else the machine does.
`starting` is the part before the training function was called. Standby processes whose trial never came are not
counted. *Slot seconds* come from the events of the service: how long each slot was held. A bundle holds its slot
once.

The regret of k is the best of the first k transferred configurations minus the best of the direct search, or minus
the best of all three. The second one is never negative. The first one may be: the same configuration starts from
different initial weights in the two studies, and ASHA may stop the direct search's best one early.

    python benchmarks/bundles/transfer_against_direct.py --seeds 7 8 9
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "hydro"
sys.path.insert(0, str(ROOT / "benchmarks" / "scheduler"))

from benchmark_site import write_record  # noqa: E402  its folder is on the path from here on
from running_service import Service  # noqa: E402

from headrace.client import Client  # noqa: E402
from headrace.client.model import StudyState, TrialInfo  # noqa: E402
from headrace.report.data import Stay, gather  # noqa: E402

RESULTS = Path(__file__).resolve().parents[1] / "results" / "transfer_against_direct.json"
USED = "USED_FILE"  # the variable that names the file to which each process adds a line
WRAPPER = f"""
import atexit, json, os, time
from headrace import trial
from train import some_text, train

used = {{}}

@atexit.register
def keep():
    if used:
        with open(os.environ["{USED}"], "a") as file:
            file.write(json.dumps({{**used, "ended": time.process_time()}}) + "\\n")

def begin(side):
    used.setdefault("side", side)
    used.setdefault("began", time.process_time())

def inputs():
    begin("gate")
    return some_text()

def search(bundle: trial.Bundle) -> None:
    begin("search")
    train(bundle)

def target(bundle: trial.Bundle) -> None:
    begin("target")
    train(bundle)

def direct(bundle: trial.Bundle) -> None:
    begin("direct")
    train(bundle)
"""


class Bench:
    """The two study files in a folder, and the service that runs them."""

    def __init__(self, home: Path, service: Service) -> None:
        self._home, self._service = home, service
        self._folder = home / "example"
        self._folder.mkdir()
        for file in EXAMPLE.glob("*.py"):
            shutil.copy(file, self._folder)
        (self._folder / "measured.py").write_text(WRAPPER)
        self._example = yaml.safe_load((EXAMPLE / "study.yaml").read_text())

    def transfer(self, seed: int) -> dict[str, Any]:
        """The example, unchanged; returns the use of its studies, and the results of the configurations on the
        model."""
        study = {**self._example, "seed": seed}
        study["surrogate"] = {**study["surrogate"], "inputs": "measured:inputs"}
        study["transfer"] = {**study["transfer"], "callable": "measured:target"}
        name = f"transfer-{seed}"
        used = self._run(study, "search", name)
        with Client(self._service.address, timeout_s=60) as client:
            ranked = list(client.study(f"{name}-target").trials())
        return {
            "gate": self._use(f"{name}-gate", used["gate"]) if used["gate"] else None,
            "search": self._use(name, used["search"]),
            "target": self._use(f"{name}-target", used["target"]),
            "values": [_value(one) for one in ranked],
            "sources": [one.source for one in ranked],
        }

    def direct(self, seed: int) -> dict[str, Any]:
        """The search without a copy; returns its use and its best value."""
        left_out = ("surrogate", "gate", "fuse", "transfer")
        study = {key: value for key, value in self._example.items() if key not in left_out}
        name = f"direct-{seed}"
        used = self._run({**study, "seed": seed}, "direct", name)
        with Client(self._service.address, timeout_s=60) as client:
            best = client.study(name).status().best
        assert best is not None
        return {
            "search": self._use(name, used["direct"]),
            "best_trial": best.number,
            "best_value": best.best_value,
        }

    def same_configurations(self, seed: int) -> bool:
        """Whether both sides tried the same ones."""
        with Client(self._service.address, timeout_s=60) as client:
            sides = [
                {one.number: one.params for one in client.study(f"{side}-{seed}").trials()}
                for side in ("transfer", "direct")
            ]
        return sides[0] == sides[1]

    def _run(self, study: dict[str, Any], function: str, name: str) -> dict[str, list[dict[str, float]]]:
        """Run a study to its end; returns what each process used, by the side to which it belongs."""
        lines = self._home / f"{name}.jsonl"
        study["trial"] = {
            "callable": f"measured:{function}",
            "working_dir": str(self._folder),
            "env": {USED: str(lines)},
        }
        file = self._home / f"{name}.yaml"
        file.write_text(yaml.safe_dump(study))
        self._service.call("run", str(file), "--name", name)
        found: dict[str, list[dict[str, float]]] = defaultdict(list)
        for line in lines.read_text().splitlines():
            one = json.loads(line)
            found[one["side"]].append(one)
        return found

    def _use(self, name: str, processes: list[dict[str, float]]) -> dict[str, float]:
        """The compute that a study used."""
        with Client(self._service.address, timeout_s=60) as client:
            data = gather(client.study(name))
        study = data.study
        if study.state is not StudyState.COMPLETED or study.counts.failed or study.created is None:
            raise SystemExit(f"{name} {study.state.value}: {study.detail}")
        stays = data.stays()
        if not stays or not processes:
            raise SystemExit(f"{name}: no trial of it was seen")
        return {
            "processor_seconds": round(sum(one["ended"] for one in processes), 2),
            "starting": round(sum(one["began"] for one in processes), 2),
            "processes": len(processes),
            "slot_seconds": round(slot_seconds(stays), 2),
            "seconds": round(
                (max(one.end for one in stays) - min(one.start for one in stays)).total_seconds(), 2
            ),
            "steps": study.steps_spent,
        }


def slot_seconds(stays: Iterable[Stay]) -> float:
    """How long slots were held. The members of a bundle hold the same one."""
    by_slot: dict[tuple[str, int], list[Stay]] = defaultdict(list)
    for stay in stays:
        for slot in stay.slots:
            by_slot[stay.worker, slot].append(stay)
    total = 0.0
    for held in by_slot.values():
        held.sort(key=lambda one: one.start)
        until = held[0].start
        for stay in held:
            total += max(0.0, (stay.end - max(until, stay.start)).total_seconds())
            until = max(until, stay.end)
    return total


def compared(transfer: dict[str, Any], direct: dict[str, Any]) -> dict[str, Any]:
    """How the sides of one seed compare."""
    values = transfer["values"]
    best_of = [min(values[: k + 1]) for k in range(len(values))]
    parts = [transfer[name] for name in ("gate", "search", "target") if transfer[name] is not None]
    ratios = {}
    for figure in ("processor_seconds", "slot_seconds"):
        ratios[figure] = round(direct["search"][figure] / sum(part[figure] for part in parts), 2)
    training = [part["processor_seconds"] - part["starting"] for part in (direct["search"], *parts)]
    ratios["processor_seconds_of_training"] = round(training[0] / sum(training[1:]), 2)
    return {
        "direct_over_transfer": ratios,
        "best_of": best_of,
        "regret_against_direct": [round(value - direct["best_value"], 5) for value in best_of],
        "regret_against_all": [round(value - best_of[-1], 5) for value in best_of],
    }


def _value(trial: TrialInfo) -> float:
    assert trial.best_value is not None
    return trial.best_value


def main() -> None:
    """Measure, print, and write the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[7, 8, 9])
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as home:
        service = Service(Path(home))
        with service.up(arguments.slots):
            bench = Bench(Path(home), service)
            transfers = {seed: with_load(bench.transfer, seed) for seed in arguments.seeds}
            for seed, transfer in transfers.items():
                direct = with_load(bench.direct, seed)
                if not bench.same_configurations(seed):
                    raise SystemExit(f"seed {seed}: the two sides tried different configurations")
                sides = {"transfer": transfer, "direct": direct}
                found.append({"seed": seed, **sides, "compared": compared(**sides)})
                print(json.dumps(found[-1]), flush=True)
                write_record(
                    arguments.out,
                    slots=arguments.slots,
                    asked=arguments.seeds,
                    summary=summary(found),
                    seeds=found,
                )


def with_load(side: Callable[[int], dict[str, Any]], seed: int) -> dict[str, Any]:
    """The result of a side, and the machine's load before and after it."""
    before = os.getloadavg()[0]
    found = side(seed)
    found["load"] = [round(before, 1), round(os.getloadavg()[0], 1)]
    print(json.dumps({"seed": seed, **found}), flush=True)
    return found


def summary(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians of the ratios, and the regrets of each seed."""
    each = [one["compared"] for one in found]
    return {
        "seeds": [one["seed"] for one in found],
        "direct_over_transfer": {
            figure: median(one["direct_over_transfer"][figure] for one in each)
            for figure in each[0]["direct_over_transfer"]
        },
        "regret_against_direct": [one["regret_against_direct"] for one in each],
        "regret_against_all": [one["regret_against_all"] for one in each],
    }


if __name__ == "__main__":
    main()
