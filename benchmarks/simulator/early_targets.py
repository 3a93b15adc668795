"""The cost and benefit of targets that start before their search ends (decision 0091).

    python benchmarks/simulator/early_targets.py [--seeds 60] [--width 1]

Searches on synthetic curves, each followed by a study of three targets, on a machine of eight slots in virtual
time. A target takes `--width` slots, and its step takes four times as long as a search's. It compares no early
start, idle slots only (`eager: 1`), and the share 0.5. "Best missed": with no place reserved, all targets start
early and the best configuration has none.
"""

import argparse
from dataclasses import dataclass
from statistics import mean
from typing import Any

from headrace.spec import StudySpec
from headrace_services.scheduler.simulator.cluster import machines
from headrace_services.scheduler.simulator.curves import SeedModel
from headrace_services.scheduler.simulator.engine import Simulation
from headrace_services.scheduler.simulator.study import StudySimulation

POLICIES: dict[str, dict[str, Any]] = {
    "asha, promotion": {"kind": "asha", "eta": 3},
    "asha, stopping": {"kind": "asha", "eta": 3, "variant": "stopping"},
    "hyperband": {"kind": "hyperband", "eta": 3},
    "run_all": {"kind": "run_all"},
}
SLOTS, TRIALS, STEPS, TOP, SLOWER = 8, 40, 27, 3, 4.0


@dataclass(frozen=True)
class Outcome:
    """One search with its targets."""

    search_s: float
    first_s: float
    """When the first target ends."""
    all_s: float
    early: int
    """Targets that started before the search's end."""
    beaten: int
    """Early targets whose configuration is not among the three best of the finished search."""
    has_best: bool
    """Whether the best of the finished search has a target that started early."""


def spec(policy: dict[str, Any], **changes: Any) -> StudySpec:
    fields: dict[str, Any] = {
        "objective": {"metric": "loss", "goal": "minimize"},
        "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
        "policy": policy,
        "max_trials": TRIALS,
        "max_steps": STEPS,
    }
    return StudySpec.model_validate({**fields, **changes})


def outcome(policy: dict[str, Any], seed: int, eager: float | None, width: int, places: int = TOP) -> Outcome:
    """Play a search and its targets to their ends."""
    wanted = spec(policy)
    search = StudySimulation.of(
        wanted, SeedModel.of(wanted, seed=seed, trials=TRIALS), name="search", number=1
    )
    sampler = {"kind": "best_of", "study": "search", "eager": eager}
    behind = spec({"kind": "run_all"}, sampler=sampler, max_trials=places, resources={"gpus": width})
    curves = SeedModel.of(behind, seed=seed, trials=places, seconds_per_step=SLOWER)
    target = StudySimulation.of(behind, curves, name="target", number=2)
    Simulation(machines(1, slots=SLOTS), [search, target]).run()
    sound = [trial for trial in search.rows.trials.values() if trial.best_value is not None]
    sound.sort(key=lambda trial: (trial.best_value, -trial.step, trial.number))
    best = [trial.number for trial in sound[:TOP]]
    end_s = search.record.end_s
    first = {stay.trial: stay.start_s for stay in reversed(target.record.stays)}
    early = [target.rows.trials[number].source for number, start_s in first.items() if start_s < end_s]
    return Outcome(
        search_s=end_s,
        first_s=min(stay.end_s for stay in target.record.stays),
        all_s=target.record.end_s,
        early=len(early),
        beaten=sum(source not in best for source in early),
        has_best=best[0] in early,
    )


def main() -> None:
    """Print one row per policy and rule."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seeds", type=int, default=60)
    parser.add_argument("--width", type=int, default=4)
    asked = parser.parse_args()
    seeds = range(asked.seeds)
    columns = ("search ends", "first ends", "all end", "early", "beaten", "best missed")
    print(f"{'policy':16} {'eager':>6} " + " ".join(f"{column:>11}" for column in columns))
    for name, policy in POLICIES.items():
        for eager in (None, 1.0, 0.5):
            found = [outcome(policy, seed, eager, asked.width) for seed in seeds]
            # If no place were kept for the end, three could start early: one more place in all gives that rule.
            unkept = [outcome(policy, seed, eager, asked.width, TOP + 1) for seed in seeds] if eager else []
            missed = [one for one in unkept if one.early == TOP and not one.has_best]
            means = [
                mean(getattr(one, field) for one in found)
                for field in ("search_s", "first_s", "all_s", "early", "beaten")
            ]
            figures = " ".join(f"{value:11.2f}" for value in means)
            print(f"{name:16} {eager or '-':>6} {figures} {len(missed) / len(seeds):11.1%}", flush=True)


if __name__ == "__main__":
    main()
