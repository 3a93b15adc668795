"""Ask/tell loops while the scheduler and Postgres are killed: answered reports are stored once, and work continues."""

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from cluster_site import Cluster, cluster, connect, until

from headrace.client import Study
from headrace.client.model import StudyState
from headrace.spec import StudySpec

pytestmark = pytest.mark.full

TRIALS = 60
LOOPS = 4
STEPS = (1, 2, 3, 4, 5, 6, 7, 8)

FAULTS: dict[str, Callable[[Cluster], bool]] = {
    "scheduler": lambda site: site.kill(site.child("scheduler")),
    "postgres": lambda site: site.kill(site.child("postgres"), signal.SIGQUIT),
}


def spec() -> StudySpec:
    return StudySpec.model_validate(
        {
            "objective": {"metric": "loss", "goal": "minimize"},
            "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
            "policy": {"kind": "asha", "eta": 2, "rungs": [2, 4, 8], "variant": "stopping"},
            "max_trials": TRIALS,
            "max_steps": STEPS[-1],
            "seed": 1,
        }
    )


class Loop(threading.Thread):
    """One loop over trials. It records every report that was answered."""

    def __init__(self, study: Study) -> None:
        super().__init__(daemon=True)
        self.study = study
        self.answered: list[tuple[int, int]] = []
        self.ended: list[int] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            for asked in self.study.ask_all():
                for step in STEPS:
                    time.sleep(0.01)
                    decision = asked.report(step, loss=asked.number / TRIALS + 1 / step)
                    self.answered.append((asked.number, step))
                    if not decision.goes_on:
                        break
                else:
                    asked.complete()
                self.ended.append(asked.number)
        except BaseException as error:  # noqa: BLE001  # the test says what it was
            self.error = error


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One cluster; ask/tell needs no worker."""
    with cluster(tmp_path_factory.mktemp("asked"), worker=False) as running:
        yield running


# While one loop waits for a scheduler that comes back, another may learn that it holds the last trial.
@pytest.mark.filterwarnings("ignore:Study asked-.* has no trial to run now")
@pytest.mark.parametrize("fault", FAULTS)
def test_loops_survive_the_kill_of(fault: str, site: Cluster) -> None:
    rng = random.Random(fault)  # for the moments of the kills
    with connect(site) as client:
        study = client.create_study(f"asked-{fault}", spec())
        loops = [Loop(study) for _ in range(LOOPS)]
        for loop in loops:
            loop.start()
        kills = 0
        for part in range(1, 5):
            goal = part * TRIALS // 6
            until(lambda goal=goal: sum(len(loop.ended) for loop in loops) >= goal, "progress", 120)
            time.sleep(rng.uniform(0.0, 0.2))
            until(lambda: FAULTS[fault](site), f"a {fault} to kill", 60)
            kills += 1
        for loop in loops:
            loop.join(180)
            assert not loop.is_alive(), "a loop hangs"
            assert loop.error is None
        assert study.status().state is StudyState.COMPLETED
        stored = Counter((report.trial, report.step) for report in study.reports())
        answered = Counter(report for loop in loops for report in loop.answered)
        assert stored == answered, "what was answered is stored, once, and nothing else is"
        assert sorted(number for loop in loops for number in loop.ended) == list(range(TRIALS))
        assert all(trial.interruptions == 0 for trial in study.trials())
        assert kills == 4
