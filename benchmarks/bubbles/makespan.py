"""How much sooner a study with one GPU of its own ends with the bubbles of a large job: simulated.

Run it:  python benchmarks/bubbles/makespan.py                       (ten minutes)
         python benchmarks/bubbles/makespan.py --trials 250 --seeds 1 --out /tmp    (a short run)

It prints its assumptions and tables, and writes ../results/makespan.json. Policy, placement, bundles and the rule
for which rungs run in bubbles are the scheduler's own code, driven by the simulator of `headrace simulate`. The
study is makespan.yaml.

The job: s stages in several replicas, m micro-batches per step, a forward pass of tF and a backward pass of tB. By
1F1B a stage is idle for (s-1)/(m+s-1) of its step. Windows of fewer than three quanta are not used. Of the rest
trials use the *harvest*, so a member's speed in bubbles is its speed in the same bundle on a GPU of its own, times
idle · usable · harvest:

    measured    what slowdown.py measured, the mean of its stages, on a busy machine with CPU stages
    aim         0.75 of the idle time, which Headrace aims at
    paper       Hydro's 15 % of a bundle's exclusive throughput, whatever m and s are

How much longer a bundle's step takes with 16 members than with one is an assumption too: no longer (a GPU that a
lone trial leaves nearly idle), or 7.6 times as long, like the CNN in benchmarks/hydro/fuse_throughput.py (one CPU
core).

Not simulated are the large job's end, windows that differ from step to step, slower steps of the job because of
trials, stages with little memory, and the seconds in which trials start, save and restore (--start-s, none by
default).
"""

import argparse
import json
import platform
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from itertools import repeat
from pathlib import Path
from statistics import fmean
from typing import Any

from headrace.spec import StudySpec, load_study_file
from headrace_services.bubble_agent.stage import DEFAULT_QUANTUM_NS, QUANTA
from headrace_services.bubble_agent.windows import windows
from headrace_services.scheduler.simulator.cluster import machines_for
from headrace_services.scheduler.simulator.costs import Costs
from headrace_services.scheduler.simulator.curves import SeedModel
from headrace_services.scheduler.simulator.engine import Simulation
from headrace_services.scheduler.simulator.stages import Stages
from headrace_services.scheduler.simulator.study import StudySimulation
from headrace_services.scheduler.simulator.summary import Summary, summarise

HERE = Path(__file__).resolve().parent
HARVEST = 0.166
"""The mean of the two stages that slowdown.py measured (docs/explanation/bubbles.md)."""
AIM_OF_BUBBLES = 0.75
PAPER = {"of_exclusive": 0.15, "ratio": 2.7}
AIM_RATIO = 4.0
STEP_S = 30.0
MEMBERS = 16
PROCESSES = 2
CROWDS = {"as long": 1.0, "7.6 times as long": 7.6}
TIMES_S = (1, 2, 4, 8)
SIZES = (250, 1000, 4000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A simulated study."""

    summary: Summary
    last_rung_s: float
    """How long its own GPU alone needs for the last rung, in full bundles."""
    bubbles_end_s: float
    """When the last trial left the bubbles."""


@cache
def study(trials: int) -> StudySpec:
    """The study of makespan.yaml with that many trials."""
    return load_study_file(HERE / "makespan.yaml").spec.model_copy(update={"max_trials": trials})


@cache
def ran(trials: int, seed: int, crowd: float, start_s: float, job: Stages | None) -> Ran:
    """One simulation; without a job, on the one GPU only."""
    spec = study(trials).model_copy(update={"seed": seed, "bubbles": job is not None})
    curves = SeedModel.of(spec, seed=seed, trials=trials, reports_at=spec.rungs(), seconds_per_step=STEP_S)
    costs = Costs(start_s=start_s, crowding={MEMBERS: crowd} if crowd > 1 else {})
    simulated = StudySimulation.of(spec, curves, costs=costs)
    own = machines_for(spec, 1)
    simulation = Simulation((*own, *(job.machines(spec, first=2) if job else ())), [simulated])
    simulation.run()
    before = spec.rungs()[-2]
    last = sum(
        segment.to_step - max(before, segment.from_step)
        for segment in simulated.record.segments
        if segment.to_step > before
    )
    stays = [stay for stay in simulated.record.stays if stay.worker != own[0].id]
    return Ran(
        summary=summarise(simulation, simulated),
        last_rung_s=last * STEP_S * crowd / MEMBERS,
        bubbles_end_s=max((stay.end_s for stay in stays), default=0.0),
    )


def ratios(job: Stages, crowd: float, options: argparse.Namespace, trials: int, seeds: int) -> dict[str, Any]:
    """The makespan with and without a job's bubbles, over some seeds."""
    pairs = [
        (ran(trials, seed, crowd, options.start_s, None), ran(trials, seed, crowd, options.start_s, job))
        for seed in range(seeds)
    ]
    each = [alone.summary.wall_s / both.summary.wall_s for alone, both in pairs]
    return {
        "trials": trials,
        "seeds": seeds,
        "micro_batches": job.micro_batches,
        "idle": round(job.idle, 4),
        "of_exclusive": round(job.duty, 4),
        "hours_alone": round(fmean(alone.summary.wall_s for alone, _ in pairs) / 3600, 2),
        "hours_with_bubbles": round(fmean(both.summary.wall_s for _, both in pairs) / 3600, 2),
        "ratio": round(fmean(each), 2),
        "ratio_of_each_seed": [round(one, 2) for one in each],
        "bound_by_capacity": round(1 + job.devices * job.duty, 2),
        "bound_by_last_rung": round(
            fmean(alone.summary.wall_s / both.last_rung_s for alone, both in pairs), 2
        ),
        "bubbles_idle_from": round(fmean(both.bubbles_end_s / both.summary.wall_s for _, both in pairs), 3),
    }


def usable(options: argparse.Namespace, micro_batches: int) -> float:
    """The share of the idle time in windows of at least three quanta, over all stages."""
    found = [
        window.length
        for stage in range(options.stages)
        for window in windows(
            stage=stage,
            stages=options.stages,
            micro_batches=micro_batches,
            forward=options.tf_ms,
            backward=options.tb_ms,
        )
    ]
    return sum(length for length in found if length >= QUANTA * options.quantum_ms) / sum(found)


def jobs(options: argparse.Namespace, micro_batches: int) -> dict[str, Stages]:
    """The large job, by harvest."""
    job = Stages(stages=options.stages, replicas=options.replicas, micro_batches=micro_batches, harvest=1.0)
    share = usable(options, micro_batches)
    found = {"measured": options.harvest, "aim": AIM_OF_BUBBLES}
    told = {name: replace(job, harvest=harvest * share) for name, harvest in found.items() if share}
    if PAPER["of_exclusive"] <= job.idle:  # otherwise the stage is idle for less
        told["paper"] = replace(job, harvest=PAPER["of_exclusive"] / job.idle)
    return told


def tables(crowd: float, options: argparse.Namespace) -> dict[str, Any]:
    """The makespans by harvest, by m/s and by the size of the study."""
    s, named = options.stages, jobs(options, options.micro_batches)
    return {
        "crowd": crowd,
        "harvests": [
            {"harvest": name, **ratios(job, crowd, options, options.trials, options.seeds)}
            for name, job in named.items()
        ],
        "over_m_by_s": [
            {"m/s": times, "harvest": name, **ratios(job, crowd, options, options.trials, 1)}
            for times in TIMES_S
            for name, job in jobs(options, times * s).items()
            if name != "paper"  # whatever m and s are
        ],
        "over_trials": [
            {"harvest": name, **ratios(job, crowd, options, trials, 1)}
            for trials in sorted({*SIZES, options.trials})
            if trials <= options.trials
            for name, job in named.items()
        ],
    }


def table(columns: Sequence[str], rows: Sequence[dict[str, Any]]) -> None:
    """Print rows under their column names."""
    widths = [max(len(name), *(len(f"{row[name]}") for row in rows)) for name in columns]
    for cells in (columns, *([f"{row[name]}" for name in columns] for row in rows)):
        print("  ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True)))
    print(flush=True)


COLUMNS = (
    "harvest",
    "of_exclusive",
    "hours_alone",
    "hours_with_bubbles",
    "ratio",
    "bound_by_capacity",
    "bound_by_last_rung",
    "bubbles_idle_from",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--stages", type=int, default=4, help="s")
    parser.add_argument("--replicas", type=int, default=8)
    parser.add_argument("--micro-batches", type=int, default=16, help="m")
    parser.add_argument("--tf-ms", type=float, default=50.0, help="tF of a stage")
    parser.add_argument("--tb-ms", type=float, default=100.0, help="tB of a stage")
    parser.add_argument("--quantum-ms", type=float, default=DEFAULT_QUANTUM_NS / 1e6)
    parser.add_argument("--harvest", type=float, default=HARVEST, help="of the idle time, as measured")
    parser.add_argument("--trials", type=int, default=4000)
    parser.add_argument("--seeds", type=int, default=3, help="of the first table; the others have the first")
    parser.add_argument(
        "--start-s", type=float, default=0.0, help="seconds before a trial's first step, each time"
    )
    parser.add_argument("--out", type=Path, default=HERE.parent / "results")
    options = parser.parse_args()
    s, m = options.stages, options.micro_batches
    try:
        named = jobs(options, m)
    except ValueError as error:
        sys.exit(f"makespan.py: {error}")
    if not named:
        sys.exit("makespan.py: no window has three quanta: give longer passes or a shorter --quantum-ms")
    print(
        f"s = {s} stages in {options.replicas} replicas, {s * options.replicas} GPUs; m = {m} micro-batches; "
        f"tF = {options.tf_ms:g} ms, tB = {options.tb_ms:g} ms; a quantum of {options.quantum_ms:g} ms"
    )
    print(
        f"idle by 1F1B (s-1)/(m+s-1) = {(s - 1) / (m + s - 1):.1%} of a step, of which {usable(options, m):.1%} in "
        f"windows of three quanta; harvest measured: {options.harvest:.1%} of the idle time"
    )
    print(
        f"one GPU of the study's own; {options.trials} trials by {study(options.trials).policy.kind} with rungs at "
        f"{', '.join(map(str, study(options.trials).rungs()))}; bundles of up to {MEMBERS}\n"
    )
    record: dict[str, Any] = {
        "machine": platform.machine(),
        "stages": s,
        "replicas": options.replicas,
        "micro_batches": m,
        "forward_ms": options.tf_ms,
        "backward_ms": options.tb_ms,
        "quantum_ms": options.quantum_ms,
        "idle": (s - 1) / (m + s - 1),
        "usable": usable(options, m),
        "harvest_of_bubbles": {"measured": options.harvest, "aim": AIM_OF_BUBBLES},
        "paper": PAPER,
        "aim_ratio": AIM_RATIO,
        "step_s": STEP_S,
        "members": MEMBERS,
        "start_s": options.start_s,
    }
    with ProcessPoolExecutor(PROCESSES) as pool:
        for what, told in zip(CROWDS, pool.map(tables, CROWDS.values(), repeat(options)), strict=True):
            print(f"A bundle's step takes {what} with {MEMBERS} members as with one.\n")
            table(COLUMNS, told["harvests"])
            table(("m/s", "idle", *COLUMNS), told["over_m_by_s"])
            table(("trials", *COLUMNS), told["over_trials"])
            record[what] = told
    print(
        f"Hydro: {PAPER['ratio']} times as fast at 15 %, in its own simulator with its own study; the aim here was "
        f"{AIM_RATIO:g}. The last rung has the study's own GPU for itself, so no ratio is above bound_by_last_rung."
    )
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "makespan.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
