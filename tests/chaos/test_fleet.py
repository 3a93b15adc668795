"""Fleets of simulated workers on real replicas under faults: the short form of `make chaos`.

The scenarios are the same, with smaller counts. Each record says whether everything held that must.
"""

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import scenario_full_disk
import scenario_postgres
import scenario_replicas
import scenario_streams
from cluster_site import Cluster, cluster
from daemon_site import DaemonSite, daemons
from disk_site import LimitedFiles
from postgres_site import PostgresSite

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("replicas"), worker=False, replicas=3, lease_ttl_s=15) as site:
        yield site


async def test_three_replicas_decide_like_one_though_they_are_killed(replicas: Cluster) -> None:
    # A worker chooses its replica at random: of 24 workers, all three get some except once in 5,000 times.
    record = await scenario_replicas.hurt(
        replicas, times=2, workers=24, rng=random.Random(2), say=print, step_s=0.1
    )
    assert record["holds"], str(record)
    assert record["decisions_replayed"] >= 60


async def test_streams_survive_a_bad_line(replicas: Cluster) -> None:
    record = await scenario_streams.hurt(
        replicas,
        minutes=0.15,
        workers=12,
        step_s=0.2,
        rng=random.Random(3),
        say=print,
        reset_every_s=3.0,
        half_open_every_s=2.0,
    )
    assert not any(record["faults"].values()), record["examples"]
    assert record["resets"] >= 5
    assert record["half_open"] >= 2
    assert record["reports"] >= 50
    assert record["decisions_differing"] == 0


async def test_without_postgres_trials_train_on_and_every_report_lands_once(tmp_path: Path) -> None:
    database = PostgresSite(tmp_path / "database")
    await database.start()
    try:
        with (
            cluster(tmp_path, worker=False, database_url=database.url) as site,
            daemons([scenario_postgres.real_worker(site, tmp_path)]) as (daemon,),
        ):
            record = await scenario_postgres.hurt(
                site,
                database,
                daemon,
                tmp_path,
                times=1,
                outage_s=2.0,
                workers=4,
                rng=random.Random(4),
                say=print,
                step_s=0.1,
            )
    finally:
        await database.stop()
    assert record["holds"], str(record)


async def test_on_a_full_disk_a_worker_says_so_and_continues_by_itself(tmp_path: Path) -> None:
    with cluster(tmp_path, worker=False) as site:
        daemon = DaemonSite("w", site.addresses, tmp_path / "worker", tmp_path / "store", slots=2)
        with daemons([daemon]):
            assert daemon.pid is not None
            # Python ignores SIGXFSZ from its first line on; before that, the limit would kill it.
            await asyncio.to_thread(daemon.until_connected)
            record = await scenario_full_disk.hurt(
                site,
                {"all files": LimitedFiles(daemon.pid)},
                tmp_path,
                times=1,
                rng=random.Random(5),
                say=print,
                steps_each=60,
                step_s=0.03,
            )
    assert record["holds"], str(record)
