"""Gangs that are paused, moved and killed: the short form of `make gangs`, with a number in place of a model."""

import random
from pathlib import Path

import pytest
import scenario_gang
from cluster_site import cluster
from daemon_site import daemons, orphans_come_here

pytestmark = pytest.mark.full


def test_every_rank_of_a_gang_continues_to_the_bit_though_it_is_killed_and_moved(tmp_path: Path) -> None:
    with (
        orphans_come_here(),
        cluster(tmp_path, worker=False, lease_ttl_s=scenario_gang.LEASE_TTL_S) as site,
        daemons(scenario_gang.workers(site, tmp_path, ranks=2)) as found,
    ):
        record = scenario_gang.hurt(
            site,
            found,
            tmp_path,
            times=2,
            trials=1,
            kind="plain",
            ranks=2,
            rng=random.Random(3),
            say=print,
            longest_s=120.0,
        )
    assert record["holds"], str(record)
    assert record["pauses_at_rungs"] > 0
