"""Honest clients beside an attack: what their reports take with and without it, and whether any is lost.

    python tests/fuzz/honest.py --seconds 60 --attackers 2

Four clients ask and tell, each on a study of its own, first alone and then while attackers send what the fuzz draws.
The attackers are processes of their own, so that the clients' times are the server's.
"""

import argparse
import asyncio
import multiprocessing
import random
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from attack import Attack
from fuzz_site import Site, site

from headrace import Client
from headrace.spec import parse_spec

sys.path.insert(0, str(Path(__file__).parent.parent / "chaos"))
from postgres_site import PostgresSite

CLIENTS = 4


@dataclass(slots=True)
class Told:
    """What one client told, and what each report took."""

    reports: list[tuple[int, int]] = field(default_factory=list)
    """Trial and step of each report that was answered."""
    took_s: list[float] = field(default_factory=list)


def main() -> int:
    """Returns the exit status: 1 where anything was lost."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--attackers", type=int, default=2)
    options = parser.parse_args()
    return asyncio.run(_run(options.seconds, options.attackers))


async def _run(seconds: float, attackers: int) -> int:
    with tempfile.TemporaryDirectory(prefix="hr-honest-") as folder:
        postgres = PostgresSite(Path(folder))
        await postgres.start()
        try:
            return await asyncio.to_thread(_compare, Path(folder), postgres.url, seconds, attackers)
        finally:
            await postgres.stop()


def _compare(folder: Path, database_url: str, seconds: float, attackers: int) -> int:
    lost = 0
    print("| | reports | p50 | p99 | greatest | lost |\n| --- | --- | --- | --- | --- | --- |", flush=True)
    with site(folder, database_url, worker=False) as here:
        _phase(here, "warm", 5.0)
        for name, count in (("alone", 0), ("attacked", attackers), ("alone again", 0)):
            away = replace(here, processes={})  # the others are no business of another process
            over = multiprocessing.get_context("spawn").Event()
            calls = multiprocessing.get_context("spawn").Value("i", 0)
            hostile = [
                multiprocessing.get_context("spawn").Process(target=_attack, args=(away, number, over, calls))
                for number in range(count)
            ]
            for process in hostile:
                process.start()
            told = _phase(here, name.replace(" ", "-"), seconds)
            over.set()
            for process in hostile:
                process.join()
            missing = _missing(here, name.replace(" ", "-"), told)
            lost += missing
            took = sorted(one for client in told for one in client.took_s)
            p50, p99 = took[len(took) // 2], took[len(took) * 99 // 100]
            what = f"{name}, {calls.value} hostile calls" if count else name
            print(
                f"| {what} | {len(took)} | {p50 * 1e3:.1f} ms | {p99 * 1e3:.1f} ms "
                f"| {took[-1] * 1e3:.0f} ms | {missing} |",
                flush=True,
            )
        print(f"scheduler: {here.memory()['scheduler'] >> 20} MiB")
    return 1 if lost else 0


def _phase(here: Site, name: str, seconds: float) -> list[Told]:
    """All clients for so long."""
    told = [Told() for _ in range(CLIENTS)]
    threads = [
        threading.Thread(target=_client, args=(here, f"honest-{name}-{number}", seconds, told[number]))
        for number in range(CLIENTS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return told


def _client(here: Site, study_id: str, seconds: float, told: Told) -> None:
    """Ask, tell three results, complete; for so long."""
    until = time.monotonic() + seconds
    spec = {
        "objective": {"metric": "loss", "goal": "minimize"},
        "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
        "policy": {"kind": "run_all"},
        "max_trials": 1_000_000,
        "max_steps": 3,
    }
    with Client(here.scheduler, timeout_s=60) as client:
        study = client.create_study(study_id, parse_spec(spec))
        while time.monotonic() < until:
            asked = study.ask()
            for step in (1, 2, 3):
                began = time.monotonic()
                asked.report(step, loss=asked.params["x"] * step)
                told.took_s.append(time.monotonic() - began)
                told.reports.append((asked.number, step))


def _missing(here: Site, name: str, told: list[Told]) -> int:
    """How many reports that were answered are not among those that the scheduler lists."""
    missing = 0
    with Client(here.scheduler, timeout_s=60) as client:
        for number, one in enumerate(told):
            listed = {
                (report.trial, report.step) for report in client.study(f"honest-{name}-{number}").reports()
            }
            missing += sum(pair not in listed for pair in one.reports)
    return missing


def _attack(here: Site, number: int, over: object, calls: object) -> None:
    attack = Attack(here)
    chance = random.Random(number)
    while not over.is_set():  # type: ignore[attr-defined]
        attack.one_call(chance)
        with calls.get_lock():  # type: ignore[attr-defined]
            calls.value += 1  # type: ignore[attr-defined]
    print(f"attacker {number}: {attack.tally}", file=sys.stderr, flush=True)
    attack.close()


if __name__ == "__main__":
    sys.exit(main())
