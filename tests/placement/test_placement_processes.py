"""Real processes on fake GPUs: a gang that grows, a crash in the middle of it, preemption by checkpoint, shares."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from placement_site import lines, site, spec, until

from headrace import Client

pytestmark = pytest.mark.timeout(300)

STOPPING = {"kind": "asha", "variant": "stopping", "eta": 2, "rungs": [2, 4, 8]}


def test_a_gang_over_gloo_grows_from_one_slot_to_two_at_a_rung(tmp_path: Path) -> None:
    with site(tmp_path, w1=2) as here:
        journal = here.journal("gang")
        study = spec(
            "gang:train",
            env={"JOURNAL": str(journal)},
            policy=STOPPING,
            resources={"gpus": 1, "processes": "per_slot"},
            elastic={"grants": [{"from_step": 2, "slots": 2}]},
        )
        here.create("gang", study)
        here.finished("gang")
        noted = lines(journal)
        worlds = {line["step"]: line["world"] for line in noted}
        assert worlds == {1: 1, 2: 1, 3: 2, 4: 2, 5: 2, 6: 2, 7: 2, 8: 2}
        assert all(line["present"] == line["world"] for line in noted)
        assert sorted(line["rank"] for line in noted if line["step"] == 8) == [0, 1]
        assert here.rows("SELECT step, interruptions FROM trial") == [(8, 0)]
        assert here.rows("SELECT slots FROM lease ORDER BY epoch") == [([0],), ([0, 1],)]


def test_a_crash_in_the_middle_of_a_resize_loses_one_rung_at_most(tmp_path: Path) -> None:
    with site(tmp_path, w1=2) as here:
        journal = here.journal("torn")
        study = spec(
            "gang:train",
            env={"JOURNAL": str(journal)},
            policy=STOPPING,
            resources={"gpus": 1, "processes": "per_slot"},
            elastic={"grants": [{"from_step": 2, "slots": 2}]},
        )
        here.create("torn", study)
        until(lambda: here.rows("SELECT 1 FROM lease WHERE epoch = 2 AND live"), "the larger grant")
        here.kill_worker("w1")
        here.start_worker("w1", fake_gpus=2)
        here.finished("torn")
        ((step, spent, interruptions, failures),) = here.rows(
            "SELECT step, steps_spent, interruptions, failures FROM trial"
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
            "SELECT s.name, t.step, t.interruptions, t.failures, t.epoch FROM trial t JOIN study s ON s.id = t.study_id"
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
