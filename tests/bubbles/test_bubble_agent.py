"""The agent on stages that the test plays: what it learns, permits and forbids, and which trials it stops."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from stage_site import MS, Stage, until

from headrace_services.bubble_agent import backstop, drawing
from headrace_services.bubble_agent.agent import LEASE_NS, Agent
from headrace_services.bubble_agent.budget import DISABLED
from headrace_services.bubble_agent.convert import timeline_message
from headrace_services.bubble_agent.hints import Progress, Waiting, advanced, hinted
from headrace_services.bubble_agent.job import MOST_PEERS, PeerSaid
from headrace_services.bubble_agent.stage import StretchSeen
from headrace_torch.bubble_shm import AT, Alarm, Awaits, StageFile, started_ticks
from headrace_torch.bubble_shm.layout import TABLE

PLACE = ("gpt", 0, 0)


class Trial:
    """A process beside a stage, which may ignore its gate."""

    def __init__(self, program: str) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self.process.stdout.readline()

    def occupy(self, stage: Stage, *, waiting: bool = True) -> None:
        stage.words[AT["trial_started"]] = started_ticks(self.process.pid) or 0
        stage.words[AT["trial_since"]] = time.monotonic_ns()
        stage.words[AT["trial_quantum"]] = stage.words[AT["trial_usual"]] = MS
        stage.words[AT["trial_waiting"]] = waiting
        stage.words[AT["trial_pid"]] = self.process.pid

    def state(self) -> str:
        return Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0]

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def sleeper() -> Iterator[Trial]:
    made = Trial("import time\nprint(flush=True)\ntime.sleep(60)")
    yield made
    made.end()


@pytest.fixture
def runner() -> Iterator[Trial]:
    made = Trial(
        "import os, time\nos.nice(10)\nprint(flush=True)\nend = time.monotonic() + 60\n"
        "while time.monotonic() < end: pass"
    )
    yield made
    made.end()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "place"


@pytest.fixture
def stage(folder: Path) -> Stage:
    made = Stage(folder)
    made.words[AT["lease"]] = made.words[AT["permitted"]] = 0  # there was no agent yet
    return made


@pytest.fixture
def agent(stage: Stage, folder: Path) -> Iterator[Agent]:
    made = Agent(folder)
    stage.hook.begin_step(0, 4)
    made.scan()
    yield made
    made.close()


def is_open(stage: Stage, step: int) -> bool:
    """Whether a window of a further step opens the gate."""
    stage.hook.begin_step(step, 4)
    stage.hook.begin_forward(8)
    stage.hook.begin_wait(Awaits.BACKWARD)
    told = bool(stage.says("gate_epoch") & 1)
    stage.close()
    return told


def test_a_window_is_learnt_then_opened_and_closed_again_without_the_agent(
    agent: Agent, stage: Stage
) -> None:
    stage.play(4)
    agent.look()
    assert stage.words[TABLE] == 0
    stage.play(4, first=4)
    agent.look()
    assert 3 * MS <= stage.words[TABLE] <= 40 * MS
    steps = [step for step in range(100, 140) if is_open(stage, step)]
    assert len(steps) > 30, "but for control steps, each window opens the gate"
    assert stage.says("lease") > time.monotonic_ns()
    stage.words[AT["lease"]] = time.monotonic_ns()  # what the passage of time does when the agent is dead
    assert not is_open(stage, 200)


def test_short_windows_are_skipped(agent: Agent, stage: Stage) -> None:
    stage.play(10, window_s=0)
    agent.look()
    assert stage.words[TABLE] == 0
    assert "no window is long enough" in agent.stages[PLACE].problem


def test_other_micro_batches_close_the_gate_until_they_are_learnt(agent: Agent, stage: Stage) -> None:
    stage.play(8)
    agent.look()
    assert any(is_open(stage, step) for step in range(20, 23))
    stage.play(1, first=30, micro_batches=8)
    assert not any(is_open(stage, step) for step in range(31, 34)), "before the agent has seen it"
    agent.scan()
    agent.look()
    stage.play(1, first=35, micro_batches=8)
    assert agent.stages[PLACE].stage.registration.micro_batches in (4, 8)
    assert stage.words[TABLE] == 0, "and after it has seen it"
    stage.play(8, first=40, micro_batches=8)
    agent.look()
    assert stage.words[TABLE] > 0


def test_an_alarm_of_the_primary_disables_at_once(agent: Agent, stage: Stage) -> None:
    stage.play(8)
    agent.look()
    assert stage.says("permitted")
    stage.hook.alarm(Alarm.MEMORY)
    agent.look()
    assert not stage.says("permitted")
    assert agent.jobs["gpt"].level_index == DISABLED
    assert agent.jobs["gpt"].controller.why == "disabled: stage 0 ran out of memory"


def test_ranks_that_disagree_open_no_gate(agent: Agent, stage: Stage, folder: Path) -> None:
    other = Stage(folder, stage=1, stages=3)
    other.hook.begin_step(0, 4)
    stage.play(8)
    agent.scan()
    agent.look()
    assert not stage.says("permitted")
    assert "stage 1 of replica 0 says 3 stages" in agent.jobs["gpt"].disagreement()


def test_other_agents_of_a_job_bind_this_one(agent: Agent, stage: Stage) -> None:
    stage.play(8)
    said = PeerSaid(stages=2, micro_batches=4, level=1, control_share=0.5)
    agent.hear("b", ("gpt", 0, 1), said, step=3, forwards=1, backwards=0)
    agent.hear("c", ("another", 0, 1), said, step=3, forwards=1, backwards=0)
    agent.look()
    assert stage.says("control_share") == 1 << 15
    assert stage.words[TABLE] <= 20 * MS
    assert set(agent.jobs) == {"gpt"}
    agent.hear("b", ("gpt", 0, 1), replace(said, level=60), step=3, forwards=1, backwards=0)
    agent.look()
    assert not stage.says("permitted")
    agent.jobs["gpt"].expire(time.monotonic_ns() + 1)
    agent.look()
    assert stage.says("permitted"), "an agent that is silent is forgotten"


def test_what_an_agent_invents_fills_no_memory(agent: Agent, stage: Stage) -> None:
    """The holder of a worker's certificate may claim anything: endless other agents, replicas and stages."""
    stage.play(2)
    said = PeerSaid(stages=2, micro_batches=4)
    for number in range(MOST_PEERS + 100):
        agent.hear(f"a{number}", ("gpt", number, number), said, step=3, forwards=1, backwards=0)
    agent.hear("a0", ("gpt", 0, 1), said, step=3, forwards=1, backwards=0)
    assert len(agent.jobs["gpt"].peers) == MOST_PEERS
    assert set(agent._afar) == {("gpt", 0, 1)}, "stages beside none here give no hints"


def test_a_rank_that_ends_or_starts_again_is_followed(agent: Agent, stage: Stage, folder: Path) -> None:
    stage.play(6)
    again = Stage(folder)
    again.hook.begin_step(0, 4)
    agent.scan()
    agent.look()
    assert agent.stages[PLACE].stage.steps == 0
    again.hook.detach("the script asked for it")
    agent.scan()
    assert agent.jobs == {}


def test_a_file_that_cannot_be_read_is_reported_once(
    agent: Agent, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "old.0.0.bubble").write_bytes(b"x" * 10)
    agent.scan()
    agent.scan()
    assert [record.getMessage().count("one release") for record in caplog.records] == [1]


# Hints.

WAITS = Waiting(epoch=3, step=7, slot=1, began=100, kind="backward", micro_batch=2)
FAR_OFF = Progress(step=7, forwards=4, forward_began=10, backwards=3, backward_began=150)


@pytest.mark.parametrize(
    ("neighbour", "told"),
    [
        (FAR_OFF, 150),
        (replace(FAR_OFF, backwards=2), None),
        (replace(FAR_OFF, backwards=4), None),
        (replace(FAR_OFF, step=6), None),
    ],
)
def test_a_hint_is_the_beginning_of_the_awaited_pass(neighbour: Progress, told: int | None) -> None:
    assert hinted(WAITS, neighbour) == told
    forward = replace(WAITS, kind="forward", micro_batch=3)
    assert (WAITS.neighbour, forward.neighbour) == (1, -1)
    assert hinted(forward, replace(FAR_OFF, forwards=4)) == 10


def test_progress_from_afar_counts_from_its_arrival() -> None:
    first = advanced(None, step=7, forwards=1, backwards=0, at=100)
    again = advanced(first, step=7, forwards=1, backwards=1, at=200)
    assert (again.forward_began, again.backward_began) == (100, 200)
    assert advanced(again, step=8, forwards=1, backwards=1, at=300).forward_began == 300


@pytest.mark.parametrize("afar", [False, True])
def test_a_neighbours_hint_is_written_for_the_open_window(
    afar: bool, agent: Agent, stage: Stage, folder: Path, sleeper: Trial
) -> None:
    sleeper.occupy(stage)
    if not afar:
        other = Stage(folder, stage=1)
        other.hook.begin_step(0, 4)
        agent.scan()
    agent.look()
    for step in range(60):
        stage.hook.begin_step(step, 4)
        if not afar:
            other.hook.begin_step(step, 4)
        stage.hook.begin_wait(Awaits.BACKWARD)
        time.sleep(0.002)
        if afar:
            said = PeerSaid(stages=2, micro_batches=4)
            agent.hear("b", ("gpt", 0, 1), said, step=step, forwards=1, backwards=1)
        else:
            other.hook.begin_backward()
        agent.glance()
        time.sleep(0.003)
        if stage.says("hint_epoch"):
            assert stage.says("hint_epoch") == stage.says("gate_epoch")
            assert 0 < stage.says("hint_deadline") - stage.says("wait_began") < 60 * MS
            stage.close()
            return
        stage.close()
        agent.look()
    pytest.fail("no hint was written")


# The backstop.


def test_a_trial_that_ignores_its_gate_is_stopped_continued_evicted_and_then_kept_out(
    agent: Agent, stage: Stage, runner: Trial, folder: Path
) -> None:
    stage.play(8)
    runner.occupy(stage, waiting=False)
    agent.look()
    for offence in range(1, backstop.LAST + 1):
        until(lambda now=agent: now.glance() and runner.state() == "T")  # type: ignore[misc]
        assert stage.says("offences") == offence
        assert bool(stage.says("evict")) == (offence >= backstop.OFFENCES)
        if offence == 1:  # the agent is killed here, and starts again
            agent = Agent(folder)
            agent.scan()
            agent.look()
            assert agent.stages[PLACE].watchman.record.stopped
        for step in range(100 * offence, 100 * offence + 9):
            stage.permit()
            stage.hook.begin_step(step, 4)
            stage.hook.begin_wait(Awaits.BACKWARD)
            agent.glance()
            state = runner.state()
            stage.close()
            if state != "T":
                break
        assert (state == "T") == (offence == backstop.LAST)
    agent.close()


def test_a_trial_that_is_late_but_kept_off_the_core_is_no_offender(
    agent: Agent, stage: Stage, sleeper: Trial
) -> None:
    sleeper.occupy(stage, waiting=False)
    agent.look()
    end = time.monotonic() + 0.05
    while time.monotonic() < end:
        agent.glance()
    assert agent.stages[PLACE].watchman.record == backstop.Record()
    assert sleeper.state() == "S"


def test_on_a_gpu_time_counts(folder: Path, sleeper: Trial) -> None:
    stage = Stage(folder, device="GPU-1")
    agent = Agent(folder)
    agent.scan()
    sleeper.occupy(stage, waiting=False)
    agent.look()
    until(lambda: agent.glance() and sleeper.state() == "T")
    agent.close()


def test_a_trial_that_takes_its_gate_and_never_comes_to_a_point_is_stopped(
    agent: Agent, stage: Stage, runner: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner.occupy(stage)
    stage.words[AT["trial_quantum"]] = 0
    agent.look()
    agent.glance()
    assert runner.state() != "T", "it may prepare"
    monkeypatch.setattr("headrace_services.bubble_agent.link.STARTING_NS", 0)
    until(lambda: agent.glance() and runner.state() == "T")


def test_another_process_of_the_same_number_is_never_signalled(
    agent: Agent, stage: Stage, runner: Trial
) -> None:
    runner.occupy(stage, waiting=False)
    stage.words[AT["trial_started"]] += 1
    agent.look()
    for _ in range(50):
        agent.glance()
        time.sleep(0.001)
    assert runner.state() == "R"
    assert agent.stages[PLACE].trial is None


def test_work_of_trials_one_after_the_other_adds_up(agent: Agent, stage: Stage, sleeper: Trial) -> None:
    agent.look()
    for harvested in (3, 5):
        sleeper.occupy(stage)
        stage.words[AT["trial_harvested"]] = harvested
        agent.look()
        stage.words[AT["trial_harvested"]] += 10  # after the last check
        stage.words[AT["trial_pid"]] = 0
        agent.look()
    agent.look()
    assert agent.stages[PLACE].harvested == 3 + 10 + 5 + 10


def test_a_trial_that_dies_leaves_nothing_behind(agent: Agent, stage: Stage, runner: Trial) -> None:
    runner.occupy(stage, waiting=False)
    agent.look()
    until(lambda: agent.glance() and runner.state() == "T")
    runner.process.send_signal(signal.SIGKILL)
    runner.process.wait()
    agent.look()
    assert agent.stages[PLACE].trial is None
    assert not agent.glance()


def test_the_lease_is_short(agent: Agent, stage: Stage) -> None:
    agent.look()
    assert 0 < stage.says("lease") - time.monotonic_ns() <= LEASE_NS
    agent.close()
    file = StageFile.open(stage.file.path)
    assert file.words[AT["lease"]] == file.words[AT["permitted"]] == 0
    file.close()


def test_a_quantum_longer_than_every_window_is_reported(agent: Agent, stage: Stage, sleeper: Trial) -> None:
    sleeper.occupy(stage)
    stage.words[AT["trial_usual"]] = 500 * MS
    stage.play(8)
    agent.look()
    assert "the trial needs 500.0 ms from one point to the next" in agent.stages[PLACE].problem


def test_memory_that_trials_may_use_is_reported_after_five_steps(agent: Agent, stage: Stage) -> None:
    stage.play(3)
    agent.look()
    assert stage.says("memory") == 0
    stage.play(3, first=3)
    agent.look()
    agent.look()
    assert stage.says("memory") > 2**20


def test_a_late_quantum_is_drawn_apart_from_the_work_before(agent: Agent, stage: Stage) -> None:
    stage.play(6)
    agent.look()
    now = time.monotonic_ns()
    link = agent.stages[PLACE].link
    link.stretches.append(StretchSeen(began=now - 50 * MS, ended=now - 10 * MS, quanta=9, late=30 * MS))
    told = timeline_message(agent, agent.jobs["gpt"], now=now, seconds=0.1)
    spans = {
        drawing._name(span): (round(span.began, 3), round(span.ended, 3)) for span in told.tracks[0].spans
    }
    assert spans["9 quanta"] == (0.05, 0.06)
    assert spans["late"] == (0.06, 0.09)
    assert {"control step 5", "waits (slot 0)"} <= set(spans)
    events = {event["name"]: event for event in drawing.chrome_trace(told)["traceEvents"]}
    assert (events["9 quanta"]["tid"], events["9 quanta"]["dur"], events["late"]["dur"]) == (
        2,
        10_000,
        30_000,
    )
    assert drawing.svg(told).count("<rect") > 10
