"""`headrace launch slurm` against a real Slurm with two nodes, and a scheduler that requires certificates."""

import pytest
from slurm_site import SlurmSite

from headrace.client.model import StudyState

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]


def test_two_workers_come_up_for_a_study_and_leave_when_idle(site: SlurmSite) -> None:
    study = site.study("comes", max_trials=6)
    loop = site.loop()
    site.until(lambda: len(site.headrace.connected()) == 2, "two workers connect")
    assert {name.rsplit("-", 1)[1] for name in site.headrace.connected()} == {"0", "1"}
    with site.headrace.client as client:
        info = client.study(study.name).wait(timeout_s=120)
    assert (info.state, info.counts.completed, info.counts.failed) == (StudyState.COMPLETED, 6, 0)
    site.until_empty()
    assert loop.poll() is None
    left = [file.name for file in (site.root / "launch").iterdir() if file.suffix in (".token", ".ask")]
    assert left == [], "tokens are deleted once they are used"
    with site.headrace.client as client:
        workers = client.workers()
    assert not [worker.name for worker in workers if worker.connected]
