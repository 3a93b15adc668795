"""Model-based samplers behind a real scheduler process: several objectives, constraints, waiting for a proposal."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from headrace import Client
from headrace.cli import main
from headrace.client.model import TerminationReason, TrialInfo
from headrace.client.sync import Study
from headrace.errors import InvalidFieldError
from headrace.report import build_report
from headrace.spec import StudySpec
from headrace.v1 import study_pb2 as pb
from headrace.v1.study_pb2_grpc import StudyServiceStub

pytestmark = pytest.mark.full

SERVING = "headrace scheduler: serving on "
SPACE = {
    "x": {"type": "float", "low": 0.0, "high": 1.0},
    "y": {"type": "float", "low": 0.0, "high": 1.0},
}


@pytest.fixture
def address(database_url: str) -> Iterator[str]:
    """The address of a scheduler of its own."""
    command = [sys.executable, "-m", "headrace.cli", "scheduler", "--listen", "127.0.0.1:0"]
    command += ["--sampler-processes", "1", "--database-url", database_url]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert server.stdout is not None
        yield server.stdout.readline().strip().removeprefix(SERVING)
    finally:
        server.terminate()
        assert server.wait(60) == 0
        if server.stdout is not None:
            server.stdout.close()


@pytest.fixture
def client(address: str) -> Iterator[Client]:
    with Client(address, timeout_s=60) as made:
        yield made


def spec_of(**changes: Any) -> StudySpec:
    fields: dict[str, Any] = {
        "objective": {"metric": "error", "goal": "minimize"},
        "space": SPACE,
        "sampler": {"kind": "tpe", "startup_trials": 3},
        "policy": {"kind": "run_all"},
        "max_trials": 20,
        "max_steps": 1,
        "seed": 2,
    }
    return StudySpec.model_validate({**fields, **changes})


def measure(x: float, y: float) -> dict[str, float]:
    """A trade-off between two objectives along x. A small y takes memory, and y makes both objectives worse."""
    return {"error": x + y, "speed": x - y, "memory": 2 - 4 * y}


def visible(page: str) -> str:
    """The words on a page, without its scripts, and the names of the figures' traces."""
    words = re.sub(r"<script.*?</script>|<style.*?</style>|<[^>]*>", " ", page, flags=re.DOTALL)
    return " ".join([words, *re.findall(r'"name":"([^"]*)"', page)])


def play(study: Study) -> None:
    while (asked := study.ask(client_id="loop", timeout_s=60)) is not None:
        asked.report(1, **measure(float(asked.params["x"]), float(asked.params["y"])))


def dominates(left: TrialInfo, right: TrialInfo) -> bool:
    a, b = left.metrics, right.metrics
    at_least = a["error"] <= b["error"] and a["speed"] >= b["speed"]
    return at_least and (a["error"] < b["error"] or a["speed"] > b["speed"])


def test_several_objectives_come_to_a_front(
    client: Client, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = spec_of(
        sampler={"kind": "nsga2", "population": 6},
        further_objectives=[{"metric": "speed", "goal": "maximize"}],
        constraints=[{"metric": "memory", "at_most": 1}],
        baseline={"x": 0.5, "y": 0.5},
        enqueued=[{"x": 0.5, "y": 0.01}],
    )
    study = client.create_study("trade-off", spec)
    play(study)
    info = study.status()
    trials = study.trials()
    feasible = [t for t in trials if t.metrics["memory"] <= 1 and not t.baseline]
    expected = [t.number for t in feasible if not any(dominates(other, t) for other in feasible)]
    assert sorted(t.number for t in info.front) == expected
    assert [t.objective_values["error"] for t in info.front] == sorted(
        t.objective_values["error"] for t in info.front
    )
    assert study.front() == info.front
    enqueued = next(t for t in trials if t.params == {"x": 0.5, "y": 0.01})
    assert enqueued.feasible is False
    assert enqueued.best_value is None
    assert {t.generation for t in trials} >= {None, 0, 1}

    def run(*arguments: str) -> str:
        with pytest.raises(SystemExit) as left:
            main(["--address", address, *arguments])
        assert left.value.code in (0, None)
        return capsys.readouterr().out

    assert [row["trial"] for row in json.loads(run("best", "trade-off", "--json"))] == [
        t.number for t in info.front
    ]
    table = run("best", "trade-off").splitlines()
    assert table[0].split() == ["TRIAL", "error", "speed", "PARAMETERS"]
    assert len(table) == 1 + len(info.front)
    shown = run("show", "trade-off")
    assert f"Pareto front  {len(info.front)} trial" in shown
    assert "that no other trial beats in every objective" in shown
    listed = run("trials", "trade-off").splitlines()
    heads = [head for head in listed[0].split("  ") if head]
    assert [head.strip() for head in heads[4:7]] == ["error", "speed", "PARETO FRONT"]
    assert listed[1].split()[6] == "yes"
    assert " infeasible " in "\n".join(listed)
    page = build_report(study)
    assert "<h2>Pareto front</h2>" in page
    assert "figure-front-0" in page
    assert not re.search(r"(?<!Pareto )\bfront\b(?!-)", shown + visible(page), re.IGNORECASE)
    assert json.loads(run("studies", "--json"))[0]["front"] == []  # a list of studies computes no fronts


def test_an_infeasible_trial_is_never_the_best(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    spec = spec_of(
        constraints=[{"metric": "memory", "at_most": 1}],
        enqueued=[{"x": 0.0, "y": 0.0}, {"x": 0.4, "y": 0.6}],
        max_trials=12,
    )
    study = client.create_study("bounded", spec)
    play(study)
    trials = study.trials()
    best = study.best()
    assert best is not None
    assert best.best_value is not None
    assert trials[0].metrics["error"] == 0.0 < best.best_value
    assert best.best_value == min(t.metrics["error"] for t in trials if t.metrics["memory"] <= 1)
    assert trials[0].feasible is False
    assert best.feasible is True


@pytest.mark.parametrize("sampler", ["random", pytest.param("tpe", marks=pytest.mark.full)])
def test_a_loop_of_ones_own_says_what_is_infeasible(
    client: Client, capsys: pytest.CaptureFixture[str], sampler: str
) -> None:
    name = f"no-sense-{sampler}"
    count = 60 if sampler == "tpe" else 30
    study = client.create_study(name, spec_of(sampler={"kind": sampler}, max_trials=count))
    refused = set()
    for asked in study.ask_all():
        if asked.params["x"] < 0.5:
            refused.add(asked.number)
            assert asked.infeasible("x is small").number == asked.number
            continue
        step, decision = asked.step, None
        while decision is None or decision.goes_on:
            step += 1
            # The values do not show which are infeasible. With the best value at their border, half would be.
            decision = asked.report(step, error=asked.params["x"] * 5 % 1.0, speed=1.0)
    trials = study.trials()
    ends = {t.number for t in trials if t.reason is TerminationReason.INFEASIBLE}
    assert refused == ends
    assert 0 < len(refused) < count
    assert not any(t.failures for t in trials)
    assert study.status().counts.infeasible == len(refused)
    best = study.best()
    assert best is not None
    assert best.number not in refused
    if sampler == "tpe":
        assert len([n for n in refused if n >= 30]) <= 10, "it keeps away: at random it would be 15"

    def run(*args: str) -> str:
        with pytest.raises(SystemExit) as left:
            main(["--address", client.address, *args])
        assert left.value.code in (0, None)
        return capsys.readouterr().out

    one = str(min(refused))
    assert "infeasible" in run("trials", name)
    assert "x is small" in run("show", name, one)
    assert "x is small" in run("why", name, one)
    assert f"{len(refused)} infeasible" in visible(build_report(study))


def test_a_suggestion_waits_for_its_proposal(client: Client, address: str) -> None:
    """One call, one answer: the first proposal of a model comes from a process that has not started yet."""
    client.create_study("waits", spec_of(sampler={"kind": "nsga2", "population": 4}))
    with grpc.insecure_channel(address) as channel:
        stub = StudyServiceStub(channel)  # type: ignore[no-untyped-call]  # generated
        request = pb.SuggestTrialRequest(study="studies/waits", client_id="c", request_id="only-once")
        first = stub.SuggestTrial(request, timeout=60)
        assert first.HasField("trial")
        assert stub.SuggestTrial(request, timeout=60) == first


def test_a_warm_start_needs_a_study(client: Client) -> None:
    with pytest.raises(InvalidFieldError) as refused:
        client.create_study("late", spec_of(warm_start={"study": "nowhere"}))
    (violation,) = refused.value.violations
    assert violation.field == "warm_start.study"
    assert "headrace studies" in violation.remedy
