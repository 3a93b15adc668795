"""Cycles that were put aside are collected once they may be many, and nothing is looked through for a few."""

import subprocess
import sys

import pytest

LARGE = """
import asyncio, gc
from headrace_services.scheduler import collector

collector.SOON_S, collector.LOOK_S = (0.0,), 0.05

class Cycle:
    alive = 0
    def __init__(self):
        self.me, self.request = self, b"x" * 2**20
        Cycle.alive += 1
    def __del__(self):
        Cycle.alive -= 1

async def main():
    collector.put_aside()
    watch = asyncio.create_task(collector.run())
    await asyncio.sleep(0.2)
    cycles = [Cycle() for _ in range(60)]
    cycles.clear()
    made = Cycle.alive
    await asyncio.sleep(1.0)
    print(made, Cycle.alive)

asyncio.run(main())
"""
SCRIPT = """
import asyncio, gc, sys
from headrace_services.scheduler import collector

collector.SOON_S, collector.OFTEN_S = (0.0,), 0.05
share, collector.DAY = float(sys.argv[1]), int(sys.argv[2])

class Cycle:
    alive = 0
    def __init__(self):
        self.me = self
        Cycle.alive += 1
    def __del__(self):
        Cycle.alive -= 1

async def main():
    collector.put_aside()
    watch = asyncio.create_task(collector.run())
    await asyncio.sleep(0.02)
    cycles = [Cycle() for _ in range(int(share * gc.get_freeze_count()))]
    gc.freeze()
    cycles.clear()
    made = Cycle.alive
    await asyncio.sleep(1.0)
    print(made, Cycle.alive)

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("share", "day", "collected"), [(0.05, 1000, False), (0.5, 1000, True), (0.05, 3, True)]
)
def test_everything_is_looked_at_when_a_quarter_more_was_put_aside_and_once_a_day(
    share: float, day: int, *, collected: bool
) -> None:
    command = [sys.executable, "-c", SCRIPT, str(share), str(day)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    made, alive = map(int, ran.stdout.split())
    assert made > 0
    assert alive == (0 if collected else made)


def test_what_callers_left_is_collected_when_the_process_has_grown() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", LARGE], capture_output=True, text=True, check=True, timeout=60
    )
    assert ran.stdout.split() == ["60", "0"]
