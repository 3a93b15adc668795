"""Complete cycles per second and the time of one decision, against Optuna and Syne Tune, in one run on one
machine.

**Cycles.** Eight client processes each ask for a trial of four parameters, report three values with an
early-stopping decision after each, and tell the result, as often as they can for `--seconds`. Headrace's
scheduler, Optuna on its RDB storage, and Optuna through its gRPC proxy use databases of the same Postgres server.
They take turns, with random sampling and successive halving. Headrace is measured both ways: with ask and tell,
call by call, like Optuna, and with eight workers on sessions, which get the next trial in the cycle that ends the
previous one. All values are equal, and all of the tools keep a trial that ties with the last one kept: no trial is
stopped, and all cycles have the same length. All of this is done with an empty study, and with studies that
already have `--trials` complete trials (without the proxy, a single cycle of which then takes minutes).

**One decision.** A rung result comes in and a decision goes out, at `--results` results: our policy against Syne
Tune's ASHA (`pip install syne-tune --no-deps`), both in memory, on the same sequence.

    python benchmarks/scheduler/against_peers.py --seconds 10 --trials 0 10000

Writes `peers.json` and `peers.svg` into `--out`.
"""

import argparse
import math
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib as mpl
import psutil
from benchmark_site import Cost, percentiles_ms, postgres, scheduler, write_record
from one_cycle import FULL, HIGH, LOSS, LOW, PARAMETERS, STEPS, Cycle
from one_decision import decisions
from optuna_side import (
    fill_optuna,
    of_optuna,
    optuna_cycle,
    optuna_proxy,
    proxy_storage,
    rdb_storage,
    serve_proxy,
)
from session_client import OneSlot

from headrace import Client
from headrace.spec import StudySpec

mpl.use("svg")
from matplotlib import pyplot as plt  # after the choice of the backend

CLIENTS = 8
ASKING, WORKERS = OURS = "headrace, ask and tell", "headrace, workers"
RDB, PROXY = "optuna, RDB", "optuna, gRPC proxy"


def spec(max_trials: int = 1_000_000, **changes: Any) -> StudySpec:
    """Random sampling, and successive halving at the three reports."""
    return StudySpec.model_validate(
        {
            **changes,
            "objective": {"metric": "loss", "goal": "minimize"},
            "space": {name: {"type": "float", "low": LOW, "high": HIGH} for name in PARAMETERS},
            "policy": {"kind": "asha", "eta": 3, "rungs": [*STEPS, FULL], "variant": "stopping"},
            "max_trials": max_trials,
            "max_steps": FULL,
            "seed": 1,
        }
    )


# --- one client -----------------------------------------------------------------------------------------


def asking_cycle(address: str, name: str) -> Cycle:
    """Ask, report three times, tell: five calls."""
    client = Client(address)
    trials = client.study(name).ask_all(client_id=f"client-{os.getpid()}")

    def cycle() -> None:
        asked = next(trials)
        assert len(asked.params) == len(PARAMETERS)
        for step in STEPS:
            decision = asked.report(step, loss=LOSS)
            assert decision.action == "continue", decision
        asked.complete()

    return cycle


def worker_cycle(address: str) -> Cycle:
    """A trial is assigned, reports three times, and ends: messages on one stream."""
    worker = OneSlot(f"worker-{os.getpid()}", address)
    return lambda: worker.cycle(STEPS, LOSS, len(PARAMETERS))


def cycle_of(kind: str, where: str, name: str) -> Cycle:
    """The cycle of a client of this kind."""
    if kind == ASKING:
        return asking_cycle(where, name)
    if kind == WORKERS:
        return worker_cycle(where)
    return optuna_cycle(rdb_storage(where) if kind == RDB else proxy_storage(where), name)


def be_client(kind: str, where: str, name: str) -> None:
    """Warm up, wait for the signal, and cycle until the time or the count is up; print the length of each cycle."""
    cycle = cycle_of(kind, where, name)
    cycle()
    print("ready", flush=True)
    until, most = (float(text) for text in sys.stdin.readline().split())
    spent, lengths = time.process_time(), list[float]()
    while (began := time.time()) < until and len(lengths) < most:
        cycle()
        lengths.append(time.time() - began)
    print(time.process_time() - spent, *(f"{length:.6f}" for length in lengths), flush=True)


def crowd(
    kind: str,
    where: str,
    name: str,
    server: psutil.Process | None,
    *,
    seconds: float = math.inf,
    each: float = math.inf,
) -> dict[str, float]:
    """Run the clients for a time, or for a number of cycles each. Returns cycles per second, their lengths, and
    the processor time of one."""
    command = [sys.executable, __file__, "--as-client", kind, where, name]
    clients = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(CLIENTS)
    ]
    for client in clients:
        assert client.stdout is not None
        assert client.stdout.readline() == "ready\n"
    before = Cost.now(server or psutil.Process())
    began = time.time()
    until = began + seconds
    for client in clients:
        assert client.stdin is not None
        client.stdin.write(f"{until} {each}\n")
        client.stdin.flush()
    lengths, clients_s = [], 0.0
    for client in clients:
        assert client.stdout is not None
        spent, *cycled = (float(text) for text in client.stdout.readline().split())
        clients_s += spent
        lengths += cycled
    spent_by = Cost.now(server or psutil.Process()) - before
    for client in clients:
        client.wait()
    figures = percentiles_ms(lengths)
    figures["cycles_per_s"] = round(
        len(lengths) / (time.time() - began if math.isinf(seconds) else seconds), 2
    )
    parts = {
        "clients": clients_s,
        "server": spent_by.scheduler_s if server else 0.0,
        "postgres": spent_by.postgres_s,
    }
    figures |= {f"{part}_cpu_ms": round(cost / len(lengths) * 1e3, 2) for part, cost in parts.items()}
    figures["cpu_ms"] = round(sum(parts.values()) / len(lengths) * 1e3, 2)
    print(name, kind, figures, flush=True)
    return figures


# --- servers --------------------------------------------------------------------------------------------


def cycles(seconds: float, sizes: Sequence[int], turns: int) -> list[dict[str, Any]]:
    """All sides in turns, at each size of a study."""
    with postgres() as url, scheduler(url) as (address, process):
        rdb = of_optuna(url)
        with optuna_proxy([sys.executable, __file__, "--as-proxy"], rdb, 17_613) as (proxy, its_process):
            sides = {
                ASKING: (address, process),
                WORKERS: (address, process),
                RDB: (rdb, None),
                PROXY: (proxy, its_process),
            }
            return [cycles_at(trials, seconds, sides, turns) for trials in sizes]


def cycles_at(
    trials: int, seconds: float, sides: Mapping[str, tuple[str, psutil.Process | None]], turns: int
) -> dict[str, Any]:
    """All sides in turns, in studies that start with this many trials; the proxy only in the first two turns."""
    name = f"after-{trials}"
    found: dict[str, list[dict[str, float]]] = {}
    fill_optuna(sides[RDB][0], name, trials)
    with Client(sides[WORKERS][0]) as client:
        client.create_study(name, spec())
        for_workers = client.create_study(
            f"workers-{name}", spec(template={"callable": "nothing:runs", "working_dir": "/"})
        )
        for kind in OURS:
            if trials > CLIENTS:  # each of the clients starts with a warm-up cycle
                crowd(kind, sides[kind][0], name, sides[kind][1], each=trials // CLIENTS - 1)
        measured = {kind: side for kind, side in sides.items() if not (trials and kind == PROXY)}
        for turn in range(turns):
            for kind, (where, server) in measured.items():
                if kind == PROXY and turn > 1:
                    continue
                found.setdefault(kind, []).append(crowd(kind, where, name, server, seconds=seconds))
        for_workers.stop("measured")
    return {"trials_before": trials, "runs": found, **compared(found)}


def compared(found: Mapping[str, Sequence[Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    """Each of ours against each peer: ratios of cycles per second, and of the processor time of a cycle."""
    pairs = [(ours, peer) for ours in OURS for peer in sorted(found.keys() - set(OURS))]
    rates = {kind: [run["cycles_per_s"] for run in runs] for kind, runs in found.items()}
    least = {kind: min(run["cpu_ms"] for run in runs) for kind, runs in found.items()}
    return {
        "median_of_the_turns_ratios": {
            f"{ours} over {peer}": round(
                median(a / b for a, b in zip(rates[ours], rates[peer], strict=False)), 1
            )
            for ours, peer in pairs
        },
        "our_slowest_over_their_fastest": {
            f"{ours} over {peer}": round(min(rates[ours]) / max(rates[peer]), 1) for ours, peer in pairs
        },
        "processor_time_of_a_cycle": {
            f"{peer} over {ours}": round(least[peer] / least[ours], 1) for ours, peer in pairs
        },
    }


# --- the picture ---------------------------------------------------------------------------------------


COLOURS = ("#1f5673", "#7fa7bd", "#b0413e", "#d9a19f")


def draw(cycle: Sequence[dict[str, Any]], decision: dict[str, Any], path: Path) -> None:
    """Draw both comparisons; for the cycles the median of the turns, and each turn as a dot."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained", width_ratios=(7, 3))
    names = list(cycle[0]["runs"])
    width = 0.8 / len(names)
    for place, name in enumerate(names):
        groups = [group for group, at in enumerate(cycle) if name in at["runs"]]
        turns = [[run["cycles_per_s"] for run in cycle[group]["runs"][name]] for group in groups]
        where = [group + place * width for group in groups]
        bars = left.bar(
            where,
            [median(all_of_one) for all_of_one in turns],
            width * 0.94,
            color=COLOURS[place],
            label=name,
        )
        left.bar_label(bars, fmt="%.3g", fontsize=8, padding=6)
        for x, both in zip(where, turns, strict=True):
            left.plot([x] * len(both), both, ".", color="black", markersize=3)
    left.set_xticks(
        [group + 1.5 * width for group in range(len(cycle))], [f"{at['trials_before']:,}" for at in cycle]
    )
    left.set(
        yscale="log",
        xlabel="trials in the study before",
        ylabel="complete cycles a second",
        title=f"Eight clients, one Postgres, {len(cycle[0]['runs'][WORKERS])} turns",
    )
    left.margins(y=0.1)
    left.legend(fontsize=8, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.17), frameon=False)
    values = [decision[name]["p50_ms"] for name in ("headrace", "syne tune")]
    bars = right.bar(["headrace", "syne tune"], values, color=["#1f5673", "#b0413e"])
    right.bar_label(bars, fmt="%.3f", fontsize=8)
    right.set(yscale="log", ylabel="ms a decision (p50)", title="One decision in memory")
    figure.savefig(path)


def main() -> None:
    """Run and write the record, or act as one of the processes of the run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="how long each crowd cycles")
    parser.add_argument(
        "--turns",
        type=int,
        default=2,
        help="how often each; many short ones where the machine's speed changes",
    )
    parser.add_argument(
        "--trials",
        type=int,
        nargs="+",
        default=[0, 10_000],
        help="complete trials in a study before its cycles are measured",
    )
    parser.add_argument(
        "--results", type=int, default=10_000, help="rung results before the measured decisions"
    )
    parser.add_argument("--out", type=Path, default=Path("build/bench"))
    parser.add_argument("--as-client", nargs=3, metavar=("KIND", "WHERE", "STUDY"), help=argparse.SUPPRESS)
    parser.add_argument("--as-proxy", nargs=2, metavar=("URL", "PORT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if any(trials and (trials < 2 * CLIENTS or trials % CLIENTS) for trials in options.trials):
        parser.error(f"--trials takes 0 and multiples of {CLIENTS} from {2 * CLIENTS} on")
    if options.as_client:
        be_client(*options.as_client)
        return
    if options.as_proxy:
        serve_proxy(*options.as_proxy)
        return
    cycle = cycles(options.seconds, options.trials, options.turns)
    decision = decisions(spec(), options.results)
    write_record(options.out / "peers.json", cycles=cycle, decision=decision)
    draw(cycle, decision, options.out / "peers.svg")


if __name__ == "__main__":
    main()
