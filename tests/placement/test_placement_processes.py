"""Real processes on fake GPUs: a gang that grows, a crash in the middle of it, preemption by checkpoint, shares."""

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from placement_site import PROGRAMS, Site, lines, site, spec, until
from unequal_study import previewed, unequal

from headrace import Client
from headrace.spec import Resources, StudySpec

pytestmark = pytest.mark.timeout(300)

BY_BATCH = Resources.model_validate(
    {
        "by": {
            "parameter": "batch_size",
            "from_value": True,
            "rows": [{"value": 1, "gpus": 1}, {"value": 61, "gpus": 2}],
        }
    }
)
STOPPING = {"kind": "asha", "variant": "stopping", "eta": 2, "rungs": [2, 4, 8]}


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A worker of two fake GPUs."""
    with site(tmp_path_factory.mktemp("two"), w1=2) as here:
        yield here


def growing(journal: Path) -> StudySpec:
    """A gang of one slot, and of two from step 2 on."""
    return spec(
        "gang:train",
        env={"JOURNAL": str(journal)},
        policy=STOPPING,
        resources={"gpus": 1, "processes": "per_slot"},
        elastic={"grants": [{"from_step": 2, "slots": 2}]},
    )


def of(name: str) -> str:
    """The rows of a study."""
    return f"study_id = (SELECT id FROM study WHERE name = '{name}')"


def test_a_gang_over_gloo_grows_from_one_slot_to_two_at_a_rung(two: Site) -> None:
    journal = two.journal("gang")
    two.create("gang", growing(journal))
    two.finished("gang")
    noted = lines(journal)
    worlds = {line["step"]: line["world"] for line in noted}
    assert worlds == {1: 1, 2: 1, 3: 2, 4: 2, 5: 2, 6: 2, 7: 2, 8: 2}
    assert all(line["present"] == line["world"] for line in noted)
    assert sorted(line["rank"] for line in noted if line["step"] == 8) == [0, 1]
    assert two.rows(f"SELECT step, interruptions FROM trial WHERE {of('gang')}") == [(8, 0)]
    held = f"SELECT slots FROM lease JOIN grant_part USING (grant_id) WHERE {of('gang')} ORDER BY attempt"
    assert two.rows(held) == [([0],), ([0, 1],)]


def test_trials_take_as_much_as_their_configuration_says(two: Site) -> None:
    """The short form of the real half of `benchmarks/scheduler/unequal.py`."""
    study = unequal(6, policy="run_all", steps=2, seed=4, folder=PROGRAMS)
    study = study.model_copy(update={"resources": BY_BATCH})
    with Client(two.address) as client:
        said = previewed(client.preview(study).sizes)
    two.create("unequal", study)
    two.finished("unequal")
    ran = two.rows(
        "SELECT (params ->> 'batch_size')::int, cardinality(slots) FROM trial JOIN lease USING (study_id, number) "
        f"JOIN grant_part USING (grant_id) WHERE {of('unequal')}"
    )
    assert all(slots == (1 if batch < 61 else 2) for batch, slots in ran)
    assert Counter(slots for _, slots in ran) == said
    assert set(said) == {1, 2}


def test_a_crash_in_the_middle_of_a_resize_loses_one_rung_at_most(two: Site) -> None:
    journal = two.journal("torn")
    two.create("torn", growing(journal))
    until(
        lambda: two.rows(f"SELECT 1 FROM lease WHERE {of('torn')} AND attempt = 2 AND live"), "a larger grant"
    )
    two.kill_worker("w1")
    two.start_worker("w1", fake_gpus=2)
    two.finished("torn")
    ((step, spent, interruptions, failures),) = two.rows(
        f"SELECT step, steps_spent, interruptions, failures FROM trial WHERE {of('torn')}"
    )
    assert (step, failures) == (8, 0)
    assert interruptions >= 1
    assert spent <= 8 + 2, "more than the rung that was under way was lost"
    noted = lines(journal)
    assert {line["world"] for line in noted if line["step"] > 2} == {2}
    assert {line["world"] for line in noted if line["step"] <= 2} == {1}


def test_a_higher_priority_preempts_by_checkpoint_and_the_curves_are_the_same_to_the_bit(
    tmp_path: Path,
) -> None:
    with site(tmp_path, w1=1) as here:
        curves = {}
        for name in ("alone", "low"):
            journal = here.journal(name)
            study = spec("walk:train", env={"JOURNAL": str(journal), "STEP_S": "0.15"}, max_steps=30)
            here.create(name, study)
            if name == "low":
                until(lambda: len(lines(here.journal("low"))) >= 5, "five steps of the trial")
                here.create("high", spec("walk:train", priority=5, max_steps=3))
                here.finished("high")
            here.finished(name)
            curves[name] = [(line["step"], line["at"]) for line in lines(journal)]
        moved = here.rows(
            "SELECT s.name, e.kind FROM event e JOIN study s ON s.id = e.study_id WHERE e.kind = 'trial_preempted'"
        )
        assert moved == [("low", "trial_preempted")]
        trials = here.rows(
            "SELECT s.name, t.step, t.interruptions, t.failures, t.attempt FROM trial t"
            " JOIN study s ON s.id = t.study_id"
            " ORDER BY s.id"
        )
        assert trials == [("alone", 30, 0, 0, 1), ("low", 30, 0, 0, 2), ("high", 3, 0, 0, 1)]
        assert here.rows(
            "SELECT count(*) FROM study h JOIN study l ON l.name = 'low'"
            " WHERE h.name = 'high' AND h.end_time < l.end_time"
        ) == [(1,)]
        assert dict(curves["low"]) == dict(curves["alone"])
        assert all(dict(curves["alone"])[step] == at for step, at in curves["low"]), (
            "a step came out differently"
        )


def test_two_studies_with_weights_of_three_to_one_share_the_fake_gpus_so(tmp_path: Path) -> None:
    with site(tmp_path, w1=4) as here, Client(here.address) as client:
        for name, weight in (("heavy", 3), ("light", 1)):
            env = {"STEP_S": "0.4"}
            here.create(name, spec("walk:train", env=env, weight=weight, max_trials=500, max_steps=3))

        def used() -> dict[str, float]:
            return {share.study: share.gpu_seconds for share in client.shares()}

        held = {"heavy": 3.0, "light": 1.0}
        until(lambda: {share.study: share.gpus for share in client.shares()} == held, "three slots and one")
        # Whichever was first had all four for a rung, and the other is given that back: shares are right over time.
        ratios: list[float] = []
        right = pytest.approx(3.0, rel=0.05)
        while len(ratios) < 2 or (ratios[-2:] != [right, right] and len(ratios) < 5):
            before = used()
            until(lambda b=before: sum(used().values()) - sum(b.values()) >= 20, "twenty seconds of GPU time")
            after = used()
            ratios.append((after["heavy"] - before["heavy"]) / (after["light"] - before["light"]))
        assert ratios[-2:] == [right, right], ratios
        shown = subprocess.run(
            [sys.executable, "-m", "headrace.cli", "--address", here.address, "cluster"],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "COLUMNS": "160"},
        ).stdout
        assert re.search(r"w1 +0 +fake GPU +1 +(heavy|light)/\d+", shown), shown
        assert re.search(r"heavy +0 +3 +\d", shown), shown
