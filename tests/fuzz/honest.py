"""Honest clients beside an attack: how long their reports take with and without it, and whether any is lost.

    python tests/fuzz/honest.py --seconds 60 --attackers 2
    python tests/fuzz/honest.py --seconds 20 --closed

Four clients ask and tell, each on a study of its own, first alone and then while attackers send what the fuzz draws.
The attackers are separate processes, so that the clients' times are the server's. At a closed service they act as each
of the callers on the permissions page, one after the other.
"""

import argparse
import asyncio
import multiprocessing
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import psutil

sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "chaos")]
from attack import Attack
from closed_processes import closed_processes
from closed_site import ClosedSite
from fuzz_messages import Known
from fuzz_site import LIMIT_BYTES, site
from lines import ClosedLines, Lines, OpenLines, known_at
from postgres_site import PostgresSite

from headrace import Client
from headrace.spec import parse_spec
from headrace_services.identity.callers import CALLERS, Caller
from headrace_services.scheduler.store.database import open_engine

CLIENTS = 4


@dataclass(slots=True)
class Told:
    """What one client reported, and how long each report took."""

    reports: list[tuple[int, int]] = field(default_factory=list)
    """Trial and step of each report that was answered."""
    took_s: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attacker:
    """An attacker; nothing of it is in this process."""

    name: str
    lines: Callable[[], Lines]
    known: Known = field(default_factory=Known)


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """What is attacked."""

    client: Callable[[], Client]
    pids: dict[str, int]
    attackers: Sequence[Attacker]


def main() -> int:
    """Returns the exit status: 1 if anything was lost."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--attackers", type=int, default=2)
    parser.add_argument("--closed", action="store_true", help="at a closed service, as each caller")
    options = parser.parse_args()
    return asyncio.run(_run(options.seconds, options.attackers, closed=options.closed))


async def _run(seconds: float, attackers: int, *, closed: bool) -> int:
    with tempfile.TemporaryDirectory(prefix="hr-honest-") as folder:
        postgres = PostgresSite(Path(folder))
        await postgres.start()
        try:
            if closed:
                return await _at_a_closed_service(Path(folder), postgres.url, seconds, attackers)
            return await asyncio.to_thread(_at_an_open_one, Path(folder), postgres.url, seconds, attackers)
        finally:
            await postgres.stop()


def _at_an_open_one(folder: Path, database_url: str, seconds: float, attackers: int) -> int:
    with site(folder, database_url, worker=False) as here:
        away = replace(here, processes={})  # the others do not concern another process
        service = Service(
            client=partial(Client, here.scheduler, timeout_s=60),
            pids={name: process.pid for name, process in here.processes.items()},
            attackers=[Attacker(name="attacked", lines=partial(OpenLines, away))],
        )
        return _compare(service, seconds, attackers)


async def _at_a_closed_service(folder: Path, database_url: str, seconds: float, attackers: int) -> int:
    engine = open_engine(database_url)
    async with closed_processes(engine, database_url, folder, memory_bytes=LIMIT_BYTES) as here:
        known = await known_at(here, folder)
        away = replace(here, _channels={})
        client = partial(
            Client,
            f"tls://{here.addresses.users}",
            timeout_s=60,
            tls_ca=folder / "ca" / "ca.pem",
            token=here.tokens["editor"],
        )
        callers = [
            Attacker(name=caller.heading, lines=partial(_closed_lines, away, caller), known=known)
            for caller in CALLERS
        ]
        service = Service(client=client, pids=dict(here.pids), attackers=callers)
        lost = await asyncio.to_thread(_compare, service, seconds, attackers)
    await engine.dispose()
    return lost


def _closed_lines(here: ClosedSite, caller: Caller) -> Lines:
    return ClosedLines(here, caller, random.Random(), lambda: 0.0)


def _compare(service: Service, seconds: float, attackers: int) -> int:
    lost = 0
    print(
        "| beside | hostile calls | reports | p50 | p99 | greatest | lost | scheduler |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        flush=True,
    )
    _phase(service, "warm", 5.0)
    rows: list[Attacker | None] = [None, *service.attackers, None]
    for number, attacker in enumerate(rows):
        over = multiprocessing.get_context("spawn").Event()
        calls = multiprocessing.get_context("spawn").Value("i", 0)
        hostile = [
            multiprocessing.get_context("spawn").Process(target=_attack, args=(attacker, which, over, calls))
            for which in range(attackers if attacker else 0)
        ]
        before = _memory(service)
        for process in hostile:
            process.start()
        told = _phase(service, f"{number}", seconds)
        grown = _memory(service) - before
        over.set()
        for process in hostile:
            process.join()
        missing = _missing(service, f"{number}", told)
        lost += missing
        took = sorted(one for client in told for one in client.took_s)
        p50, p99 = took[len(took) // 2], took[len(took) * 99 // 100]
        print(
            f"| {attacker.name if attacker else 'nobody'} | {calls.value} | {len(took)} | {p50 * 1e3:.1f} ms "
            f"| {p99 * 1e3:.1f} ms | {took[-1] * 1e3:.0f} ms | {missing} | {grown / 2**20:+.0f} MiB |",
            flush=True,
        )
    return 1 if lost else 0


def _memory(service: Service) -> int:
    found: int = psutil.Process(service.pids["scheduler"]).memory_info().rss
    return found


def _phase(service: Service, name: str, seconds: float) -> list[Told]:
    """Run all clients for that long."""
    told = [Told() for _ in range(CLIENTS)]
    threads = [
        threading.Thread(target=_client, args=(service, f"honest-{name}-{number}", seconds, told[number]))
        for number in range(CLIENTS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return told


def _client(service: Service, study_id: str, seconds: float, told: Told) -> None:
    """Ask, report three results, complete, for that long."""
    until = time.monotonic() + seconds
    spec = {
        "objective": {"metric": "loss", "goal": "minimize"},
        "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
        "policy": {"kind": "run_all"},
        "max_trials": 1_000_000,
        "max_steps": 3,
    }
    with service.client() as client:
        study = client.create_study(study_id, parse_spec(spec))
        while time.monotonic() < until:
            asked = study.ask()
            for step in (1, 2, 3):
                began = time.monotonic()
                asked.report(step, loss=asked.params["x"] * step)
                told.took_s.append(time.monotonic() - began)
                told.reports.append((asked.number, step))


def _missing(service: Service, name: str, told: list[Told]) -> int:
    """How many answered reports are missing from the scheduler's lists."""
    missing = 0
    with service.client() as client:
        for number, one in enumerate(told):
            listed = {
                (report.trial, report.step) for report in client.study(f"honest-{name}-{number}").reports()
            }
            missing += sum(pair not in listed for pair in one.reports)
    return missing


def _attack(attacker: Attacker, number: int, over: object, calls: object) -> None:
    attack = Attack(attacker.lines())
    attack.known = replace(attacker.known, studies=["fuzz-0"], leases=[], tokens=[])
    chance = random.Random(number)
    while not over.is_set():  # type: ignore[attr-defined]
        attack.one_call(chance)
        with calls.get_lock():  # type: ignore[attr-defined]
            calls.value += 1  # type: ignore[attr-defined]
    if attack.tally.faults:
        print(f"{attacker.name} {number}: {attack.tally}", file=sys.stderr, flush=True)
    attack.close()


if __name__ == "__main__":
    sys.exit(main())
