"""Projects and their quotas in a simulation: the production rule, on a virtual clock."""

from collections import Counter

from simulated_studies import flat, make_spec

from headrace_services.scheduler.core.lifecycle import StudyState
from headrace_services.scheduler.simulator.cluster import GIB, Machine, machines
from headrace_services.scheduler.simulator.engine import Simulation
from headrace_services.scheduler.simulator.study import StudySimulation


def test_a_project_holds_at_most_its_quota_and_others_the_rest() -> None:
    spec = make_spec(max_trials=18)
    projects = ("vision", "vision", "speech")
    studies = [
        StudySimulation.of(
            spec, flat([float(n) for n in range(18)]), name="s", project=project, number=number
        )
        for number, project in enumerate(projects, start=1)
    ]
    Simulation(machines(6), studies, quotas={"vision": 2}).run()
    assert {study.rows.study.state for study in studies} == {StudyState.COMPLETED}
    most = Counter[str]()
    stays = [
        (project, stay)
        for project, study in zip(projects, studies, strict=True)
        for stay in study.record.stays
    ]
    for at in {stay.start_s for _, stay in stays}:
        now = Counter(project for project, stay in stays if stay.start_s <= at < stay.end_s)
        most |= now
    assert most == {"vision": 2, "speech": 4}


def test_slots_in_bubbles_are_beside_the_quota() -> None:
    gpu = {"gpus": 1, "gpu_memory_bytes": 16 * GIB}
    spec = make_spec(resources=gpu, bubbles=True, template={"callable": "train:train", "working_dir": "/tmp"})
    study = StudySimulation.of(spec, flat([float(n) for n in range(9)]), project="vision")
    own = Machine(id=1, name="own", model="H200", slots=4)
    job = Machine(id=2, name="job", model="H200", slots=4, owner="gpt", duty=0.25, memory_bytes=20 * GIB)
    Simulation((own, job), [study], quotas={"vision": 1}).run()
    assert study.rows.study.state is StudyState.COMPLETED
    most = Counter[int]()
    for at in {stay.start_s for stay in study.record.stays}:
        most |= Counter(s.worker for s in study.record.stays if s.start_s <= at < s.end_s)
    assert most == {1: 1, 2: 4}
