"""What share of the reports per second each layer that only serves speed contributes.

For each layer there is one scheduler on a database of its own, with 64 streams that report as fast as they are
answered. Turns with and without the layer alternate (`layer_switches.py`); two in a row are a pair, and every
other pair starts without it. So the machine's other work and the study's growth affect both sides. A layer's share
is 1 - without / with, the median of the pairs with a 90 % bootstrap interval. Next to the rate is the processor
time of a report, in the scheduler and in Postgres, without over with: it depends less on other use of the machine.

    python benchmarks/scheduler/layers.py --pairs 8

Writes `layers.json` into `--out`, after each layer; layers that are not measured keep their figures there.
"""

import argparse
import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import psutil
import psycopg
from bench_load import study
from benchmark_site import Cost, postgres, write_record
from layer_switches import SWITCHES
from old_and_new import interval
from simulated_worker import Crowd, SimulatedWorker

from headrace import AsyncClient

STREAMS = 64
WARM_UP_S = 3.0
SETTLES_S = 0.5
"""The time after a switch until everything in flight is answered."""
Turn = dict[str, float]
Pair = dict[str, Turn]


@contextmanager
def scheduler(url: str, layer: str) -> Iterator[tuple[str, psutil.Process]]:
    """A scheduler whose layer can be switched. Yields its address and the process."""
    command = [sys.executable, str(Path(__file__).with_name("layer_switches.py")), layer]
    command += ["--database-url", url, "--listen", "127.0.0.1:0", "--log-level", "error"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip().rpartition(" ")[2], psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(30)


async def measure(address: str, process: psutil.Process, pairs: int, turn_s: float) -> list[Pair]:
    """Let the streams report, and switch the layer off and on."""
    crowd, over = Crowd(), False
    workers = [SimulatedWorker(f"w{n}", 1, crowd, lambda: over) for n in range(STREAMS)]
    found: list[Pair] = []
    async with AsyncClient(address) as client:
        await client.create_study("bench", study(1_000_000))
        running = [asyncio.create_task(worker.run(address)) for worker in workers]
        crowd.go_on()
        await asyncio.sleep(WARM_UP_S)
        without = False
        for number in range(pairs):
            pair = {}
            for side in ("with", "without") if number % 2 == 0 else ("without", "with"):
                if without != (side == "without"):
                    without = not without
                    process.send_signal(signal.SIGUSR1 if without else signal.SIGUSR2)
                    await asyncio.sleep(SETTLES_S)
                pair[side] = await _turn(crowd, process, turn_s)
            found.append(pair)
        over = True
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    return found


async def _turn(crowd: Crowd, process: psutil.Process, turn_s: float) -> Turn:
    clock = asyncio.get_running_loop().time
    spent, seen, began = Cost.now(process), crowd.figures.committed, clock()
    await asyncio.sleep(turn_s)
    took_s, reports = clock() - began, crowd.figures.committed - seen
    used = (Cost.now(process) - spent).over(max(1, reports))
    return {
        "reports_per_s": round(reports / took_s, 1),
        "used_us": round(used["scheduler_us"] + used["postgres_us"], 1),
    }


def shares(pairs: list[Pair]) -> dict[str, object]:
    """The result of a layer's pairs."""
    rate = [1 - pair["without"]["reports_per_s"] / pair["with"]["reports_per_s"] for pair in pairs]
    spent = [pair["without"]["used_us"] / pair["with"]["used_us"] for pair in pairs]
    return {
        "share": round(median(rate), 3),
        "share_interval_90": interval(rate),
        "processor_time": round(median(spent), 3),
        "processor_time_interval_90": interval(spent),
        "pairs": len(pairs),
    }


def main() -> None:
    """Measure, print, and write the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", default=",".join(SWITCHES), help="which, separated by commas")
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--turn-s", type=float, default=2.5)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results")
    arguments = parser.parse_args()
    record = arguments.out / "layers.json"
    before = json.loads(record.read_text()) if record.exists() else {}
    found, pairs = before.get("layers", {}), before.get("pairs", {})
    with postgres() as server:
        for layer in arguments.layers.split(","):
            with psycopg.connect(server, autocommit=True) as conn:
                conn.execute(f'CREATE DATABASE "{layer}"')
            url = server.replace("/postgres?", f"/{layer}?", 1)
            with scheduler(url, layer) as (address, process):
                pairs[layer] = asyncio.run(measure(address, process, arguments.pairs, arguments.turn_s))
            found[layer] = shares(pairs[layer])
            print(json.dumps({layer: found[layer]}), flush=True)
            write_record(record, layers=found, pairs=pairs)


if __name__ == "__main__":
    main()
