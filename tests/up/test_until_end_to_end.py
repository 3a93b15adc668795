"""`until`, for real: the trials that run when their study ends save their state, and run to their own end."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from ready_home import furnish
from test_outcomes_end_to_end import Service
from test_up_end_to_end import up

import headrace
from headrace import Client

pytestmark = [pytest.mark.full, pytest.mark.timeout(240)]

STUDY = """
objective: {metric: loss, goal: minimize}
trial: {callable: PROGRAM:train, grace_s: GRACE}
space: {x: {type: categorical, values: [0, 1]}}
sampler: {kind: grid}
policy: {kind: run_all}
trials: 2
steps: 100000
until: {value: 5}
"""
# Trial 0 has the value once both train; trial 1 trains slower.
PROGRAM = """
import time
from pathlib import Path

class Box:
    step = 0

    def state_dict(self):
        return {"step": self.step}

    def load_state_dict(self, state):
        self.step = state["step"]

def train(t):
    box = Box()
    t.track(box=box)
    for step in t.steps():
        Path(f"NAME-trains-{t.number}").touch()
        time.sleep(0.02 if t.number == 0 else SLOW)
        box.step = step
        t.report(loss=4.5 if t.number == 0 and Path("NAME-trains-1").exists() else 20.0)
    Path(f"NAME-after-{t.number}").write_text(f"{box.step} {t.ended}")
"""


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    folder = Path(tempfile.mkdtemp(prefix="hr-"))  # short: Unix sockets are created in it
    home = folder / "home"
    furnish(home)
    with up(home, slots=2):
        yield Service(home, folder)
    shutil.rmtree(folder, ignore_errors=True)


def run(service: Service, name: str, *, grace: float, slow: float) -> None:
    program = PROGRAM.replace("NAME", name).replace("SLOW", str(slow))
    done = service.run(name, program, STUDY.replace("GRACE", str(grace)))
    assert done.code == 0, done
    assert "loss 4.5 (until: loss ≤ 5)" in done.out
    assert "takes; the study ended before" in done.out


def test_what_follows_the_loop_runs_and_the_last_state_can_be_loaded(service: Service) -> None:
    run(service, "closes", grace=30, slow=0.5)
    with Client(service.env["HEADRACE_ADDRESS"]) as client:
        study = client.study("closes")
        for number in (0, 1):
            trial = study.trial(number).info()
            assert trial.reason == "stopped_early"
            left = service.folder / f"closes-after-{number}"
            assert left.exists(), "it ended by itself"
            assert left.read_text() == f"{trial.step} True"
            state = headrace.load("closes", number, address=service.env["HEADRACE_ADDRESS"])
            assert state == {"box": {"step": trial.step}}
        assert study.trial(0).reports()[-1].metrics == {"loss": 4.5}, "it heard in answer to this report"
        assert headrace.load("closes", address=service.env["HEADRACE_ADDRESS"])["box"]["step"] > 0
    assert "cancel" not in service.cli("why", "closes", "1").out
    replayed = service.cli("replay", "closes")
    assert (replayed.code, "none differ." in replayed.out) == (0, True), replayed


def test_a_trial_that_does_not_report_within_the_grace_is_ended(service: Service) -> None:
    run(service, "stays", grace=1, slow=3600)
    with Client(service.env["HEADRACE_ADDRESS"]) as client:
        assert [trial.reason for trial in client.study("stays").trials()] == ["stopped_early"] * 2
    assert (service.folder / "stays-after-0").exists()
    assert not (service.folder / "stays-after-1").exists()
