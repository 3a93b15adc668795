"""Calls drawn from all descriptors at a closed service, as each of the callers on the permissions page.

A few in the first tier, at the service in this process; 100 for each caller at real processes under a memory
limit; and 20,000 for each by `make fuzz`. Memory is measured while the streams that the caller left open are open.
"""

import asyncio
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic

import psutil
import pytest
from attack import Attack, calls
from closed_processes import closed_processes
from closed_site import ClosedSite, closed_site
from fuzz_messages import Known
from fuzz_site import LIMIT_BYTES, limited_caller
from lines import ClosedLines, known_at
from test_fuzz import GROWTH_BYTES

from headrace_services.identity.callers import CALLERS, Caller
from headrace_services.scheduler.store.database import open_engine

CALLS = int(os.environ.get("HEADRACE_FUZZ_CALLS", "100"))
FEW = 12
WARM = 60
pytestmark = [pytest.mark.full, pytest.mark.timeout(40_000 if CALLS > 1000 else 900)]


@pytest.mark.smoke
async def test_few_calls_of_each_caller(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HEADRACE_TLS_CA", str(tmp_path / "ca" / "ca.pem"))
    engine = open_engine(database_url)
    async with closed_site(engine, tmp_path) as site:
        known = await known_at(site, tmp_path)
        for number, caller in enumerate(CALLERS):
            with _attacker(site, caller, known, number, lambda: 0.0) as attack:
                await asyncio.to_thread(_attack, attack, FEW, number)
            assert not attack.tally.faults, f"{caller.heading}: {attack.tally}"
    await engine.dispose()
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("caller", CALLERS, ids=lambda caller: caller.heading)
async def test_whoever_calls_nobody_else_is_hurt(database_url: str, tmp_path: Path, caller: Caller) -> None:
    engine = open_engine(database_url)
    async with closed_processes(engine, database_url, tmp_path, memory_bytes=LIMIT_BYTES) as site:
        known = await known_at(site, tmp_path)
        with _attacker(site, caller, known, 1, _waited(site)) as attack:
            await asyncio.to_thread(_attack, attack, WARM, 1001)
            before, began = _memory(site), monotonic()
            await asyncio.to_thread(_attack, attack, CALLS, 1)
            growth = {name: size - before[name] for name, size in _memory(site).items()}
    await engine.dispose()
    shown = {name: f"{size / 2**20:+.0f} MiB" for name, size in growth.items()}
    print(f"\n{caller.heading}, {monotonic() - began:.0f} s, {shown}: {attack.tally}")
    assert not attack.tally.faults, str(attack.tally)
    assert max(growth.values()) < GROWTH_BYTES, shown
    assert "Traceback" not in _logs(tmp_path)


@contextmanager
def _attacker(
    site: ClosedSite, caller: Caller, known: Known, number: int, waited_s: Callable[[], float]
) -> Iterator[Attack]:
    lines = ClosedLines(site, caller, random.Random(number), waited_s)
    with contextmanager(calls)(lines) as attack:
        attack.known = replace(known, studies=["fuzz-0"], leases=[], tokens=[])
        yield attack


def _attack(attack: Attack, count: int, number: int) -> None:
    chance = random.Random(number)
    with limited_caller():
        for _ in range(count):
            attack.one_call(chance)
    for study in attack.all_studies():
        attack.end(study)


def _logs(folder: Path) -> str:
    return "".join(log.read_text() for log in folder.glob("*.log"))


def _memory(site: ClosedSite) -> dict[str, int]:
    """Resident bytes of each process, without those of its children."""
    return {name: psutil.Process(pid).memory_info().rss for name, pid in site.pids.items()}


def _waited(site: ClosedSite) -> Callable[[], float]:
    """How long the scheduler's event loop has been ready so far without a core."""
    pid = site.pids["scheduler"]
    return lambda: int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[1]) / 1e9
