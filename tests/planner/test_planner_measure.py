"""`headrace plan … --measure`: a real scheduler, a real worker, processes over Gloo; and what is learnt."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from forked import Program
from plan_command import run
from ready_home import furnish

from headrace import Client
from headrace.cli.failure import CommandError
from headrace.client.machines import Slot, Worker
from headrace.errors import HeadraceError, InvalidFieldError
from headrace.ports import any_port
from headrace_services.planner import asking, catalogue
from headrace_services.planner.learning import learned, predicted_s
from headrace_services.planner.measuring import label, measure, study_of
from headrace_services.planner.plan import Plan
from headrace_torch.measuring import MeasureError, PlanToTime, check, plan_of
from headrace_torch.profiling import profile

HERE = Path(__file__).parent
pytestmark = pytest.mark.timeout(300)
CLUSTER: dict[str, Any] = {
    "peak_flops": 1e12,
    "memory_bytes": 4e9,
    "memory_bandwidth": 1e10,
    "link_bandwidth": 1e9,
    "network_bandwidth": 1e9,
    "devices_per_node": 2,
    "devices": 2,
}


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`headrace up` with an embedded Postgres and a worker of two CPU slots."""
    home = tmp_path_factory.mktemp("measure") / "home"
    furnish(home)
    words = ["up", "--home", str(home), "--port", "0", "--slots", "2"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE)}
    with (home.parent / "up.log").open("wb") as log:
        up = subprocess.Popen([sys.executable, "-m", "headrace.cli", *words], stdout=log, stderr=log, env=env)
    try:
        end = time.monotonic() + 120
        while not (home / "address").exists():
            assert up.poll() is None, (home.parent / "up.log").read_text()
            assert time.monotonic() < end, "headrace up"
            time.sleep(0.1)
        address = (home / "address").read_text().strip()
        with Client(address) as client:
            while not any(worker.connected for worker in client.workers()):
                assert time.monotonic() < end, "a worker"
                time.sleep(0.1)
        yield address
    finally:
        up.terminate()
        try:
            up.wait(60)
        except subprocess.TimeoutExpired:
            for child in psutil.Process(up.pid).children(recursive=True):
                child.kill()
            up.kill()
            up.wait()


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A plan's request: the profile of the small net, and two devices."""
    import measured_net

    net, sample = measured_net.make()
    profile(net, sample, micro_batches=(1, 2), repeats=2, out=tmp_path / "layers.json")
    (tmp_path / "two.json").write_text(json.dumps(CLUSTER))
    monkeypatch.chdir(HERE)
    return [str(tmp_path / "layers.json"), str(tmp_path / "two.json"), "--batch", "16"]


@pytest.mark.full
def test_a_shortlist_is_timed_and_the_fastest_is_the_plan(
    scheduler: str, words: list[str], tmp_path: Path
) -> None:
    """Two plans, one with data ranks and one with stages: both run on two processes, and the winner's files are
    written."""
    out = tmp_path / "plan"
    asked = ["--measure", "measured_net:measure", "--iterations", "3", "--address", scheduler]
    told = json.loads(run(*words, *asked, "--out", str(out), "--json"))
    measured = told["measured"]
    rows = measured["plans"]
    assert len(rows) == len(told["shortlist"]) >= 2
    assert {int(row["split"].split("s=")[1].split()[0]) for row in rows} == {1, 2}, (
        "one with stages, one without"
    )
    assert all(row["measured_s"] > 0 and not row["failure"] for row in rows), rows
    fastest = min(rows, key=lambda row: row["measured_s"])
    assert measured["winner"] == fastest["split"]
    degrees = json.loads((out / "plan.json").read_text())["degrees"]
    assert f"d={degrees['d']} " in fastest["split"]
    assert f" s={degrees['s']} " in fastest["split"]
    known = catalogue.calibration(out / "constants.json")
    assert known.gradients == measured["constants"]["gradients"]
    with Client(scheduler) as client:
        trials = client.study(measured["study"]).trials()
    assert [trial.step for trial in trials] == [4, 4], "one iteration to warm up, and three"
    again = json.loads(run(*words, "--constants", str(out / "constants.json"), "--json"))
    assert again["iteration_s"] > 0


@pytest.mark.full
def test_a_plan_that_fails_is_reported_and_the_others_count(scheduler: str, words: list[str]) -> None:
    text = run(*words, "--measure", "measured_net:half", "--iterations", "1", "--address", scheduler)
    assert "no stages here" in text
    assert "fastest: d=2" in text


@pytest.mark.full
def test_when_nothing_could_be_measured_the_error_says_why(scheduler: str, words: list[str]) -> None:
    with pytest.raises(HeadraceError, match="nothing works") as failed:
        run(*words, "--measure", "measured_never:measure", "--iterations", "1", "--address", scheduler)
    assert "headrace logs" in failed.value.remedy


@pytest.mark.full
def test_a_cluster_larger_than_any_worker_is_refused(scheduler: str, words: list[str]) -> None:
    with pytest.raises(
        InvalidFieldError, match="needs 16 slots of one worker, and the largest has 2"
    ) as failed:
        run(words[0], "a100-16", "--measure", "measured_net:measure", "--address", scheduler)
    assert [one.field for one in failed.value.violations] == ["measure"]


def test_a_comparison_measures_nothing(words: list[str]) -> None:
    with pytest.raises(CommandError, match="--measure"):
        run(*words, "--compare", "--measure", "measured_net:measure")


def plans(model: str = "gpt3-13b", cluster: str = "a100-64") -> list[Plan]:
    asked = asking.request(model, cluster, asking.Options(batch=64))
    return asking.search(asked, asking.method("exact"), None).near()


def worker(device: str, slots: int, *, connected: bool = True) -> Worker:
    return Worker(
        name="w",
        connected=connected,
        slots=tuple(Slot(index=i, device=device, memory_bytes=0, trial=None) for i in range(slots)),
        labels={},
        last_seen=None,
        version="",
    )


def test_the_study_is_a_grid_of_plans_one_after_the_other(tmp_path: Path) -> None:
    near = plans()
    made = study_of(near, "train:measure", 5, tmp_path, [worker("cpu", 64), worker("A100", 64)])
    assert made["space"]["split"]["values"] == [label(one) for one in near]
    assert len({label(one) for one in near}) == len(near)
    assert made["parallel"] == 1
    assert made["resources"] == {"gpus": 64, "processes": "per_slot"}
    told = json.loads(made["trial"]["env"]["PLAN_SHORTLIST"])
    for one in near:
        its = told[label(one)]
        assert its["boundaries"][-1] == len(one.request.model.layers)
        assert len(its["boundaries"]) == one.degrees.s + 1
        assert its["data"] * its["tensor"] * its["pipeline"] == 64
    cpus = study_of(
        near, "train:measure", 5, tmp_path, [worker("cpu", 64), worker("A100", 64, connected=False)]
    )
    assert cpus["resources"] == {"cpus": 64, "processes": "per_slot"}


def test_an_interruption_stops_the_study(tmp_path: Path) -> None:
    """The trials of an interrupted command no longer hold the slots."""

    class Interrupted:
        name = "plan-1"
        stopped = False

        def watch(self) -> Iterator[None]:
            raise KeyboardInterrupt

        def stop(self) -> None:
            self.stopped = True

    study = Interrupted()

    class FakeClient:
        def workers(self) -> list[Worker]:
            return [worker("cpu", 64)]

        def create_study(self, *_: object) -> Interrupted:
            return study

    with pytest.raises(KeyboardInterrupt):
        measure(
            FakeClient(),  # type: ignore[arg-type]
            plans(),
            "train:measure",
            iterations=1,
            folder=tmp_path,
            say=lambda _: None,
        )
    assert study.stopped


@pytest.mark.parametrize(("name", "factor"), [("gemm", 0.8), ("link", 0.5), ("gradients", 0.5)])
def test_constants_are_learnt_from_a_handful_of_plans(name: str, factor: float) -> None:
    """A constant is worse than assumed: the fit meets what was measured, and improves what was not."""
    near = plans()
    assert len(near) >= 3
    before = near[0].request.cluster.device.efficiencies
    changed: dict[str, Any] = {name: getattr(before, name) * factor}
    truth = replace(before, **changed)
    seconds = [predicted_s(one, truth) for one in near]
    assert predicted_s(near[0], before) == pytest.approx(near[0].simulated_s), "priced as planned"
    found = learned(near[:-1], seconds[:-1])
    for one, measured in zip(near[:-1], seconds[:-1], strict=True):
        assert predicted_s(one, found) == pytest.approx(measured, rel=0.02)
    was = abs(near[-1].simulated_s / seconds[-1] - 1)
    assert abs(predicted_s(near[-1], found) / seconds[-1] - 1) < 0.7 * was


def test_what_was_predicted_right_teaches_nothing() -> None:
    near = plans()
    before = near[0].request.cluster.device.efficiencies
    found = learned(near, [one.simulated_s for one in near])
    assert found.gradients == pytest.approx(before.gradients, rel=1e-3)
    assert found.gemm == pytest.approx(before.gemm, rel=1e-3)


@pytest.mark.full
@pytest.mark.parametrize(
    ("data", "pipeline", "optimizer", "micro_batches", "boundaries", "recomputed"),
    [
        (1, 2, 1, 1, [0, 2, 6], [1, 4]),
        (2, 2, 2, 4, [0, 4, 6], [1]),
        (4, 1, 2, 2, [0, 6], []),
    ],
)
def test_what_is_timed_is_the_training_of_the_whole_net(
    tmp_path: Path,
    data: int,
    pipeline: int,
    optimizer: int,
    micro_batches: int,
    boundaries: list[int],
    recomputed: list[int],
) -> None:
    """Stages, data ranks, sharded optimizer and recomputation train the parameters that one process trains."""
    told = {
        "data": data,
        "tensor": 1,
        "optimizer": optimizer,
        "pipeline": pipeline,
        "micro_batches": micro_batches,
        "expert": 1,
        "micro_batch": 2,
        "schedule": "1f1b",
        "boundaries": boundaries,
        "recomputed": recomputed,
    }
    port = any_port()
    world = data * pipeline
    shared = {
        "PLAN_SHORTLIST": json.dumps({"it": told}),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    ranks = [
        Program(
            [str(HERE / "measured_rank.py")],
            folder=tmp_path,
            env={**os.environ, **shared, "RANK": str(rank), "WORLD_SIZE": str(world), "OMP_NUM_THREADS": "1"},
            said=tmp_path / f"rank{rank}.log",
        )
        for rank in range(world)
    ]
    ended = [rank.wait() for rank in ranks]
    assert [code for code, _ in ended] == [0] * world, "\n".join(said for _, said in ended)
    assert all("as one process" in said for _, said in ended), ended


def test_a_plan_that_cannot_be_timed_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = PlanToTime(
        data=1,
        tensor=1,
        optimizer=1,
        pipeline=1,
        micro_batches=1,
        expert=1,
        micro_batch=1,
        schedule="1f1b",
        boundaries=(0, 6),
        recomputed=frozenset(),
    )
    check(plan, layers=6, processes=1)
    for wrong, words in (
        (replace(plan, tensor=2), "tensor=2"),
        (replace(plan, schedule="zero-bubble"), "zero-bubble"),
        (replace(plan, boundaries=(0, 7)), "6 layers, and the plan 7"),
        (replace(plan, data=2), "2 devices, and 1 processes"),
    ):
        with pytest.raises(MeasureError, match=words) as failed:
            check(wrong, layers=6, processes=1)
        assert failed.value.remedy
    monkeypatch.delenv("PLAN_SHORTLIST", raising=False)
    with pytest.raises(MeasureError, match="PLAN_SHORTLIST"):
        plan_of(None)  # type: ignore[arg-type]  # it is not looked at
