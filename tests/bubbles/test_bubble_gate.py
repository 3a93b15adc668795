"""The gate: its points in a trial's step change no bit, and work is done only in windows."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from stage_site import FAR, MS, Stage, until
from torch import nn

from headrace_torch import hydro
from headrace_torch.bubble_shm import AT, Alarm, StepKind, started_ticks
from headrace_torch.bubbles import Gate, GateError, join, watch
from headrace_torch.bubbles.gate import PATIENCE


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path / "place")


def net() -> nn.Module:
    torch.manual_seed(5)
    layers = [
        nn.Linear(8, 300),
        nn.BatchNorm1d(300),
        nn.ReLU(inplace=True),
        nn.Dropout(0.1),
        nn.Linear(300, 300),
    ]
    return nn.Sequential(*layers, nn.ReLU(), nn.Linear(300, 1))


OPTIMIZERS: list[Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = [
    lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=0.01),
    lambda params: torch.optim.Adam(params, lr=0.01, amsgrad=True),
    lambda params: torch.optim.AdamW([{"params": params[:2], "lr": 0.1}, {"params": params[2:]}], lr=0.01),
    lambda params: torch.optim.AdamW(params, lr=0.01, fused=True),
    lambda params: torch.optim.RMSprop(params, lr=0.01, foreach=True),
    lambda params: torch.optim.Rprop(params),
    lambda params: torch.optim.LBFGS(params, max_iter=3),
]


def trained(
    gate: Gate | None,
    make: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
    *,
    late: bool = False,
    steps: int = 4,
) -> list[torch.Tensor]:
    """Every parameter and loss of a short training."""
    model = net()
    optimizer = make(list(model.parameters()))
    if gate is not None and not late:
        watch(gate, model, optimizer)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    if gate is not None and late:
        watch(gate, model, optimizer)
    losses = []
    for step in range(steps):
        x = torch.randn(16, 8, generator=torch.Generator().manual_seed(step))

        def closure(x: torch.Tensor = x) -> torch.Tensor:
            optimizer.zero_grad()
            loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
            loss.backward()
            return loss

        if isinstance(optimizer, torch.optim.LBFGS):
            losses.append(optimizer.step(closure).detach())
        else:
            losses.append(closure().detach())
            optimizer.step()
        schedule.step()
    return [*losses, *(one.detach().clone() for one in model.parameters())]


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_a_gated_training_has_the_bits_of_a_plain_one(
    make: Callable[[list[nn.Parameter]], torch.optim.Optimizer], stage: Stage
) -> None:
    plain = trained(None, make)
    stage.open()
    with Gate(stage.file.path, idle_priority=False) as gate:
        gated = trained(gate, make, late=make in OPTIMIZERS[::2])
        assert gate.quanta > 4 * 7
    assert all(torch.equal(one, other) for one, other in zip(gated, plain, strict=True))


@pytest.mark.parametrize("engine", ["grouped", "vmap", "separate"])
def test_a_gated_group_has_the_bits_of_a_plain_one(engine: str, stage: Stage) -> None:
    def losses(gate: Gate | None) -> torch.Tensor:
        torch.manual_seed(5)
        model = nn.Sequential(nn.Linear(8, 300), nn.ReLU(), nn.Linear(300, 1))
        members = [{"lr": 0.01 * (i + 1)} for i in range(3)]
        told = []
        with hydro.fuse(model, members, optimizer="adamw", engine=engine) as group:
            for step in range(4):
                if gate is not None and step == 1:
                    watch(gate, group)
                if step == 3:
                    group.drop(group.ids[:1])
                x = torch.randn(16, 8, generator=torch.Generator().manual_seed(step))
                told.append(group.step((x, x.sum(1, keepdim=True)), nn.MSELoss()))
            return torch.cat(told)

    plain = losses(None)
    stage.open()
    with Gate(stage.file.path, idle_priority=False) as gate:
        gated = losses(gate)
        # Layers, gradients and members: two steps with three members, and one step with two.
        assert gate.quanta >= 3 * (3 + 4 + 2)
    assert torch.equal(gated, plain)


def test_a_gate_without_a_stage_is_always_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_BUBBLE_GATE", raising=False)
    gate = Gate.from_environment()
    assert torch.equal(trained(gate, OPTIMIZERS[0])[0], trained(None, OPTIMIZERS[0])[0])
    with gate.collective():
        assert not gate.must_leave


class Worker(threading.Thread):
    """A trial that goes from point to point, and counts them."""

    def __init__(self, gate: Gate, quantum_s: float = 0.0) -> None:
        super().__init__(daemon=True)
        self.gate, self.quantum_s, self.count, self.ending = gate, quantum_s, 0, False
        self.start()

    def run(self) -> None:
        key = self.gate.new_point()
        while not self.ending:
            self.gate.point(key)
            self.count += 1
            end = time.thread_time() + self.quantum_s
            while time.thread_time() < end:
                pass


@pytest.fixture
def worker(stage: Stage) -> Iterator[Worker]:
    stage.permit()
    gate = Gate(stage.file.path, idle_priority=False)
    made = Worker(gate)
    yield made
    made.ending = True
    stage.open()
    made.join(30)
    assert not made.is_alive()
    gate.close()


def test_work_is_done_between_the_opening_and_the_close(stage: Stage, worker: Worker) -> None:
    until(lambda: stage.says("trial_waiting"))
    assert worker.count == 0
    stage.open()
    until(lambda: worker.count > 10)
    stage.close()
    until(lambda: stage.says("trial_waiting"))
    seen = worker.count
    assert stage.says("trial_acknowledged") == stage.says("gate_epoch") - 1
    assert stage.says("trial_harvested") > 0
    time.sleep(0.02)
    assert worker.count == seen
    stage.open()
    until(lambda: worker.count > seen)
    stage.close()


def test_a_gate_closes_itself_at_its_deadline(stage: Stage, worker: Worker) -> None:
    until(lambda: stage.says("trial_waiting"))
    while not worker.count:  # a window may pass before the trial has woken up
        stage.open(length=30 * MS)
        until(lambda: time.monotonic_ns() > stage.says("gate_deadline"))
        if not worker.count:
            stage.close()
    # Nobody closes this one: the primary has died here.
    until(lambda: stage.says("trial_waiting"))
    seen = worker.count
    assert stage.says("gate_epoch") & 1
    time.sleep(0.02)
    assert worker.count == seen
    stage.close()


def test_a_lease_that_has_run_out_opens_nothing(stage: Stage, worker: Worker) -> None:
    until(lambda: stage.says("trial_waiting"))
    stage.permit()
    stage.hook.begin_step(1, 4)
    stage.words[AT["lease"]] = 1
    stage.hook.begin_wait()
    assert not stage.says("gate_epoch") & 1
    stage.close()
    assert worker.count == 0


def test_a_hint_ends_the_window_earlier(stage: Stage, worker: Worker) -> None:
    until(lambda: stage.says("trial_waiting"))
    stage.open()
    stage.words[AT["hint_deadline"]] = 1
    stage.words[AT["hint_epoch"]] = stage.says("gate_epoch")
    stage.close()
    seen = worker.count
    stage.permit()
    stage.hook.begin_step(1, 4)
    stage.words[AT["hint_deadline"]] = 1
    stage.words[AT["hint_epoch"]] = stage.says("gate_epoch") + 1
    stage.hook.begin_wait()
    time.sleep(0.02)
    assert worker.count <= seen + 1
    stage.close()


def test_a_quantum_longer_than_the_window_is_begun_once_and_then_no_more(stage: Stage) -> None:
    gate = Gate(stage.file.path, idle_priority=False)
    worker = Worker(gate, quantum_s=0.03)
    windows = 0
    while windows < 8 or not worker.count:
        until(lambda: stage.says("trial_waiting"))
        stage.open(length=10 * MS)
        until(lambda: time.monotonic_ns() > stage.says("gate_deadline"))
        stage.close()
        windows += 1
    until(lambda: stage.says("trial_waiting"))
    assert worker.count == 1
    assert gate.overruns >= 1
    assert stage.says("trial_quantum") > 10 * MS
    worker.ending = True
    stage.open()
    worker.join(30)
    gate.close()


def test_a_control_step_and_an_alarm_open_nothing(stage: Stage) -> None:
    stage.words[AT["control_share"]] = 65536
    stage.hook.begin_step(1, 4)
    stage.hook.begin_wait()
    assert not stage.says("gate_epoch") & 1
    stage.close()
    stage.words[AT["control_share"]] = 0
    stage.hook.begin_step(2, 4)
    stage.hook.alarm(Alarm.MEMORY)
    stage.hook.begin_wait()
    assert not stage.says("gate_epoch") & 1
    assert stage.says("alarm") == Alarm.MEMORY
    stage.close()
    records = stage.file.records(1, AT["steps"], 0)
    assert [(one[0], one[3]) for one in records] == [(1, StepKind.CONTROL), (2, StepKind.UNUSED)]


def test_another_shape_closes_until_it_is_learnt(stage: Stage) -> None:
    stage.permit()
    stage.hook.begin_step(1, 4)
    stage.hook.begin_forward(128)
    for step in (1, 2):
        stage.hook.begin_wait()
        assert not stage.says("gate_epoch") & 1
        stage.hook.end_wait()
        stage.hook.begin_step(step + 1, 4)
        stage.hook.begin_forward(128)
    stage.words[AT["table_generation"]] = stage.says("generation")
    stage.hook.begin_step(4, 4)
    stage.hook.begin_wait()
    assert stage.says("gate_epoch") & 1
    stage.close()


def test_a_stage_has_room_for_one_trial(stage: Stage) -> None:
    gate = Gate(stage.file.path, idle_priority=False)
    parent = os.getppid()
    stage.words[AT["trial_pid"]], stage.words[AT["trial_started"]] = parent, started_ticks(parent) or 0
    with pytest.raises(GateError, match="room for one trial"):
        Gate(stage.file.path)
    stage.words[AT["trial_started"]] += 1  # that trial has ended
    Gate(stage.file.path, idle_priority=False).close()
    gate.close()
    assert stage.says("trial_pid") == 0


def test_a_trial_follows_a_primary_that_starts_again(tmp_path: Path, stage: Stage, worker: Worker) -> None:
    until(lambda: stage.says("trial_waiting"))
    again = Stage(tmp_path / "place")
    again.open()
    until(lambda: worker.count > 3)
    assert again.says("trial_pid") == os.getpid()
    again.close()
    worker.ending = True
    again.open()
    worker.join(30)
    assert not worker.is_alive()


# What a trial is told about its stage.


def test_join_takes_the_gate_that_the_environment_names(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_BUBBLE_GATE", str(stage.file.path))
    monkeypatch.setattr("headrace_torch.bubbles.gate._only_when_idle", lambda: None)
    model = net()
    with join(model, torch.optim.SGD(model.parameters(), lr=0.1)):
        assert stage.says("trial_pid") == os.getpid()
    stage.words[AT["memory"]] = 100 * 2**20
    with pytest.raises(GateError, match="one member needs 200 MiB and the stage has 100 MiB to spare"):
        join(model, member_bytes=200 * 2**20)
    assert stage.says("trial_pid") == 0
    with join(model, member_bytes=50 * 2**20) as gate:
        assert gate.memory_bytes == 100 * 2**20


def test_members_follow_the_budget(stage: Stage) -> None:
    with Gate(stage.file.path, idle_priority=False) as gate:
        assert gate.members(16) == 16, "there is no agent"
        stage.words[AT["members_share"]] = 1 << 14
        assert [gate.members(n) for n in (16, 5, 1)] == [4, 1, 1]
    assert Gate(None).members(3) == 3
    assert Gate(None).memory_bytes is None


@pytest.mark.full
def test_a_trial_on_a_cpu_stage_runs_where_its_rank_does_and_only_when_that_is_idle(stage: Stage) -> None:
    mine = os.sched_getaffinity(0)
    program = (
        f"import os, sys; os.sched_setaffinity(0, {mine})\n"
        "from pathlib import Path; from headrace_torch.bubbles.gate import Gate\n"
        "Gate(Path(sys.argv[1])); print(os.sched_getaffinity(0), os.sched_getscheduler(0) == os.SCHED_IDLE)"
    )
    one = {min(mine)}
    try:
        os.sched_setaffinity(0, one)
        command = [sys.executable, "-c", program, str(stage.file.path)]
        others = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        told, _ = others.communicate(timeout=60)
    finally:
        os.sched_setaffinity(0, mine)
    assert told.split() == [*str(one).split(), "True"]


def test_a_hint_within_a_window_moves_its_end(stage: Stage) -> None:
    stage.open(length=30 * MS)
    with Gate(stage.file.path, idle_priority=False) as gate:
        key = gate.new_point()
        gate.point(key)
        stage.words[AT["hint_deadline"]] = FAR
        stage.words[AT["hint_epoch"]] = stage.says("gate_epoch")
        end = time.monotonic() + 0.05
        while time.monotonic() < end:
            gate.point(key)
        assert stage.says("trial_stretches") == 0, "it has not paused"
        assert stage.says("gate_deadline") < time.monotonic_ns()
    assert stage.says("trial_stretches") == 1


def test_a_quantum_that_was_long_once_is_tried_again(stage: Stage) -> None:
    gate = Gate(stage.file.path, idle_priority=False)
    worker = Worker(gate)
    until(lambda: stage.says("trial_waiting"))
    gate._needs[0] = 10_000 * MS  # perhaps its first run
    windows = 0
    while not worker.count:
        stage.open(length=20 * MS)
        until(lambda: time.monotonic_ns() > stage.says("gate_deadline"))
        stage.close()
        until(lambda: stage.says("trial_waiting"))
        windows += 1
        assert windows < 60
    assert windows >= PATIENCE
    worker.ending = True
    stage.open()
    worker.join(30)
    gate.close()


def test_a_trial_without_quanta_is_reported(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate(stage.file.path, idle_priority=False)
    worker = Worker(gate)
    until(lambda: stage.says("trial_waiting"))
    gate._needs[0], gate._patience[0] = 10_000 * MS, 1 << 14
    for _ in range(600):
        stage.open(length=MS)
        time.sleep(0.001)
        stage.close()
        if caplog.records:
            break
    assert "no window has been long enough for the work that starts here, of 10000.0 ms" in caplog.text
    gate._needs[0] = 1
    worker.ending = True
    stage.open()
    worker.join(30)
    gate.close()


def test_a_trial_that_is_told_to_leave_does_not_wait_for_a_primary_that_is_gone(stage: Stage) -> None:
    gate = Gate(stage.file.path, idle_priority=False)
    worker = Worker(gate)
    until(lambda: stage.says("trial_waiting"))
    gate.leave()
    time.sleep(0.3)
    assert worker.count == 0, "the primary lives"
    gate._file.header = replace(gate._file.header, started=1)  # another process now has its process id
    until(lambda: worker.count > 10)
    worker.ending = True
    worker.join(30)
    assert gate.harvested_s >= 0


def test_a_trial_that_is_evicted_continues_to_its_end_where_its_primary_is_gone(stage: Stage) -> None:
    """A worker's daemon requests this when the job has ended: the trial should stop at its next report."""
    gate = Gate(stage.file.path, idle_priority=False)
    worker = Worker(gate)
    until(lambda: stage.says("trial_waiting"))
    stage.words[AT["evict"]] = 1
    time.sleep(0.3)
    assert worker.count == 0, "the primary lives"
    gate._file.header = replace(gate._file.header, started=1)
    until(lambda: worker.count > 10)
    worker.ending = True
    worker.join(30)


def test_what_a_trial_does_aside_is_no_quantum_and_its_next_point_waits_for_a_window(stage: Stage) -> None:
    stage.open()
    with Gate(stage.file.path, idle_priority=False) as gate:
        key = gate.new_point()
        gate.point(key)
        gate.point(key)
        done = gate.quanta
        with gate.aside():
            assert stage.says("trial_waiting") == 1
            time.sleep(0.05)
        assert stage.says("trial_waiting") == 1, "up to its next point"
        gate.point(key)
        assert stage.says("trial_waiting") == 0
        assert gate.quanta == done
        gate.point(key)
        assert gate.quanta == done + 1
        assert gate._needs[key] < 20 * MS
    with Gate(None).aside():
        pass


def test_time_off_the_core_is_no_part_of_a_quantum(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace_torch.bubbles.gate._only_when_idle", lambda: None)
    stage.open()
    with Gate(stage.file.path) as gate:
        key = gate.new_point()
        gate.point(key)
        time.sleep(0.05)  # as if another process had the core
        gate.point(key)
        assert gate._needs[key] < 20 * MS
        end = time.thread_time() + 0.03
        while time.thread_time() < end:
            pass
        gate.point(key)
        assert gate._needs[key] > 20 * MS
