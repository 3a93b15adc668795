"""Real processes on fake GPUs: a gang that grows, a crash in the middle of it, preemption by checkpoint, shares."""

import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import headrace_command
from placement_site import PROGRAMS, Site, lines, site, spec, until
from unequal_study import previewed, unequal

from headrace import Client
from headrace.spec import Resources, StudySpec

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

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
    """A worker of two fake GPUs with NVLink between them."""
    with site(tmp_path_factory.mktemp("two")) as here:
        start_two(here)
        yield here


def start_two(here: Site) -> None:
    here.start_worker("w1", fake_gpus=2, fake_links="nvlink:2")


def growing(journal: Path) -> StudySpec:
    """A trial on a quarter of a GPU, on a whole one from step 2 on, and on two from step 4 on."""
    return spec(
        "gang:train",
        env={"JOURNAL": str(journal)},
        policy=STOPPING,
        resources={"gpu_milli": 250, "processes": "per_slot"},
        elastic={"grants": [{"from_step": 2, "slots": 1}, {"from_step": 4, "slots": 2}]},
    )


GROWN = {step: (0.25, 1) if step <= 2 else (1, 1) if step <= 4 else (1, 2) for step in range(1, 9)}
"""By step: the share of each GPU, and the number of ranks."""


def losses(noted: list[dict[str, Any]]) -> dict[tuple[int, int], set[float]]:
    """All computed losses, by step and rank."""
    found: dict[tuple[int, int], set[float]] = {}
    for line in noted:
        found.setdefault((line["step"], line["rank"]), set()).add(line["loss"])
    return found


def why(here: Site, study: str, trial: int) -> str:
    """The output of `headrace why`."""
    return headrace_command("--address", here.address, "why", study, str(trial)).stdout


def of(name: str) -> str:
    """The rows of a study."""
    return f"study_id = (SELECT id FROM study WHERE name = '{name}')"


def test_a_gang_over_gloo_grows_at_rungs_from_a_share_of_a_gpu_to_two(two: Site) -> None:
    journal = two.journal("gang")
    two.create("gang", growing(journal))
    two.finished("gang")
    noted = lines(journal)
    assert {line["step"]: (line["share"], line["world"]) for line in noted} == GROWN
    cores = len(os.sched_getaffinity(0))  # each of the two GPUs brings half of them
    cores_of_a_rank = {(0.25, max(1, cores // 8)), (1, max(1, cores // 2))}
    assert {(line["share"], line["cpus"]) for line in noted} == cores_of_a_rank
    assert all(line["present"] == line["world"] for line in noted)
    assert sorted(line["rank"] for line in noted if line["step"] == 8) == [0, 1]
    assert two.rows(f"SELECT step, interruptions FROM trial WHERE {of('gang')}") == [(8, 0)]
    held = (
        "SELECT slots, milli FROM lease JOIN grant_part USING (grant_id) JOIN slot_grant g ON g.id = grant_id"
        f" WHERE lease.{of('gang')} ORDER BY attempt"
    )
    assert two.rows(held) == [([0], 250), ([0], 1000), ([0, 1], 1000)]
    ((speeds,),) = two.rows("SELECT standing -> 'speeds' FROM study WHERE name = 'gang'")
    assert set(speeds) == {"fake GPU /250", "fake GPU", "fake GPU (NVLink) x2"}
    assert "slots 0, 1 are joined by NVLink" in why(two, "gang", 0)


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


def test_kills_in_the_middle_of_the_growth_and_a_pause_lose_one_rung_at_most_and_change_no_bit(
    two: Site,
) -> None:
    journal = two.journal("torn")
    two.create("torn", growing(journal))

    def granted(attempt: str, size: int) -> Any:
        held = f"SELECT attempt FROM lease l JOIN slot_grant g ON g.id = grant_id WHERE l.live AND l.{of('torn')}"
        return two.rows(f"{held} AND slot_count * milli >= {size} AND attempt {attempt}")

    until(lambda: granted("= 2", 1000), "a whole GPU")
    two.kill_worker("w1")
    start_two(two)
    until(lambda: granted("> 2", 2000), "two GPUs")
    with Client(two.address) as client:
        client.study("torn").pause()
        two.kill_worker("w1")
        start_two(two)
        until(lambda: not granted("> 2", 0), "the end of the lease")
        client.study("torn").resume()
    two.finished("torn")
    ((step, spent, failures),) = two.rows(f"SELECT step, steps_spent, failures FROM trial WHERE {of('torn')}")
    assert (step, failures) == (8, 0)
    assert spent <= 8 + 2 + 4, "more than the two rungs that were under way was lost"
    noted = lines(journal)
    assert {line["step"]: (line["share"], line["world"]) for line in noted} == GROWN
    assert losses(noted) == losses(lines(two.journal("gang"))), "not what the undisturbed gang computed"


def test_two_studies_of_one_name_in_two_projects_share_a_worker_and_end_with_their_own_results(
    two: Site,
) -> None:
    marks = {"vision": 1.0, "speech": 2.0}
    pausing = {"kind": "asha", "eta": 2, "rungs": [4, 8]}
    with Client(two.address, project="vision") as vision, Client(two.address, project="speech") as speech:
        clients = {"vision": vision, "speech": speech}
        for project, client in clients.items():
            env = {"MARK": str(marks[project])}
            client.create_study("twin", spec("twin:train", env=env, policy=pausing, max_trials=2))
        live = (
            "SELECT s.project FROM lease l JOIN study s ON s.id = l.study_id WHERE l.live AND s.name = 'twin'"
        )
        until(lambda: {project for (project,) in two.rows(live)} == set(marks), "both on the worker at once")
        vision.study("twin").pause()
        until(lambda: ("vision",) not in two.rows(live), "the pause of one")
        assert speech.study("twin").status().state.value in ("active", "completed"), "the other one goes on"
        vision.study("twin").resume()
        for project, client in clients.items():
            done = client.study("twin").wait(timeout_s=60)
            assert (done.state.value, done.project) == ("completed", project)
            assert done.best is not None
            assert done.best.metrics["loss"] == marks[project]
            (log,) = {Path(trial.log_path).parent.name for trial in client.study("twin").trials()}
            assert log == f"twin-{done.uid}"
    assert two.rows(
        "SELECT sum(failures), max(attempt) > 1 FROM trial WHERE study_id IN "
        "(SELECT id FROM study WHERE name = 'twin')"
    ) == [(0, True)]


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
            env = {"STEP_S": "0.8"}  # long compared with the start of a process, which is the cost
            here.create(name, spec("walk:train", env=env, weight=weight, max_trials=500, max_steps=3))

        def used() -> dict[str, float]:
            return {share.study: share.gpu_seconds for share in client.shares()}

        held = {"heavy": 3.0, "light": 1.0}
        until(lambda: {share.study: share.gpus for share in client.shares()} == held, "three slots and one")
        # The first one had all four for a rung, and the other is compensated for that: shares are right over time.
        ratios: list[float] = []
        right = pytest.approx(3.0, rel=0.05)
        while len(ratios) < 2 or (ratios[-2:] != [right, right] and len(ratios) < 5):
            before = used()
            until(lambda b=before: sum(used().values()) - sum(b.values()) >= 20, "twenty seconds of GPU time")
            after = used()
            ratios.append((after["heavy"] - before["heavy"]) / (after["light"] - before["light"]))
        assert ratios[-2:] == [right, right], ratios
        shown = headrace_command(
            "--address", here.address, "cluster", env={**os.environ, "COLUMNS": "160"}
        ).stdout
        assert re.search(r"w1 +0 +fake GPU .* 1 +(heavy|light)/\d+", shown), shown
        assert re.search(r"heavy +0 +3 +\d", shown), shown
