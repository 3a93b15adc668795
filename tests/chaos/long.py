"""`make chaos`: the long form of the chaos tests, as a program.

    python tests/chaos/long.py                              every scenario, at the counts that the product promises
    python tests/chaos/long.py kill-scheduler --times 20    one of them

Prints a line for each fault, writes `NAME.json` and `chaos.svg` into `--out`, and exits with 1 if anything that must
hold does not. Real processes, real signals, a real Postgres; some minutes for each scenario.
"""

import argparse
import json
import logging
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import scenario_bundles
import scenario_drain
import scenario_freeze_worker
import scenario_full_disk
import scenario_gang
import scenario_homes
import scenario_kill_scheduler
import scenario_kill_worker
import scenario_postgres
import scenario_replicas
import scenario_restore
import scenario_schedulers_first
import scenario_stores
import scenario_streams
from picture import draw

Run = Callable[..., dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One kind of fault, and how often it occurs."""

    run: Run
    times: int
    what: str


SCENARIOS = {
    "kill-scheduler": Scenario(scenario_kill_scheduler.run, 20, "kill -9 of the scheduler under 64 workers"),
    "replicas": Scenario(scenario_replicas.run, 6, "three schedulers on one study, one killed now and then"),
    "freeze-worker": Scenario(
        scenario_freeze_worker.run, 100, "SIGSTOP of workers past their lease, then SIGCONT"
    ),
    "kill-worker": Scenario(scenario_kill_worker.run, 500, "kill -9 of workers"),
    "postgres": Scenario(scenario_postgres.run, 10, "immediate restarts of Postgres, and an outage of 30 s"),
    "schedulers-first": Scenario(
        scenario_schedulers_first.run, 20, "both schedulers killed, and started while Postgres is down"
    ),
    "restore": Scenario(
        scenario_restore.run, 3, "the database dropped and loaded from a dump, behind its workers"
    ),
    "full-disk": Scenario(scenario_full_disk.run, 5, "full disks of the checkpoint store and of the outbox"),
    "store-away": Scenario(
        partial(scenario_stores.run, fault="away"), 20, "the checkpoint store goes away for some seconds"
    ),
    "damaged-checkpoints": Scenario(
        partial(scenario_stores.run, fault="damage"), 20, "each file of checkpoints flipped, cut or deleted"
    ),
    "gang-fsdp": Scenario(
        partial(scenario_gang.run, kind="fsdp"), 20, "kill -9 of gangs of 4 ranks with an FSDP2 model"
    ),
    "gang-zero": Scenario(
        partial(scenario_gang.run, kind="zero"), 20, "kill -9 of gangs of 4 ranks with DeepSpeed's ZeRO-2"
    ),
    "bundles": Scenario(
        scenario_bundles.run, 20, "kill -9 of bundles, of their worker, of the scheduler and of Postgres"
    ),
    "drain": Scenario(scenario_drain.run, 4, "a drain of so many trials, alone and with other faults"),
    "vanished-home": Scenario(
        partial(scenario_homes.run, kind="vanished-home"), 20, "socket folders and homes of workers deleted"
    ),
    "copied-home": Scenario(
        partial(scenario_homes.run, kind="copied-home"), 20, "daemons on copies of a worker's home"
    ),
    "daemon-twice": Scenario(
        partial(scenario_homes.run, kind="daemon-twice"), 20, "second daemons on a worker's home"
    ),
    "streams": Scenario(scenario_streams.run, 10, "256 streams over a bad line, for so many minutes"),
}


def strike(name: str, times: int | None, out: Path, options: dict[str, int]) -> bool:
    """Run one scenario, write its record, and return whether everything held that must."""
    scenario = SCENARIOS[name]
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - began:7.1f} s] {name}: {text}", flush=True)

    folder = Path(tempfile.mkdtemp(prefix=f"hr-{name}-"))
    record: dict[str, Any] = {
        "scenario": name,
        "what": scenario.what,
        "command": f"python tests/chaos/long.py {name} --times {times or scenario.times}",
        "machine": f"{platform.machine()}, {psutil.cpu_count()} cores",
    }
    say(scenario.what)
    try:
        record |= scenario.run(folder, say, times=times or scenario.times, **options)
    except Exception as error:
        record |= {"holds": False, "error": f"{type(error).__name__}: {error}"}
        (out / f"{name}.json").write_text(json.dumps(record, indent=2))
        say(f"FAILED; its files are in {folder}")
        raise
    record["load"] = round(psutil.getloadavg()[1], 1)
    record["took_s"] = round(time.monotonic() - began, 1)
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.json").write_text(json.dumps(record, indent=2) + "\n")
    say(("holds" if record["holds"] else f"DOES NOT HOLD, files in {folder}") + f": {json.dumps(record)}")
    if record["holds"]:
        shutil.rmtree(folder, ignore_errors=True)
    return bool(record["holds"])


def main() -> None:
    """Run the requested scenarios."""
    logging.getLogger("headrace_worker").setLevel(logging.CRITICAL)  # connections break all the time
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scenarios", nargs="*", metavar="NAME", help=", ".join(SCENARIOS))
    parser.add_argument("--times", type=int, help="how often the fault strikes")
    parser.add_argument("--workers", type=int, help="size of the fleet, where the scenario has one")
    parser.add_argument("--trials", type=int, help="size of the study, where the scenario has one")
    parser.add_argument("--out", type=Path, default=Path("build/chaos"))
    options = parser.parse_args()
    unknown = [name for name in options.scenarios if name not in SCENARIOS]
    if unknown:
        parser.error(f"there is no scenario {unknown[0]!r}; there are {', '.join(SCENARIOS)}")
    sizes = {name: getattr(options, name) for name in ("workers", "trials") if getattr(options, name)}
    options.out.mkdir(parents=True, exist_ok=True)
    held = [strike(name, options.times, options.out, sizes) for name in options.scenarios or list(SCENARIOS)]
    if (drawn := draw(options.out)) is not None:
        print(f"drawn: {drawn}")
    sys.exit(0 if all(held) else 1)


if __name__ == "__main__":
    main()
