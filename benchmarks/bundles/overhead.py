"""What the service costs a bundle of 32 members: a group's turn under it against the same turn with the bare
library.

Three processes of one thread each hold a group of 32 digits-sized networks: a bundle of a study on `headrace up`,
and two plain programs. They take turns of at least a second one after the other, never two at once, so whatever
slows the machine affects all of them. A visit is some turns in a row. Two pairs are four visits: service, bare,
bare, service. The two plain programs are then compared in the same way, which shows what a ratio of equals looks
like.

A pair's ratio is that of its visits' mean turns. The result is the mean over the pairs with a 95 % bootstrap
interval: for turns in which the service receives reports, and for visits in whose first turn it also saves all
members. With the rungs 1, 3, 9 and 27 it saves in one turn of seven.

    python benchmarks/bundles/overhead.py --pairs 20
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Any

import torch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "scheduler")]

from benchmark_site import write_record  # noqa: E402  its folder is on the path from here on
from overhead_turns import BATON, ENGINE, STEPS, Work, bare_group  # noqa: E402

from headrace import Client  # noqa: E402
from headrace.spec import StudySpec  # noqa: E402

START_S, CALIBRATION_S, SETTLE_S = 120.0, 3.0, 0.3
BLOCK = 5
Visit = list[tuple[float, float]]
"""For each turn, how long it took, and how much of that came after its last step."""


def steps_of(turn_s: float, members: int) -> int:
    """How many steps of the bare library take at least this long, at its fastest observed speed."""
    work = Work(bare_group(members))
    work.turn(BLOCK)
    fastest_s, end = float("inf"), time.perf_counter() + CALIBRATION_S
    while (began := time.perf_counter()) < end:
        work.turn(BLOCK)
        fastest_s = min(fastest_s, time.perf_counter() - began)
    return int(1.05 * turn_s / fastest_s * BLOCK) + 1


class Sides:
    """The processes that wait for a command, by name."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._lines: dict[str, Connection] = {}

    def expect_all(self, *names: str) -> None:
        """Waits until these sides are ready, in any order."""
        while self._lines.keys() < set(names):
            line = self._listener.accept()
            self._lines[line.recv()] = line

    def visit(self, name: str, turns: int, *, saves: bool) -> Visit:
        """Lets one side take its turns; returns how long each took."""
        time.sleep(SETTLE_S)
        self._lines[name].send((turns, saves))
        taken: Visit = self._lines[name].recv()
        return taken

    def end(self) -> None:
        """Release all of them."""
        for line in self._lines.values():
            line.send((0, False))
            line.close()
        self._lines.clear()


@contextmanager
def program(name: str, members: int, environ: Mapping[str, str]) -> Iterator[None]:
    """A plain program."""
    process = subprocess.Popen(
        [sys.executable, str(HERE / "overhead_turns.py"), name, str(members)], env=dict(environ)
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


@contextmanager
def bundle(members: int, home: Path, environ: Mapping[str, str]) -> Iterator[None]:
    """A study of one bundle on a service of its own."""
    command = [sys.executable, "-m", "headrace.cli", "up", "--home", str(home), "--slots", "1", "--port", "0"]
    service = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + START_S
        while not (home / "address").exists():
            if time.monotonic() > deadline:
                raise SystemExit(f"headrace up did not start within {START_S:g} s")
            time.sleep(0.2)
        with Client((home / "address").read_text().strip(), timeout_s=60) as client:
            client.create_study("overhead", spec(members, environ))
            yield
    finally:
        service.terminate()
        service.wait(60)


def spec(members: int, environ: Mapping[str, str]) -> StudySpec:
    """As many trials as seats, which nobody stops."""
    return StudySpec.model_validate(
        {
            "objective": {"metric": "loss", "goal": "minimize"},
            "space": {"lr": {"type": "float", "low": 1e-4, "high": 1e-1, "log": True}},
            "sampler": {"kind": "random"},
            "policy": {"kind": "run_all"},
            "template": {
                "callable": "overhead_turns:service",
                "working_dir": str(HERE),
                "env": {name: environ[name] for name in (BATON, STEPS)},
            },
            "fuse": {"most": members},
            "max_trials": members,
            "max_steps": 1_000_000,
            "seed": 7,
        }
    )


def paired(
    sides: Sides, one: str, other: str, pairs: int, turns: int, *, saves: bool = False
) -> dict[str, Any]:
    """Visits in the order one, other, other, one. Returns the ratio of the first to the second, and all turns."""
    found: list[dict[str, Visit]] = []
    for number in range(pairs):
        order = (one, other) if number % 2 == 0 else (other, one)
        found.append({name: sides.visit(name, turns, saves=saves) for name in order})
        shown = {name: [round(whole_s, 4) for whole_s, _ in visit] for name, visit in found[-1].items()}
        print(json.dumps({"pair": number + 1, **shown}), flush=True)
    ratios = [mean_s(pair[one], 0) / mean_s(pair[other], 0) for pair in found]
    return {
        **summary(ratios),
        "shortest_turn_s": round(min(whole_s for pair in found for whole_s, _ in pair[other]), 3),
        "after_its_steps_ms": {
            name: round(1e3 * median(mean_s(pair[name], 1) for pair in found), 2) for name in (one, other)
        },
        "pairs": found,
    }


def mean_s(visit: Visit, which: int) -> float:
    """The mean over a visit's turns."""
    return fmean(turn[which] for turn in visit)


def summary(ratios: list[float]) -> dict[str, Any]:
    """The mean, with a 95 % bootstrap interval."""
    chance = random.Random(1)
    means = [fmean(chance.choices(ratios, k=len(ratios))) for _ in range(4000)]
    cuts = quantiles(means, n=40)
    return {"mean": round(fmean(ratios), 5), "interval_95": [round(cuts[0], 5), round(cuts[-1], 5)]}


def main() -> None:
    """Measure, print, and write the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--members", type=int, default=32)
    parser.add_argument("--turns", type=int, default=3, help="turns of a visit")
    parser.add_argument("--turn-s", type=float, default=1.0, help="how long a turn takes at least")
    parser.add_argument("--out", type=Path, default=HERE.parent / "results" / "overhead.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    steps = steps_of(arguments.turn_s, arguments.members)
    with tempfile.TemporaryDirectory(prefix="hr-overhead-") as folder:
        home = Path(folder)
        environ = {
            **os.environ,
            BATON: str(home / "baton"),
            STEPS: str(steps),
            "HEADRACE_HOME": str(home / "up"),
        }
        with Listener(environ[BATON]) as listener:
            found = measured(Sides(listener), home / "up", environ, arguments)
    shown = {
        name: {key: value for key, value in one.items() if key != "pairs"} for name, one in found.items()
    }
    print(json.dumps({"steps_of_a_turn": steps, **shown}, indent=1))
    write_record(arguments.out, members=arguments.members, steps_of_a_turn=steps, engine=ENGINE, **found)


def measured(
    sides: Sides, home: Path, environ: Mapping[str, str], arguments: argparse.Namespace
) -> dict[str, Any]:
    """Starts the sides and compares them."""
    pairs, turns, members = arguments.pairs, arguments.turns, arguments.members
    with (
        bundle(members, home, environ),
        program("bare", members, environ),
        program("bare_again", members, environ),
    ):
        sides.expect_all("service", "bare", "bare_again")
        for name in ("service", "bare", "bare_again"):  # caches and clocks warm up
            sides.visit(name, 1, saves=False)
        found = {
            "service_to_bare": paired(sides, "service", "bare", pairs, turns),
            "service_that_saves_to_bare": paired(
                sides, "service", "bare", max(2, pairs // 2), turns, saves=True
            ),
            "bare_to_bare": paired(sides, "bare_again", "bare", pairs, turns),
        }
        sides.end()
    return found


if __name__ == "__main__":
    main()
