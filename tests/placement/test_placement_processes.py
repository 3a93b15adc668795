"""Real processes on fake GPUs: a gang that grows, a crash in the middle of it, preemption by checkpoint, shares."""

from pathlib import Path

import pytest
from placement_site import lines, site, spec

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
