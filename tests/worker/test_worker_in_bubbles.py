"""A worker beside a bubble agent: what it offers, what it takes back, and what happens to the trials there."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from scripted_scheduler import ScriptedScheduler, until
from worker_site import Site

from headrace.v1 import bubble_pb2, bubble_pb2_grpc, spec_pb2, worker_pb2
from headrace_torch.bubble_shm import AT, StageFile, StageHeader, started_ticks
from headrace_worker import bubble_watch, daemon
from headrace_worker.bubble_slots import AWAY_S, FIRST_INDEX, FORGET_S, BubbleSlots
from headrace_worker.devices import discover
from headrace_worker.launch import launch_of
from headrace_worker.program import silence_s


def stage(number: int = 1, **changes: Any) -> bubble_pb2.BubbleStage:
    fields = {
        "device": "cpu",
        "gate": f"/b/gpt.0.{number}.bubble",
        "steps": 9,
        "duty": 0.25,
        "free_bytes": 77,
    }
    return bubble_pb2.BubbleStage(stage=number, **{**fields, **changes})


def job(*stages: bubble_pb2.BubbleStage, **changes: Any) -> bubble_pb2.BubbleJob:
    return bubble_pb2.BubbleJob(name="gpt", stages=4, local_stages=stages, **changes)


# --- how the slots change, answer by answer --------------------------------------------------------------


def test_a_stage_is_offered_once_its_windows_and_its_memory_are_known() -> None:
    slots = BubbleSlots()
    assert not slots.heard([job(stage(duty=0.0), stage(2, free_bytes=0))], 0.0).offered
    assert slots.heard([job(stage(), stage(2, free_bytes=0))], 1.0).offered
    [device] = slots.devices
    assert (device.index, device.kind, device.memory_bytes) == (FIRST_INDEX, worker_pb2.DEVICE_KIND_CPU, 77)
    said = device.bubbles
    assert (said.job, said.stage, said.replica, said.duty) == ("gpt", 1, 0, 0.25)
    assert slots.gates == {FIRST_INDEX: "/b/gpt.0.1.bubble"}
    assert not slots.heard([job(stage(duty=0.0))], 2.0).offered, "it learns anew"
    assert not slots.gone
    assert (slots.pace([FIRST_INDEX]), slots.pace([0])) == (0.25, 1.0)


@pytest.mark.parametrize(
    ("jobs", "says"),
    [
        ([], "job gpt has ended, or its stage 1 has"),
        ([job()], "job gpt has ended, or its stage 1 has"),
        ([job(stage(), disabled=True, why="it was slowed")], "no longer offers bubbles: it was slowed"),
        ([job(stage(), disagreement="4 or 2 stages")], "4 or 2 stages"),
        ([job(stage(trial=bubble_pb2.BubbleTrial(evicted=True)))], "did not close its gate"),
    ],
)
def test_it_is_taken_back_with_the_reason_and_offered_again_at_the_same_index(
    jobs: list[bubble_pb2.BubbleJob], says: str
) -> None:
    slots = BubbleSlots()
    slots.heard([job(stage(), stage(2))], 0.0)
    assert FIRST_INDEX in slots.heard(jobs, 1.0).taken_back
    assert says in slots.gone[FIRST_INDEX]
    assert slots.heard(jobs, 2.0) == replace(slots.heard(jobs, 2.0), taken_back=frozenset()), "told once"
    assert slots.heard([job(stage(), stage(2))], 3.0).offered
    assert not slots.gone
    assert [device.index for device in slots.devices] == [FIRST_INDEX, FIRST_INDEX + 1]


def test_the_slots_of_jobs_that_ended_long_ago_are_forgotten_and_their_indices_never_given_again() -> None:
    slots = BubbleSlots()
    slots.heard([job(stage())], 0.0)
    slots.heard([], 1.0)
    slots.heard([], FORGET_S)
    assert len(slots.devices) == 1, "leases may still be told of"
    slots.heard([], 1.0 + FORGET_S)
    assert slots.devices == ()
    slots.heard([job(stage())], 2.0 + FORGET_S)
    assert [device.index for device in slots.devices] == [FIRST_INDEX + 1]


def test_an_agent_that_is_silent_for_a_moment_costs_nothing() -> None:
    slots = BubbleSlots()
    assert not slots.heard(None, 0.0).taken_back
    slots.heard([job(stage())], 10.0)
    assert not slots.heard(None, 10.0 + AWAY_S / 2).taken_back
    assert slots.heard(None, 10.0 + AWAY_S).taken_back == {FIRST_INDEX}
    assert slots.gone[FIRST_INDEX] == "the bubble agent does not answer"


def test_the_gpu_of_a_large_job_is_no_ordinary_slot_meanwhile() -> None:
    slots = BubbleSlots()
    assert slots.heard([job(stage(device="GPU-7", duty=0.0))], 0.0).offered, "to be told of"
    assert slots.owned == {"GPU-7"}
    assert slots.heard([job(stage(device="GPU-7"))], 1.0).offered
    assert [(one.kind, one.uuid) for one in slots.devices] == [(worker_pb2.DEVICE_KIND_GPU, "GPU-7")]
    assert slots.heard([], 2.0).offered
    assert slots.owned == frozenset()


def test_a_trial_there_gets_its_stages_gate_and_nothing_is_imported_ahead(tmp_path: Path) -> None:
    slots = BubbleSlots()
    slots.heard([job(stage(device="GPU-7"))], 0.0)
    ordinary = worker_pb2.Device(index=0, kind=worker_pb2.DEVICE_KIND_CPU)

    def launch(index: int) -> Any:
        assign = worker_pb2.Assign(
            lease={"lease_id": "l", "trial": "studies/s/trials/0"},
            template=spec_pb2.TrialTemplate(callable="train:train"),
            grant=worker_pb2.Grant(slots=[index]),
        )
        devices = (ordinary, *slots.devices)
        environ = {"HEADRACE_BUBBLE_GATE": "/everybody's"}
        return launch_of(
            assign,
            devices=devices,
            gates=slots.gates,
            runtime="u",
            log_dir=tmp_path,
            environ=environ,
            cores=8,
        )

    there, alone = launch(FIRST_INDEX), launch(0)
    assert there.env["HEADRACE_BUBBLE_GATE"] == "/b/gpt.0.1.bubble"
    assert (there.env["CUDA_VISIBLE_DEVICES"], there.target) == ("GPU-7", "")
    assert alone.env["HEADRACE_BUBBLE_GATE"] == "/everybody's"
    assert (alone.env["HEADRACE_CPUS"], alone.target) == ("8", "train:train")


def test_silence_counts_by_the_share_of_time_that_a_trial_may_expect() -> None:
    template = spec_pb2.TrialTemplate()
    template.report_timeout.FromSeconds(60)
    assert silence_s(template, 0.25) == 240
    assert silence_s(template) == 60


def test_a_worker_in_bubbles_may_have_no_slots_of_its_own() -> None:
    assert len(discover(worker="w", cpu_slots=0, bubbles=True, environ={}).devices) == 0
    with pytest.raises(ValueError, match="at least 1"):
        discover(worker="w", cpu_slots=0, environ={})


# --- a daemon, a scheduler and an agent -----------------------------------------------------------------


class ScriptedAgent(bubble_pb2_grpc.BubbleServiceServicer):
    """Answers as a test says."""

    def __init__(self) -> None:
        self.jobs: list[bubble_pb2.BubbleJob] = []

    async def ListBubbleJobs(self, request: Any, context: Any) -> bubble_pb2.ListBubbleJobsResponse:  # noqa: ARG002
        return bubble_pb2.ListBubbleJobsResponse(jobs=self.jobs)


@pytest.fixture
async def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ScriptedAgent]:
    folder = tmp_path / "b"
    folder.mkdir()
    monkeypatch.setenv("HEADRACE_BUBBLES", str(folder))
    monkeypatch.setattr(daemon, "keep_bubble_agent", asyncio.Event().wait)
    monkeypatch.setattr(bubble_watch, "EVERY_S", 0.02)
    scripted, server = ScriptedAgent(), grpc.aio.server()
    bubble_pb2_grpc.add_BubbleServiceServicer_to_server(scripted, server)
    server.add_insecure_port(f"unix:{folder / 'agent.sock'}")
    await server.start()
    yield scripted
    await server.stop(None)


async def test_a_daemon_offers_a_stage_and_ends_who_is_there_once_it_is_gone(
    site: Site, scheduler: ScriptedScheduler, agent: ScriptedAgent, tmp_path: Path
) -> None:
    """The trial was told to leave, and never reports; nobody is charged. The rank takes a while to end."""
    rank = await asyncio.create_subprocess_exec("sleep", "100")
    started = started_ticks(rank.pid)
    assert started is not None
    header = StageHeader(
        job="gpt", replica=0, stage=1, stages=2, rank=1, device="cpu", pid=rank.pid, started=started
    )
    file = StageFile.create(tmp_path / "b", header)
    site.in_bubbles, site.cpu_slots = True, 0
    site.start()
    first = await scheduler.stream()
    assert [device.index for device in first.hello.devices] == []
    agent.jobs = [job(stage(gate=str(file.path)))]
    stream = await scheduler.stream(2)
    [device] = stream.hello.devices
    assert (device.index, device.bubbles.job, device.bubbles.stage) == (FIRST_INDEX, "gpt", 1)
    body = "mark('gate', os.environ['HEADRACE_BUBBLE_GATE'])\ntime.sleep(100)"
    stream.send(assign=site.assign(site.program(body), slots=(FIRST_INDEX,)))
    await until(lambda: (site.marks / "gate").exists())
    assert (site.marks / "gate").read_text() == str(file.path)
    agent.jobs = []
    await until(lambda: any(beat.defects for beat in stream.all("heartbeat")))
    [defect] = next(beat.defects for beat in stream.all("heartbeat") if beat.defects)
    assert (defect.index, defect.reason) == (FIRST_INDEX, "job gpt has ended, or its stage 1 has")
    assert not file.words[AT["evict"]], "the rank lives"
    rank.kill()
    await rank.wait()
    await until(lambda: file.words[AT["evict"]], "its gate lets the trial go on to its next report")
    exited = await stream.get("exited")
    assert (exited.outcome, exited.error) == (worker_pb2.EXIT_OUTCOME_RELEASED, defect.reason)
    file.close()


async def test_a_trial_that_fails_since_its_stage_has_gone_is_not_charged(
    site: Site, scheduler: ScriptedScheduler, agent: ScriptedAgent
) -> None:
    """Its gate no longer exists when its program tries to take it."""
    site.in_bubbles, site.cpu_slots = True, 0
    agent.jobs = [job(stage())]
    site.start()
    stream = await until(lambda: next((s for s in scheduler.streams if s.hello.devices), None))
    body = "mark('runs')\nwhile not Path(os.environ['MARKS'], 'go').exists(): time.sleep(0.01)\nsys.exit(1)"
    stream.send(assign=site.assign(site.program(body), slots=(FIRST_INDEX,)))
    await until(lambda: (site.marks / "runs").exists())
    agent.jobs = []
    await until(lambda: any(beat.defects for beat in stream.all("heartbeat")))
    (site.marks / "go").touch()
    exited = await stream.get("exited")
    assert exited.outcome == worker_pb2.EXIT_OUTCOME_RELEASED


async def test_an_answer_that_cannot_be_taken_in_ends_no_daemon(
    site: Site, scheduler: ScriptedScheduler, agent: ScriptedAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = BubbleSlots.heard
    failures = iter([True, True])

    def heard(self: BubbleSlots, jobs: Any, now_s: float) -> Any:
        if next(failures, False):
            raise ValueError("a defect")
        return taken(self, jobs, now_s)

    monkeypatch.setattr(BubbleSlots, "heard", heard)
    agent.jobs = [job(stage())]
    site.in_bubbles, site.cpu_slots = True, 0
    site.start()
    await until(lambda: any(one.hello.devices for one in scheduler.streams))
