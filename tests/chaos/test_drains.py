"""Machines and devices go away under running processes: a worker at SIGTERM, a GPU with an ECC error."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_site import Cluster, chain_spec, cluster, connect, until
from daemon_site import DaemonSite, daemons
from scenario_drain import LEASE_TTL_S, by_sigterm

from headrace import Client
from headrace.client import Worker

pytestmark = pytest.mark.full

STEP_S = 0.2
DRIVER = Path(__file__).parent / "fake_driver"
UUIDS = ("GPU-a", "GPU-b")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("drains"), worker=False, lease_ttl_s=LEASE_TTL_S) as running:
        yield running


def test_at_sigterm_trials_save_at_their_next_report_and_continue_elsewhere(
    site: Cluster, tmp_path: Path
) -> None:
    with connect(site) as client:
        found = by_sigterm(site, client, tmp_path / "sigterm", print, trials=4, step_s=STEP_S)
    assert found["holds"], found


def test_an_ecc_error_quarantines_one_gpu_of_two_and_its_trial_continues_on_the_other(
    site: Cluster, tmp_path: Path
) -> None:
    driver = tmp_path / "nvml.json"
    driver.write_text(json.dumps(dict.fromkeys(UUIDS, 0)))
    env = {
        "FAKE_NVML": str(driver),
        "PYTHONPATH": os.pathsep.join([str(DRIVER), os.environ.get("PYTHONPATH", "")]),
    }
    worker = DaemonSite("gpus", site.addresses, tmp_path / "home", tmp_path / "store", slots=0, env=env)
    spec = chain_spec(
        tmp_path / "journal",
        step_s=STEP_S,
        policy={"kind": "run_all"},
        resources={"gpus": 1},
        max_trials=1,
        max_steps=500,
    )
    with connect(site) as client, daemons([worker]):
        study = client.create_study("ecc", spec)
        bad = until(lambda: next((one for one in study.trials() if one.step), None), "a report").slots[0]
        trial = study.trial(0)
        (tmp_path / "new.json").write_text(json.dumps(dict.fromkeys(UUIDS, 0) | {UUIDS[bad]: 1}))
        (tmp_path / "new.json").rename(driver)
        moved = until(lambda: (info := trial.info()).attempt == 2 and info.slots and info, "it goes on")
        assert moved.slots == (1 - bad,)
        assert (moved.failures, moved.interruptions) == (0, 0)
        assert "its device failed: 1 uncorrectable ECC error (NVML)" in str(trial.explain().events)
        [cordon] = _shown(client).cordons
        assert (cordon.device, cordon.uuid, cordon.quarantined) == (bad, UUIDS[bad], True)
        assert _shown(client).slots[bad].defect == "1 uncorrectable ECC error (NVML)"
        client.uncordon("gpus", [bad])
        until(lambda: not _shown(client).slots[bad].defect, "it is taken back")
        study.stop()


def _shown(client: Client) -> Worker:
    return next(worker for worker in client.workers() if worker.name == "gpus")
