"""What work on one core costs the other one, without our code: a bound on what a gate can achieve on this machine.

Run it:  python benchmarks/bubbles/neighbour_core.py        (about a minute of two quiet cores)

While stage 0 of a pipeline waits, stage 1 computes. So a trial in a window of stage 0 always runs beside a
computing stage. The two cores share the cache, the memory and perhaps the clock, and no gate can change that. Here
one process trains a layer of the example's GPT on one core. On the other core a second process does the arithmetic
of the fused trial, or is stopped: off, on, on, off. It writes benchmarks/results/neighbour_core.json.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from slowdown import TURNS, interval
from torch import nn

RESULTS = Path(__file__).resolve().parents[1] / "results" / "neighbour_core.json"
PASSES = 40
MEMBERS, ROWS, WIDTH = 16, 64, 128


def stage() -> None:
    """For each line of input, trains and prints how many seconds it took."""
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, batch_first=True)
    rows = torch.randn(8, 64, WIDTH)
    for _ in sys.stdin:
        began = time.perf_counter()
        for _ in range(PASSES):
            layer(rows).sum().backward()
        print(time.perf_counter() - began, flush=True)


def trial() -> None:
    """The fused trial's arithmetic, forever: a batched product, and Adam's three arrays."""
    weights, rows = torch.randn(MEMBERS, WIDTH, WIDTH), torch.randn(MEMBERS, ROWS, WIDTH)
    arrays = [torch.randn(MEMBERS, WIDTH, WIDTH) for _ in range(3)]
    while True:
        torch.bmm(rows, weights)
        for one in arrays:
            one.mul_(0.99).add_(weights, alpha=0.01)


def started(role: str, core: int) -> "subprocess.Popen[str]":
    command = ["taskset", "-c", str(core), sys.executable, __file__, "--role", role]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def measured(rounds: int) -> list[float]:
    """How much slower the stage is in each round."""
    cores = sorted(os.sched_getaffinity(0))
    one, other = started("stage", cores[-1]), started("trial", cores[0])
    assert one.stdin is not None
    assert one.stdout is not None
    asks, answers = one.stdin, one.stdout

    def turn(on: bool) -> float:
        other.send_signal(signal.SIGCONT if on else signal.SIGSTOP)
        time.sleep(0.05)  # until the signal has taken effect
        print(file=asks, flush=True)
        return float(answers.readline())

    try:
        time.sleep(2)  # until both have imported torch
        turn(True)  # the first one loads
        rows = [[turn(on) for on in TURNS] for _ in range(rounds)]
    finally:
        for process in (one, other):
            process.kill()
            process.wait()
    return [(row[1] + row[2]) / (row[0] + row[3]) - 1 for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--role", choices=("stage", "trial"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.role:
        return {"stage": stage, "trial": trial}[options.role]()
    before = os.getloadavg()[0]
    ratios = measured(options.rounds)
    found = {**interval(ratios), "median": statistics.median(ratios)}
    record = {"rounds": options.rounds, "load_average_before": before, "slowdown": found, "of_rounds": ratios}
    options.out.write_text(json.dumps(record, indent=1) + "\n")
    print(
        f"beside a busy core: {found['mean']:+.1%}, 95 % interval {found['low']:+.1%} to {found['high']:+.1%}"
    )
    return None


if __name__ == "__main__":
    main()
