"""Mixed sizes on mixed machines, one event at a time: nothing is over-committed, nothing starves, little idles.

The same program with 100,000 events is the benchmark (`benchmarks/placement/packing.py`).
"""

import random

import pytest
from virtual_cluster import MACHINES, SIZES, VirtualCluster

from headrace_services.scheduler.core.placement import BestFit

EVENTS = 1200
NOISE = 0.15
"""The fraction by which a rung may take longer, or less, than predicted."""
LONGEST_WAIT = 1 + NOISE
"""In rungs of the longest kind, from the reservation to the start, if all trials have the same priority.

A trial on the slots when they are reserved may just have started a rung. It is asked to leave at the rung's end,
and stays for 1 + NOISE at most. By prediction the slots are ready in R ≤ 1. A trial that arrives after t fills the
gap: its prediction p satisfies 1.1·p ≤ R - t, and it leaves at its first rung, by t + (1 + NOISE)·p ≤ R + (NOISE -
0.1)·p < 1.05. No other trial of the same priority gets the slots.
"""


@pytest.mark.full
def test_mixed_sizes_pack_without_over_commitment_and_eight_gpus_come_in_time() -> None:
    cluster = VirtualCluster(seed=1, noise=NOISE)
    tally = cluster.run(EVENTS)
    assert tally.events == EVENTS
    assert tally.over_commits == tally.partial_gangs == tally.unsuitable == 0
    assert set(tally.placed) == {size for size, *_ in SIZES}
    assert tally.rules["backfill"] > 0
    assert len(tally.reserved_waits) > 20
    assert max(tally.reserved_waits) <= LONGEST_WAIT
    assert tally.busy_s / tally.offered_s >= 0.95
    capacity = sum(machine.slots * machine.speed for machine in MACHINES)
    assert tally.work_s / capacity >= 0.94 * cluster.now_s


@pytest.mark.full
def test_without_reservations_they_would_starve() -> None:
    kept = VirtualCluster(seed=3)
    kept.run(EVENTS)
    never = VirtualCluster(BestFit(reserve=False), seed=3)
    never.run(EVENTS)

    def longest_wait_s(cluster: VirtualCluster) -> float:
        still = (cluster.now_s - job.submitted_s for job in cluster.waiting if job.size == "8")
        return max([*cluster.tally.first_waits_s["8"], *still])

    assert longest_wait_s(never) > 2 * longest_wait_s(kept)


def test_priorities_are_served_first_and_others_lose_no_rung() -> None:
    cluster = VirtualCluster(seed=4, priority=lambda draw: int(draw.random() < 0.1), machines=MACHINES[:3])
    tally = cluster.run(500)
    assert tally.over_commits == tally.partial_gangs == 0
    assert tally.left_for_others > 0
    oldest = min((job.submitted_s for job in cluster.waiting if job.priority), default=cluster.now_s)
    assert cluster.now_s - oldest <= 4 * 120


def test_a_placer_that_gives_too_much_is_caught() -> None:
    class Careless(BestFit):
        def plan(self, cluster, waiting):  # type: ignore[no-untyped-def]  # the point is the wrong plan
            emptied = [slot.less(slot.free_milli - 1000, -slot.used_memory_bytes) for slot in cluster.devices]
            lies = type(cluster)(devices=tuple(emptied), running=cluster.running, now_s=cluster.now_s)
            return super().plan(lies, waiting)

    tally = VirtualCluster(Careless(), seed=random.Random(5).randrange(100)).run(50)
    assert tally.over_commits > 0
