"""Population-based training under kill -9: each exploit happens once and completely, and the lineage is what took
place.

The last state of every member lists the rate of each of its steps, whoever computed it. It is compared with the
schedule that follows from the stored lineage. A clone without its mutation, a mutation without its clone, or an
exploit done twice would leave a different list.
"""

import json
import random
from pathlib import Path

import pytest
from cluster_site import PROGRAMS, cluster, connect, until

from headrace.client.lineage import schedule
from headrace.client.model import StudyState
from headrace.spec import StudySpec

pytestmark = pytest.mark.full

MEMBERS, STEPS, INTERVAL = 8, 8, 2


def drift_spec(journal: Path) -> StudySpec:
    journal.mkdir(parents=True)
    return StudySpec.model_validate(
        {
            "objective": {"metric": "score", "goal": "minimize"},
            "space": {"rate": {"type": "float", "low": 0.01, "high": 1.0}},
            "policy": {"kind": "pbt", "interval": INTERVAL, "quantile": 0.25},
            "template": {
                "callable": "drift:train",
                "working_dir": str(PROGRAMS),
                "env": {"DRIFT_JOURNAL": str(journal)},
            },
            "max_trials": MEMBERS,
            "max_steps": STEPS,
            "seed": 4,
            "max_retries": 0,
        }
    )


def test_every_exploit_is_whole_and_happens_once(tmp_path: Path) -> None:
    chance = random.Random(1)
    with cluster(tmp_path, slots=4) as site, connect(site) as client:
        study = client.create_study("population", drift_spec(tmp_path / "journal"))

        def over() -> bool:
            return study.status().state is not StudyState.ACTIVE

        kills = 0
        for goal in range(6, MEMBERS * STEPS, 12):
            until(lambda goal=goal: study.status().steps_spent >= goal or over(), "progress", 120)
            victim = chance.choice(["scheduler", "scheduler", "worker"])
            kills += until(lambda name=victim: over() or site.kill(site.child(name)), "something to kill", 60)
        assert kills >= 4
        assert study.wait(timeout_s=240).state is StudyState.COMPLETED
        trials = {trial.number: trial for trial in study.trials()}

    copied = [(number, exploit.rung) for number, trial in trials.items() for exploit in trial.lineage]
    assert len(copied) == len(set(copied))
    assert len(copied) >= 4
    assert all(trial.failures == 0 for trial in trials.values())
    for number in trials:
        told = [
            [step, stretch.params["rate"]]
            for stretch in schedule(trials, number)
            for step in range(stretch.start + 1, stretch.end + 1)
        ]
        assert json.loads((tmp_path / "journal" / f"{number}.json").read_text()) == told
