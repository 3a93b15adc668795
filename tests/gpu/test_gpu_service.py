"""`headrace up` on a machine with a GPU: the card is found, and trials share it, each within its budget of memory.

The same on a machine without one, with a worker that offers a fake GPU.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import log
from pathlib import Path
from typing import Any

import pytest
import shared_trial
from shared_trial import TOGETHER

from headrace import Client
from headrace.home import address_in
from headrace_services.up import launch

START_S, STUDY_S = 120, 180
BUDGET = 1 << 30
EXAMPLE = Path(__file__).parents[2] / "examples" / "gpu"
SMALLER = {
    "card": {"trials: 48": "trials: 16"},
    "fake": {"trials: 48": "trials: 3", "values: [64]": "values: [2]", "rungs: [1, 3, 9]": "rungs: [1, 2]"},
}
"""What is changed in the example's studies, so that they fit the time."""
FAKE = pytest.param("fake GPU", marks=pytest.mark.full)
CARD = pytest.param("GPU", marks=pytest.mark.gpu)


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A running `headrace up`."""

    home: Path
    client: Client
    fake: bool


@contextmanager
def process(home: Path, name: str, *words: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A command of Headrace that ends with this process, whatever ends it; its output is in the home."""
    command = launch.command((sys.executable, "-m", "headrace.cli", *words), death_signal=signal.SIGTERM)
    environ = {**os.environ, "HEADRACE_HOME": str(home)}
    environ.pop("HEADRACE_ADDRESS", None)
    with home.with_suffix(f".{name}").open("wb") as output:
        running = subprocess.Popen(command, stdout=output, stderr=output, env=environ)
    try:
        yield running
    finally:
        running.terminate()
        running.wait(60)


def wait_for(holds: Callable[[], Any], what: str, home: Path, running: "subprocess.Popen[bytes]") -> Any:
    deadline = time.monotonic() + START_S
    while not (found := holds()):
        if time.monotonic() > deadline or running.poll() is not None:
            said = "\n".join(path.read_text() for path in home.parent.glob(f"{home.name}.*"))
            pytest.fail(f"{what} within {START_S} s; the output was:\n{said[-3000:]}")
        time.sleep(0.2)  # it says so in a file
    return found


@pytest.fixture(scope="module", params=[FAKE, CARD])
def service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    home, fake = tmp_path_factory.mktemp("up") / "home", request.param == "fake GPU"
    with ExitStack() as stack:
        only = ("--no-worker",) if fake else ()
        up = stack.enter_context(process(home, "up", "up", "--home", str(home), "--port", "0", *only))
        address = wait_for(lambda: address_in(home), "headrace up serves", home, up)
        if fake:
            words = ("worker", "--scheduler", address, "--name", "local", "--fake-gpus", "1")
            stack.enter_context(process(home, "worker", *words))
        client = stack.enter_context(Client(address))
        wait_for(lambda: any(one.connected for one in client.workers()), "a worker is connected", home, up)
        yield Service(home=home, client=client, fake=fake)


@pytest.mark.parametrize("service", [CARD], indirect=True)
def test_up_finds_the_card(service: Service) -> None:
    import pynvml

    pynvml.nvmlInit()
    (worker,) = service.client.workers()
    assert len(worker.slots) <= pynvml.nvmlDeviceGetCount()
    for slot in worker.slots:
        card = pynvml.nvmlDeviceGetHandleByUUID(slot.uuid)
        assert slot.device == pynvml.nvmlDeviceGetName(card)
        assert slot.memory_bytes == pynvml.nvmlDeviceGetMemoryInfo(card).total
        assert slot.defect == ""
    assert worker.slots


def test_doctor_finds_nothing_wrong(service: Service) -> None:
    environ = {**os.environ, "HEADRACE_HOME": str(service.home)}
    environ.pop("HEADRACE_ADDRESS", None)
    command = [sys.executable, "-m", "headrace.cli", "doctor", "--json"]
    ran = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=120)
    findings = json.loads(ran.stdout)
    assert [one for one in findings if one["level"] == "fail"] == []
    (gpus,) = (one["text"] for one in findings if one["what"] == "GPUs")
    assert ("none on this machine" in gpus) == service.fake


def test_trials_share_a_gpu_and_one_over_its_budget_fails_alone(service: Service, tmp_path: Path) -> None:
    shutil.copy(shared_trial.__file__, tmp_path)
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    (tmp_path / "study.yaml").write_text(
        f"""
name: shared
objective: {{metric: loss, goal: minimize}}
trial: {{callable: shared_trial:train}}
space:
  number: {{type: categorical, values: {list(range(TOGETHER))}}}
  folder: {{type: categorical, values: ["{meeting}"]}}
sampler: {{kind: grid}}
policy: {{kind: run_all}}
trials: {TOGETHER}
steps: 8
retries: 0
early_failures: {TOGETHER}
resources: {{gpus: {1 / TOGETHER}, gpu_memory_bytes: {BUDGET}}}
"""
    )
    study = service.client.create_study("shared", tmp_path / "study.yaml", warn=False)
    study.wait(STUDY_S)
    trials = {trial.params["number"]: trial for trial in study.trials()}
    told = {number: (trial.reason, trial.step, trial.detail) for number, trial in trials.items()}
    greedy = trials.pop(0)
    assert greedy.reason == "failed", told
    assert "OutOfMemoryError" in greedy.detail + greedy.log_tail, told
    assert greedy.step in (3, 4), (
        "it took a quarter of its budget in each step, so the fourth or fifth is too much"
    )
    for trial in trials.values():
        assert (trial.reason, trial.step) == ("completed", 8), told
        assert trial.metrics["met"] == TOGETHER
        assert trial.metrics["budget"] == BUDGET


@pytest.mark.parametrize("way", ["plain", "shared", "fused"])
def test_the_example_trains_with_a_gpu_a_share_and_fused(
    service: Service, tmp_path: Path, way: str, figure: Callable[[float], None]
) -> None:
    pytest.importorskip("sklearn", reason="the example's data come with scikit-learn")
    shutil.copy(EXAMPLE / "train.py", tmp_path)
    text = (EXAMPLE / f"{way}.yaml").read_text()
    for whole, small in SMALLER["fake" if service.fake else "card"].items():
        assert whole in text
        text = text.replace(whole, small)
    (tmp_path / "study.yaml").write_text(text)
    began = time.monotonic()
    study = service.client.create_study(f"gpu-{way}", tmp_path / "study.yaml", warn=False)
    study.wait(STUDY_S)
    figure(time.monotonic() - began)
    trials = study.trials()
    told = [(trial.number, trial.reason, trial.step, trial.detail) for trial in trials]
    assert {trial.reason for trial in trials} <= {"completed", "stopped_early"}, told
    best = study.best()
    assert best is not None
    assert 0 < best.value < log(10), "better than guessing"
