"""What users are told at a study's end, for real: scripts that fail, and studies that are created again."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from command_line import headrace_command
from ready_home import furnish
from test_up_end_to_end import up

import headrace
from headrace import Client
from headrace.client import TrialInfo
from headrace.errors import InvalidFieldError
from headrace.home import address_in
from headrace.trial import read_checkpoint

pytestmark = pytest.mark.timeout(240)

STUDY = """
objective: {metric: loss, goal: minimize}
trial: {callable: PROGRAM:train}
space: {x: {type: categorical, values: [0, 1, 2]}}
sampler: {kind: grid}
policy: {kind: run_all}
trials: 3
steps: 2
"""
HALF_FAIL = """
def train(t):
    for step in t.steps():
        t.report(loss=1.0 + t.params["x"])
        if t.params["x"] != 2:
            print("about to divide")
            raise ZeroDivisionError(f"boom at {t.params['x']}\\nsecond line")
"""
ALL_FAIL_LATE = HALF_FAIL.replace("!= 2", "< 9")
ALL_NAN = """
def train(t):
    for step in t.steps():
        t.report(loss=float("nan"))
"""
FAIL_EARLY = """
import sys

def train(t):
    print("no GPU was found here", file=sys.stderr)
    sys.exit(3)
"""
KEEPS = """
import os
import signal

class Box:
    step = 0

    def state_dict(self):
        return {"step": self.step}

    def load_state_dict(self, state):
        self.step = state["step"]

def killed_once(step):
    if step == 5 and not os.path.exists("killed"):
        open("killed", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)

def train(t):
    box = Box()
    t.track(model=box)
    for step in t.steps():
        box.step = step
        killed_once(step)
        t.report(loss=abs(step - 3) + t.params["x"])
"""
KEEPS_FUSED = (
    KEEPS.partition("def train")[0].replace('killed"', 'killed-fused"')
    + """
from headrace import trial

class Group:
    def __init__(self):
        self.rows, self.next = {}, 0

    @property
    def ids(self):
        return list(self.rows)

    def add(self, members, states=None):
        ids = list(range(self.next, self.next + len(members)))
        for place, (number, one) in enumerate(zip(ids, members)):
            step = states[place]["model"]["step"] if states else 0
            self.rows[number] = {"x": one["x"], "step": step}
        self.next += len(members)
        return ids

    def drop(self, members):
        for number in members:
            del self.rows[number]

    def member_state(self, member):
        row = self.rows[member]
        return {"model": {"step": row["step"]}, "optimizer": {}, "settings": {"x": row["x"]}}

    def step(self):
        for row in self.rows.values():
            row["step"] += 1
            killed_once(row["step"])
        return [abs(row["step"] - 3) + row["x"] for row in self.rows.values()]

def train(bundle: trial.Bundle):
    group = Group()
    bundle.track(group=group)
    for _ in bundle.steps():
        bundle.report(loss=group.step())
"""
)
KEEPING = STUDY.replace("minimize}", "minimize, keep: best}").replace(
    "policy: {kind: run_all}\ntrials: 3\nsteps: 2", "policy: {kind: asha, eta: 3, rungs: [4, 8]}\ntrials: 3"
)
SAYS = """
class Box:
    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass

def train(t):
    t.track(box=Box())
    print("I am the WORD one")
    for step in t.steps():
        t.report(loss=1.0)
"""


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str


class Service:
    """A running `headrace up`, and commands against it."""

    def __init__(self, home: Path, folder: Path) -> None:
        self.home, self.folder = home, folder
        self.env = {**os.environ, "HEADRACE_ADDRESS": address_in(home) or "", "HEADRACE_HOME": str(home)}

    def cli(self, *arguments: str) -> Done:
        done = headrace_command(*arguments, folder=self.folder, env=self.env)
        return Done(done.returncode, done.stdout, done.stderr)

    def json(self, *arguments: str) -> Any:
        return json.loads(self.cli(*arguments, "--json").out)

    def run(self, name: str, program: str, study: str = STUDY, *options: str) -> Done:
        module = f"program_{name}"
        (self.folder / f"{module}.py").write_text(program)
        file = self.folder / f"{name}.yaml"
        file.write_text(f"name: {name}\n{study.replace('PROGRAM', module)}")
        return self.cli("run", str(file), *options)


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    folder = Path(tempfile.mkdtemp(prefix="hr-"))  # short: Unix sockets are created in it
    home = folder / "home"
    furnish(home)
    with up(home):
        yield Service(home, folder)
    shutil.rmtree(folder, ignore_errors=True)


def test_a_failed_trial_is_not_the_best_of_a_study(service: Service) -> None:
    done = service.run("half", HALF_FAIL)
    assert done.code == 0, done
    best = service.json("best", "half")
    assert (best["params"], best["reason"]) == ({"x": 2}, "completed")
    for said in (done.out, service.cli("show", "half").out):
        alike = "2 × ZeroDivisionError: boom at 0 and the like (trials 0, 1 on worker 'local')"
        assert f"2 of 3 trials failed: {alike}" in said, said
        assert "loss 3 at step" in said, said
    failures = service.json("show", "half")["failures"]
    assert [(one["trial"], one["worker"]) for one in failures] == [(0, "local"), (1, "local")]
    assert service.cli("attach", "half").code == 0
    assert "study completed: all trials have finished" in done.out
    assert "Study half completed: all trials have finished" in done.out


def test_where_only_failed_trials_have_values_it_says_so(service: Service) -> None:
    done = service.run("late", ALL_FAIL_LATE)
    assert done.code == 1, done
    assert "Study late failed: every trial that reported a result failed" in done.out
    assert "headrace why late 0" in done.out
    best = service.cli("best", "late")
    assert "failed after it had reported" in best.out + best.err
    assert service.cli("attach", "late").code == 1
    assert service.json("show", "late")["best"]["reason"] == "failed"


@pytest.mark.full
def test_a_study_of_nothing_but_nan_fails_with_a_remedy(service: Service) -> None:
    done = service.run("nan", ALL_NAN)
    assert done.code == 1, done
    assert "Study nan failed: no trial ended with a finite 'loss'" in done.out
    assert "NaN" in done.out
    assert service.json("show", "nan")["state"] == "failed"


@pytest.mark.full
def test_trials_that_fail_before_a_report_name_the_worker_and_their_last_words(service: Service) -> None:
    done = service.run("early", FAIL_EARLY)
    assert done.code == 1, done
    for said in (done.out, service.cli("show", "early").out):
        assert "(all on worker 'local')" in said, said
        assert "no GPU was found here" in said, said
    why = service.cli("why", "early", "0").out
    assert "local" in why
    assert "no GPU was found here" in why
    assert "local" in service.cli("show", "early", "0").out


@pytest.mark.full
def test_logs_of_a_study_that_is_made_again_are_its_own(service: Service) -> None:
    assert service.run("again", SAYS.replace("WORD", "first")).code == 0
    assert "I am the first one" in service.cli("logs", "again", "0").out
    old = service.json("show", "again", "0")["log_path"]
    assert service.cli("delete", "again", "--yes").code == 0
    assert service.run("again", SAYS.replace("WORD", "second")).code == 0
    said = service.cli("logs", "again", "0").out
    assert "I am the second one" in said
    assert "I am the first one" not in said
    assert service.json("show", "again", "0")["log_path"] != old  # the worker may have deleted it by now
    uris = {service.json("show", "again", str(number))["checkpoint"] for number in range(3)}
    folders = {uri.split("/studies/")[1].split("/")[0] for uri in uris}
    assert len(folders) == 1
    assert folders.pop().startswith("again-")


RACE = """
objective: {metric: loss, goal: minimize}
trial: {callable: PROGRAM:train}
space: {x: {type: categorical, values: [0, 1, 2, 3, 4, 5]}}
sampler: {kind: grid}
policy: {kind: asha, eta: 2, rungs: [1, 2, 4]}
trials: 4
steps: 4
retries: 0
until: {value: 0.1}
"""
FAILS_UNTIL_MENDED = """
from pathlib import Path

class Count:
    steps = 0

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state):
        self.steps = state["steps"]

def train(t):
    count, x = Count(), t.params["x"]
    t.track(count=count)
    for step in t.steps():
        count.steps += 1
        assert count.steps == step, "steps were lost"
        if x == 1 and step == 2 and not Path("mended").exists():
            raise ValueError("not mended yet")
        t.report(loss=(0.7 if x == 1 else 1 + x) / step)
"""


def test_a_study_that_is_extended_twice_retried_and_stopped_by_a_target(service: Service) -> None:
    done = service.run("race", FAILS_UNTIL_MENDED, RACE)
    assert done.code == 0, done
    assert "until loss ≤ 0.1" in done.out
    with Client(service.env["HEADRACE_ADDRESS"]) as client:
        study = client.study("race")
        (failed,) = study.trials("failed")
        assert (failed.params, failed.step) == ({"x": 1}, 1)
        assert study.extend(trials=2).state == "active"
        assert study.wait(60).counts.total == 6
        assert "with rungs at 1, 2, 4, 8" in service.cli("extend", "race", "--steps", "8").out
        final = study.wait(60)
        assert (final.state, final.best.step, final.best.params) == ("completed", 8, {"x": 0})
        (service.folder / "mended").touch()
        assert f"tries 1 trial again: {failed.number}." in service.cli("retry", "race").out
        final = study.wait(60)
        reason = f"trial {failed.number} has loss 0.1 (until: loss ≤ 0.1)"
        assert (final.state, final.detail) == ("completed", reason)
        trial = study.trial(failed.number).info()
        assert (trial.reason, trial.step, trial.failures) == ("stopped_early", 7, 0)
        assert [report.step for report in study.trial(failed.number).reports()] == [1, 2, 3, 4, 5, 6, 7]
        with pytest.raises(InvalidFieldError, match="has reached its target"):
            study.extend(trials=1)
    why = service.cli("why", "race", str(failed.number)).out
    assert "tried again by a user: from its checkpoint at step 1" in why
    assert reason in why
    assert reason in service.cli("show", "race").out
    replayed = service.cli("replay", "race")
    assert (replayed.code, "none differ." in replayed.out) == (0, True), replayed
    page = service.folder / "race.html"
    assert service.cli("report", "race", "-o", str(page)).code == 0
    assert "loss 0.1 (until: loss ≤ 0.1)" in page.read_text()


ENDING = """
objective: {metric: loss, goal: minimize}
trial: {callable: PROGRAM:train}
space: {x: {type: categorical, values: [0, 1]}}
sampler: {kind: grid}
policy: {kind: run_all}
trials: 2
steps: 4
retries: 0
"""
ENDING_WITH_RUNGS = """
objective: {metric: loss, goal: minimize}
trial: {callable: PROGRAM:train}
space: {x: {type: categorical, values: [0, 1, 2, 3]}}
sampler: {kind: grid}
policy: {kind: asha, eta: 2, rungs: [1, 2, 4]}
trials: 4
retries: 0
"""
ONE_CYCLE = """
from pathlib import Path

class OneCycleLR:
    def __init__(self, total_steps):
        self.total_steps, self.last_epoch = total_steps, 0

    def step(self):
        if self.last_epoch == self.total_steps:
            said = f"Tried to step {self.last_epoch + 1} times"
            raise ValueError(f"{said}. The specified number of total steps is {self.total_steps}")
        self.last_epoch += 1

    def state_dict(self):
        return dict(self.__dict__)

    def load_state_dict(self, state):
        self.__dict__.update(state)

def schedule_of(steps):
    return OneCycleLR(steps)
"""
TORCHS_ONE_CYCLE = """
from pathlib import Path

import torch

def schedule_of(steps):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1, momentum=0.9)
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps)
"""
STEPS_IT = """
def train(t):
    schedule = schedule_of(t.max_steps)
    t.track(schedule=schedule)
    for step in t.steps():
        if not Path("held").exists() or schedule.last_epoch < schedule.total_steps:
            schedule.step()
        t.state["step"] = step
        t.report(loss=(1 + t.params["x"]) / step)
"""


@pytest.mark.cases(1)
@pytest.mark.parametrize("program", [ONE_CYCLE, TORCHS_ONE_CYCLE], ids=["one of its kind", "PyTorch"])
def test_an_extension_past_the_end_of_a_schedule_warns_and_loses_no_result(
    service: Service, program: str
) -> None:
    name = "cycle" if program is ONE_CYCLE else "cycletorch"
    (service.folder / "held").unlink(missing_ok=True)
    assert service.run(name, program + STEPS_IT, ENDING).code == 0
    refused = service.cli("extend", name, "--steps", "8")
    assert (refused.code, service.json("show", name)["state"]) == (2, "completed")
    for said in (
        "2 trials track OneCycleLR as 'schedule', which ends at step 4: the learning rate is low there",
        "Add --yes",
    ):
        assert said in refused.err, refused
    with Client(service.env["HEADRACE_ADDRESS"]) as client:
        study = client.study(name)
        with pytest.warns(UserWarning, match="fails the trial; its result so far stays"):
            study.extend(steps=8)
        final = study.wait(120)
        assert_the_winner_is_there(service, name, study.trials())
        assert final.state == "completed"
        with pytest.warns(
            UserWarning, match="2 trials failed where their OneCycleLR 'schedule' ends, at step 4"
        ):
            assert study.retry().trials == (0, 1)
        study.wait(120)
        assert_the_winner_is_there(service, name, study.trials())
        (service.folder / "held").touch()
        assert service.cli("extend", name, "--steps", "12", "--yes").code == 0
        study.wait(120)
        best, other = study.trials()
        assert [(one.reason, one.step, one.counted_end) for one in (best, other)] == [
            ("completed", 12, None)
        ] * 2
        (end,) = best.earlier_ends
        assert (end.budget, end.score) == (4, 0.25)
        assert end.checkpoint is not None
        assert read_checkpoint(urlsplit(end.checkpoint.uri).path).state == {"step": 4}  # it was not deleted
        assert [report.step for report in study.trial(0).reports()] == list(range(1, 13))
        assert study.extension_warnings(steps=16) == []
    assert read_checkpoint(urlsplit(service.json("best", name)["checkpoint"]).path).state == {"step": 12}
    replayed = service.cli("replay", name)
    assert (replayed.code, "none differ." in replayed.out) == (0, True), replayed


@pytest.mark.full
def test_trials_that_the_study_cut_off_are_warned_about_and_keep_what_they_had(service: Service) -> None:
    (service.folder / "held").unlink(missing_ok=True)
    assert service.run("cutoff", ONE_CYCLE + STEPS_IT, ENDING_WITH_RUNGS).code == 0
    before = service.json("trials", "cutoff")
    stopped = [one for one in before if one["reason"] == "stopped_early"]
    assert stopped
    refused = service.cli("extend", "cutoff", "--steps", "8")
    assert "4 trials track OneCycleLR as 'schedule'" in refused.err, refused
    assert service.cli("extend", "cutoff", "--steps", "8", "--yes").code == 0
    with Client(service.env["HEADRACE_ADDRESS"]) as client:
        client.study("cutoff").wait(120)
        after = {one.number: one for one in client.study("cutoff").trials()}
    for one in before:
        now = after[one["trial"]]
        assert (now.score, now.score_step) == (one["score"], one["score_step"])
    further = [number for number in (one["trial"] for one in stopped) if after[number].best_step == 4]
    assert further, "one was continued to step 4, where it failed"
    said = " ".join(service.cli("trials", "cutoff").out.split())
    for number in further:
        better = f"{after[number].best_value:.5g} at step 4"
        assert f"; its better value, {better}, does not count because it failed after that" in said, said


COSINE_AND_POLYNOMIAL = """
import torch

def train(t):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    kinds = [torch.optim.lr_scheduler.CosineAnnealingLR, torch.optim.lr_scheduler.PolynomialLR]
    schedule = kinds[t.params["x"]](optimizer, t.max_steps)
    t.track(schedule=schedule)
    for step in t.steps():
        optimizer.step()
        schedule.step()
        t.report(loss=1 / step)
"""


@pytest.mark.full
def test_from_the_second_extension_on_the_warning_names_the_same_end(service: Service) -> None:
    assert service.run("twice", COSINE_AND_POLYNOMIAL, ENDING).code == 0
    with Client(service.env["HEADRACE_ADDRESS"]) as client:
        study = client.study("twice")
        for steps in (8, 12):
            said = " ".join(study.extension_warnings(steps=steps))
            assert (
                "tracks CosineAnnealingLR as 'schedule', which ends at step 4: the learning rate is `eta_min`"
                in said
            )
            assert (
                "tracks PolynomialLR as 'schedule', which ends at step 4: the learning rate stays 0" in said
            )
            assert service.cli("extend", "twice", "--steps", str(steps), "--yes").code == 0
            study.wait(120)
            assert {trial.step for trial in study.trials()} == {steps}
        refused = service.cli("extend", "twice", "--steps", "16")
    assert (refused.code, refused.err.count("which ends at step 4")) == (2, 2), refused


def assert_the_winner_is_there(service: Service, name: str, trials: list[TrialInfo]) -> None:
    """The trials failed after step 4, up to which both had completed."""
    assert [(one.reason, one.counts_as, one.step) for one in trials] == [("failed", "completed", 4)] * 2
    best = service.json("best", name)
    assert (best["trial"], best["score"], best["score_step"]) == (0, 0.25, 4)
    assert best["counted_end"]["budget"] == 4
    folder = service.folder / f"{name}-got"
    shutil.rmtree(folder, ignore_errors=True)
    got = service.json("checkpoint", "get", name, "--out", str(folder))
    assert (got["trial"], got["step"], read_checkpoint(folder).state) == (0, 4, {"step": 4})
    keeps = "keeps its result of step 4, from before it continued: it completed the full budget of 4 steps"
    for command in (("best",), ("show",), ("trials",), ("show", "0"), ("why", "0")):
        said = service.cli(command[0], name, *command[1:]).out
        assert keeps in " ".join(said.split()), (command, said)
    assert "ValueError: Tried to step 5 times" in service.cli("why", name, "0").out
    page = service.folder / f"{name}.html"
    assert service.cli("report", name, "-o", str(page)).code == 0
    assert keeps in page.read_text()


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("name", "program", "study"),
    [("keeps", KEEPS, KEEPING), ("fused", KEEPS_FUSED, KEEPING + "fuse: {most: 4}\n")],
    ids=["alone", "in a bundle"],
)
def test_the_checkpoint_of_the_best_value_outlives_a_pause_a_kill_and_cleaning(
    service: Service, name: str, program: str, study: str
) -> None:
    """Each trial is best at step 3, between its rungs. The process is killed at step 5, and the last rung is at 8."""
    done = service.run(name, program, study)
    assert done.code == 0, done
    best = service.json("best", name)
    assert (best["best_step"], best["step"], best["interruptions"] > 0) == (3, 8, True), best
    for trial in service.json("trials", name):
        assert (trial["best_step"], trial["best_value"]) == (3, trial["params"]["x"])
        (folder := service.folder / f"{name}-{trial['trial']}").mkdir()
        copied = service.json("checkpoint", "get", name, str(trial["trial"]), "--best", "--out", str(folder))
        saved = read_checkpoint(folder)
        assert (copied["step"], saved.step, saved.tracked["model"]) == (3, 3, {"step": 3})
        assert sorted(
            path.name.split("-")[2]
            for path in Path(_path(trial["checkpoint"])).parent.iterdir()
            if "-step" in path.name  # not its logs
        ) == [
            "step3",
            f"step{trial['step']}",
        ]
    assert headrace.load(name, address=service.env["HEADRACE_ADDRESS"])["model"] == {"step": 3}
    last = headrace.load(name, best["trial"], last=True, address=service.env["HEADRACE_ADDRESS"])
    assert last["model"] == {"step": 8}
    left = service.json("gc", name, "--dry-run")
    assert {one["what"] for one in left["leftovers"]} == {"checkpoints", "logs"}
    assert service.cli("gc", name, "--yes").code == 0
    assert service.json("gc", name, "--dry-run")["leftovers"] == []
    assert headrace.load(name, address=service.env["HEADRACE_ADDRESS"])["model"] == {"step": 3}


def _path(uri: str) -> str:
    return unquote(urlsplit(uri).path)
