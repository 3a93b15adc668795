"""What trials in bubbles cost the primary, and what they get: a GPT pipeline of two stages, each bound to a core.

Run it:  python benchmarks/bubbles/slowdown.py               (20 rounds: about an hour of two quiet cores)
         python benchmarks/bubbles/slowdown.py --rounds 2 --steps 20 --out /tmp   (a short run, to see that it works)

It writes slowdown.json to ../results. SIGTERM ends it after the current round, with the record of what was
measured. A round has four blocks of steps for each of three kinds, in the order off, on, on, off, so that a drift
of the machine affects both alike:

    gated     on: the bubble agent, and a gated trial beside each stage, on the stage's core
    direct    on: the same trials on the same cores without a gate, which is the control
    nothing   on is off too: how much two equal runs differ here

In off blocks the agent and the trials are stopped by signals: there is no lease, so no gate opens. The hook stays
in the ranks. A round's slowdown is the mean step of its two on blocks over that of its two off blocks; the
interval is a bootstrap over rounds. The same figure from the blocks' medians is next to it: a machine that is busy
for a moment affects it less. `direct` is measured only in every third round, because its effect is large. If the
interval of `nothing` is wider than the effect in question, nothing is resolved, and the record says so.
"""

import argparse
import json
import os
import platform
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "examples" / "bubbles"))

import run as example  # noqa: E402  the example beside it, found by the line above

from headrace_services.bubble_agent.calls import Caller  # noqa: E402  behind it, in order
from headrace_torch.bubble_shm import AT, StageFile  # noqa: E402  behind it, in order

KINDS = ("gated", "direct", "nothing")
DIRECT_EVERY = 3
TURNS = (False, True, True, False)
SETTLE_S = 2.0
WARM_STEPS = 20
AIMS = {"slowdown_mean": 0.003, "slowdown_upper": 0.01, "harvest_of_bubbles": 0.75}
PAPER = {"direct_slowdown": 0.12, "harvest_of_exclusive_at_16": 0.15}


def start_trial(gate: Path | None, core: int, *options: str) -> "subprocess.Popen[bytes]":
    """Starts a trial on a core: in a stage's bubbles, or with all of the core."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    if gate:
        env["HEADRACE_BUBBLE_GATE"] = str(gate)
    command = ["taskset", "-c", str(core), sys.executable, str(HERE / "digits.py"), *options]
    return subprocess.Popen(command, env=env)


@dataclass
class Site:
    """A primary, an agent and trials; everything not needed now is stopped."""

    folder: Path
    members: int
    gpt: list[str]
    processes: dict[str, list["subprocess.Popen[Any]"]] = field(default_factory=dict)
    files: list[StageFile] = field(default_factory=list)

    def start(self) -> None:
        self.processes["agent"] = [example.start_agent(self.folder)]
        port, cores = example.free_port(), example.cores()
        options = ["--steps=1000000000", *self.gpt]
        self.processes["ranks"] = [
            example.start_rank(rank, port, self.folder, cores[rank], *options) for rank in range(2)
        ]
        for stage, rank in enumerate(self.processes["ranks"]):
            gate = self.folder / f"gpt.0.{stage}.bubble"
            example.wait_for(gate, rank)
            self.files.append(StageFile.open(gate))
        for kind in ("gated", "direct"):
            self.processes[kind] = [
                start_trial(
                    file.path if kind == "gated" else None,
                    cores[stage],
                    f"--members={self.members}",
                    f"--count={self.folder / f'{kind}{stage}'}",
                )
                for stage, file in enumerate(self.files)
            ]
        while self.files[0].words[AT["steps"]] < WARM_STEPS or self.files[0].words[AT["trial_stretches"]] < 3:
            time.sleep(0.2)
        self.only("nothing")

    def only(self, kind: str) -> None:
        """Lets only one kind of trial run, with its agent."""
        for name in ("agent", "gated", "direct"):
            on = name == kind or (name == "agent" and kind == "gated")
            for process in self.processes[name]:
                process.send_signal(signal.SIGCONT if on else signal.SIGSTOP)

    def controller(self) -> dict[str, float]:
        """The agent's level, and its share of control steps."""
        with Caller(self.folder, None) as caller:
            job = caller.jobs("").jobs[0]
        return {"level": job.level, "control_share": round(job.control_share, 3)}

    def counts(self, kind: str) -> list[float]:
        """How many steps the trials of a kind have made, beside each stage."""
        told = [self.folder / f"{kind}{stage}" for stage in range(len(self.files))]
        return [float(path.read_text().split()[0]) if path.exists() else 0.0 for path in told]

    def end(self) -> None:
        for file in self.files:
            file.close()
        for group in self.processes.values():
            for process in group:
                process.kill()
                process.wait()


def block(site: Site, steps: int) -> dict[str, Any]:
    """Some steps of the primary: their mean, the time that its stages waited, and what trials did meanwhile."""
    time.sleep(SETTLE_S)
    words = site.files[0].words
    seen = {name: [file.words[AT[name]] for file in site.files] for name in ("windows", "trial_harvested")}
    counted = {kind: site.counts(kind) for kind in ("gated", "direct")}
    first = words[AT["steps"]] + 1  # the current one has already started
    waited, read, began = [0.0, 0.0], first, time.monotonic()
    lengths: list[float] = []
    while len(lengths) < steps:
        time.sleep(0.05)
        while words[AT["steps"]] > read and len(lengths) < steps:
            records = site.files[0].records(1, AT["steps"], read)
            lengths += [(ended - start) * 1e-9 for _, start, ended, _ in records]
            read = words[AT["steps"]]
        for stage, file in enumerate(site.files):
            records = file.records(0, AT["windows"], seen["windows"][stage])
            seen["windows"][stage] += len(records)
            waited[stage] += sum(ended - start for _, start, ended, _ in records) * 1e-9
    took = time.monotonic() - began
    harvested = [
        (file.words[AT["trial_harvested"]] - before) * 1e-9
        for file, before in zip(site.files, seen["trial_harvested"], strict=True)
    ]
    rates = {
        kind: [(now - before) / took for now, before in zip(site.counts(kind), counted[kind], strict=True)]
        for kind in counted
    }
    return {
        "step_s": statistics.fmean(lengths[:steps]),
        "median_s": statistics.median(lengths[:steps]),
        "waited_s": waited,
        "harvested_s": harvested,
        "trial_steps_per_s": rates,
        "seconds": took,
    }


def exclusive(site: Site, seconds: float) -> float:
    """Steps per second of the trial with a core of its own, after the primary has ended."""
    for name in ("ranks", "agent", "gated", "direct"):
        for process in site.processes[name]:
            process.kill()
            process.wait()
    count = site.folder / "alone"
    options = (f"--members={site.members}", f"--count={count}")
    process = start_trial(None, example.cores()[0], *options)
    site.processes["alone"] = [process]
    example.wait_for(count, process)
    time.sleep(1)
    first = [float(one) for one in count.read_text().split()]
    time.sleep(seconds)
    last = [float(one) for one in count.read_text().split()]
    return (last[0] - first[0]) / (last[1] - first[1])


def interval(ratios: list[float], draws: int = 10_000) -> dict[str, float]:
    """The mean, and 95 % of the bootstrap's means: 2.5 % on either side. `upper` is the one-sided 95 % bound."""
    rng = random.Random(1)
    means = sorted(statistics.fmean(rng.choices(ratios, k=len(ratios))) for _ in range(draws))
    return {
        "mean": statistics.fmean(ratios),
        "low": means[int(0.025 * draws)],
        "high": means[int(0.975 * draws) - 1],
        "upper": means[int(0.95 * draws) - 1],
    }


def judged(rounds: dict[str, list[list[dict[str, Any]]]], alone: float) -> dict[str, Any]:
    """The result of the blocks."""
    found: dict[str, Any] = {}
    for kind in KINDS:
        ratios, medians = (
            [(b[1][of] + b[2][of]) / (b[0][of] + b[3][of]) - 1 for b in rounds[kind]]
            for of in ("step_s", "median_s")
        )
        found[kind] = {"slowdown": interval(ratios), "of_medians": interval(medians), "rounds": ratios}
    on = [one for blocks in rounds["gated"] for one in blocks[1:3]]
    for stage in range(2):
        waited = sum(one["waited_s"][stage] for one in on)
        harvested = sum(one["harvested_s"][stage] for one in on)
        seconds = sum(one["seconds"] for one in on)
        rate = statistics.fmean(one["trial_steps_per_s"]["gated"][stage] for one in on)
        found["gated"][f"stage {stage}"] = {
            "waits": waited / seconds,
            "harvest_of_bubbles": harvested / waited,
            "harvest_of_exclusive": rate / alone,
        }
    direct = [one for blocks in rounds["direct"] for one in blocks[1:3]]
    found["direct"]["harvest_of_exclusive"] = [
        statistics.fmean(one["trial_steps_per_s"]["direct"][stage] for one in direct) / alone
        for stage in range(2)
    ]
    spread = found["nothing"]["slowdown"]
    width = (spread["high"] - spread["low"]) / 2
    found["resolved"] = width <= AIMS["slowdown_mean"]
    found["half_width_of_nothing"] = width
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", "--blocks", type=int, default=20)
    parser.add_argument("--steps", type=int, default=100, help="of a block")
    parser.add_argument("--members", type=int, default=16)
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--out", type=Path, default=HERE.parent / "results")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the processes, some of them stopped, end with it
    ending: list[int] = []
    rng, rounds = random.Random(1), {kind: list[list[dict[str, Any]]]() for kind in KINDS}
    orders: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        site = Site(Path(name), options.members, [f"--micro-batches={options.micro_batches}"])
        try:
            site.start()
            signal.signal(signal.SIGTERM, lambda number, _: ending.append(number))
            loads = [os.getloadavg()[0]]
            for number in range(options.rounds):
                if ending:
                    break
                for kind in rng.sample(KINDS, len(KINDS)):
                    if kind == "direct" and number % DIRECT_EVERY:
                        continue
                    blocks = []
                    for on in TURNS:
                        site.only(kind if on else "nothing")
                        blocks.append(block(site, options.steps))
                        if on and kind == "gated":
                            orders.append(site.controller())
                    rounds[kind].append(blocks)
                loads.append(os.getloadavg()[0])
                print(f"round {number + 1} of {options.rounds}", flush=True)
            longest = site.files[0].words[AT["trial_quantum"]] * 1e-9
            usual = site.files[0].words[AT["trial_usual"]] * 1e-9
            alone = exclusive(site, 5.0)
        finally:
            site.end()
    record = {
        "machine": platform.machine(),
        "cores": sorted(os.sched_getaffinity(0)),
        "load_average": {"least": min(loads), "most": max(loads)},
        "rounds": len(rounds["nothing"]),
        "steps_per_block": options.steps,
        "members": options.members,
        "micro_batches": options.micro_batches,
        "controller": orders,
        "quantum_s": {"mean": usual, "longest": longest},
        "exclusive_steps_per_s": alone,
        "aims": AIMS,
        "paper": PAPER,
        **judged(rounds, alone),
        "blocks": {
            kind: [[round(one["step_s"], 6) for one in blocks] for blocks in rounds[kind]] for kind in KINDS
        },
    }
    path = options.out / "slowdown.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    for kind in KINDS:
        seen = record[kind]["slowdown"]
        print(
            f"{kind}: slowdown {seen['mean']:+.2%}, 95 % interval {seen['low']:+.2%} to {seen['high']:+.2%}; "
            f"of medians {record[kind]['of_medians']['mean']:+.2%}"
        )
    for stage in range(2):
        print(f"stage {stage}:", {k: round(v, 3) for k, v in record["gated"][f"stage {stage}"].items()})
    print("resolved" if record["resolved"] else "unresolved: off against off is wider than the aim")


if __name__ == "__main__":
    main()
