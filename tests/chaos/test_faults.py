"""Whatever is killed in the middle of a study, the study ends by itself, and nothing is lost or charged.

Real processes, real signals, a real Postgres. The trials keep a journal of every answered report, which is
compared with what the scheduler stored. Their values are a chain in which every step needs the one before, so that
a resume from the wrong state shows.
"""

import random
import signal
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from cluster_site import Cluster, chain_spec, cluster, connect, until
from trial_journals import check_chain, check_journals

from headrace.client import Study
from headrace.client.model import StudyState

pytestmark = pytest.mark.full

RUNGS = (2, 6, 18)
LONGEST_RUNG = max(above - below for below, above in pairwise((0, *RUNGS)))


def kill_trial(site: Cluster) -> bool:
    found = site.trials()
    return bool(found) and site.kill(random.choice(found))


FAULTS: dict[str, Callable[[Cluster], bool]] = {
    "trial": kill_trial,
    "worker": lambda site: site.kill(site.child("worker")),
    "scheduler": lambda site: site.kill(site.child("scheduler")),
    # Postgres' immediate shutdown: no checkpoint, recovery at the next start.
    "postgres": lambda site: site.kill(site.child("postgres"), signal.SIGQUIT),
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("chaos")) as running:
        yield running


@pytest.mark.parametrize(
    "fault", [pytest.param("scheduler", marks=pytest.mark.smoke), "worker", "trial", "postgres"]
)
def test_a_study_survives_the_kill_of(fault: str, site: Cluster, tmp_path: Path) -> None:
    random.seed(fault)
    with connect(site) as client:
        study = client.create_study(f"chaos-{fault}", chain_spec(tmp_path / "journal", max_trials=9))

        def over() -> bool:
            return study.status().state is not StudyState.ACTIVE

        kills = 0
        for goal in (3, 15, 30):  # of 42 steps
            until(lambda goal=goal: study.status().steps_spent >= goal or over(), "progress", 120)
            kills += until(lambda: over() or FAULTS[fault](site), f"a {fault} to kill", 60)
        check(study, tmp_path / "journal")
        assert kills >= 2


def test_a_frozen_worker_is_fenced_and_its_late_reports_change_nothing(tmp_path: Path) -> None:
    with cluster(tmp_path, slots=1, lease_ttl_s=3) as site, connect(site) as client:
        study = client.create_study("fenced", chain_spec(tmp_path / "journal", max_trials=4, step_s=0.1))
        until(lambda: study.status().steps_spent >= 1, "progress", 120)
        worker = site.child("worker")
        assert worker is not None
        frozen = [worker, *worker.children(recursive=True)]
        for process in frozen:
            site.kill(process, signal.SIGSTOP)
        until(lambda: any(trial.interruptions for trial in study.trials()), "the lease to expire", 60)
        for process in reversed(frozen):
            site.kill(process, signal.SIGCONT)
        check(study, tmp_path / "journal", fenced=True)
        assert sum(trial.interruptions for trial in study.trials()) == 1


def check(study: Study, folder: Path, *, fenced: bool = False) -> None:
    """Compare what the study says with what its trials recorded."""
    info = study.wait(timeout_s=180)
    assert info.state is StudyState.COMPLETED, info.detail
    trials, reports = study.trials(), study.reports()
    check_journals(reports, folder, fenced=fenced)
    for trial in trials:
        assert trial.failures == 0, (trial.number, trial.detail)
        assert trial.outcome in ("completed", "stopped_early")
        mine = [report for report in reports if report.trial == trial.number]
        check_chain(trial.number, mine)
        lost = trial.steps_spent - max(report.step for report in mine)
        assert lost <= trial.interruptions * LONGEST_RUNG, (trial.number, lost)
