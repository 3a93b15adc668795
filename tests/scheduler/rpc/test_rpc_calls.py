"""What calls on studies and trials do and answer, each over the network."""

import asyncio
import math
from datetime import UTC, datetime, timedelta

from rpc_site import RpcSite, make_spec

from headrace.errors import StudyNotFoundError
from headrace.spec import from_proto, to_proto
from headrace.v1 import event_pb2, spec_pb2, trial_pb2
from headrace.v1 import study_pb2 as pb
from headrace_services.scheduler.store import workers
from headrace_services.scheduler.store.database import transaction


def assignment(x: float) -> spec_pb2.ParameterAssignment:
    return spec_pb2.ParameterAssignment(values={"x": spec_pb2.ParameterValue(float_value=x)})


async def connect(site: RpcSite, name: str, slots: int, ttl_s: float = 3600) -> None:
    devices = tuple(
        workers.Device(index=index, kind="CPU", model="cpu", memory_bytes=8, uuid="")
        for index in range(slots)
    )
    greeting = workers.Greeting(
        name=name, incarnation="1", devices=devices, labels={"zone": "a"}, version="0.1", log_dir="/logs"
    )
    async with transaction(site.engine) as conn:
        await workers.greet(conn, greeting, ttl_s)


async def test_a_created_study_is_active_and_comes_back_as_it_was_given(site: RpcSite) -> None:
    spec = make_spec(
        baseline={"x": 1.0},
        enqueued=[{"x": 0.0}],
        space={"x": {"type": "float", "low": 0.0, "high": 1e20}},
    )
    created = (await site.call("CreateStudy", pb.CreateStudyRequest(study_id="s", spec=to_proto(spec)))).study
    assert created.name == "studies/s"
    assert created.state == pb.STUDY_STATE_ACTIVE
    assert from_proto(created.spec) == spec
    assert created.status.cursor == 1
    assert not created.HasField("end_time")
    age = datetime.now(UTC) - created.create_time.ToDatetime(UTC)
    assert abs(age) < timedelta(minutes=5)
    ready = await site.ready("s")
    assert from_proto(ready.spec) == spec
    assert ready.status.baseline.parameters.values["x"].float_value == 1.0


async def test_studies_pause_resume_stop_and_go(site: RpcSite) -> None:
    await site.create()
    asked = await site.suggest()
    paused = (await site.call("PauseStudy", pb.PauseStudyRequest(name="studies/s"))).study
    assert paused.state == pb.STUDY_STATE_PAUSED
    assert paused.status.running == 1
    again = (await site.call("PauseStudy", pb.PauseStudyRequest(name="studies/s"))).study
    assert again.status.cursor == paused.status.cursor
    resumed = (await site.call("ResumeStudy", pb.ResumeStudyRequest(name="studies/s"))).study
    assert resumed.state == pb.STUDY_STATE_ACTIVE
    stopped = (await site.call("StopStudy", pb.StopStudyRequest(name="studies/s", reason="enough"))).study
    assert stopped.state == pb.STUDY_STATE_STOPPED
    assert stopped.detail == "enough"
    assert stopped.HasField("end_time")
    assert stopped.status.cancelled == stopped.status.terminated == len(await site.trials())
    assert stopped.status.running == 0
    twice = (await site.call("StopStudy", pb.StopStudyRequest(name="studies/s", reason="other"))).study
    assert twice == stopped
    assert asked.trial.number == 0
    await site.call("DeleteStudy", pb.DeleteStudyRequest(name="studies/s"))
    assert not (await site.call("ListStudies", pb.ListStudiesRequest())).studies
    fresh = await site.create()
    assert fresh.state == pb.STUDY_STATE_ACTIVE


async def test_added_trials_come_in_order_and_are_tried(site: RpcSite) -> None:
    await site.create(max_trials=1)
    request = pb.AddTrialsRequest(study="studies/s", parameters=[assignment(0.25), assignment(0.75)])
    added = (await site.call("AddTrials", request)).trials
    assert [trial.parameters.values["x"].float_value for trial in added] == [0.25, 0.75]
    assert [trial.number for trial in added] == [1, 2]
    assert {trial.state for trial in added} == {trial_pb2.TRIAL_STATE_PENDING}
    asked = [await site.suggest(client=f"c{n}") for n in range(3)]
    assert [suggestion.trial.number for suggestion in asked] == [0, 1, 2]


async def test_a_held_trial_waits_until_it_is_resumed(site: RpcSite) -> None:
    await site.create(max_trials=2, policy={"kind": "run_all"}, max_steps=3)
    held = (await site.call("PauseTrial", pb.PauseTrialRequest(name="studies/s/trials/0"))).trial
    assert held.state == trial_pb2.TRIAL_STATE_PENDING
    assert (await site.suggest()).trial.number == 1
    assert not (await site.suggest(client="d")).HasField("trial")
    await site.call("ResumeTrial", pb.ResumeTrialRequest(name="studies/s/trials/0"))
    assert (await site.suggest(client="d")).trial.number == 0


async def test_a_trial_explains_itself_in_order(site: RpcSite) -> None:
    await site.create(max_trials=3)
    asked = [await site.suggest(client=f"c{n}") for n in range(3)]
    values = [0.3, math.nan, 0.1]
    for suggestion, value in zip(asked, values, strict=True):
        await site.report(suggestion.lease, 1, value)
    story = await site.call("ExplainTrial", pb.ExplainTrialRequest(name="studies/s/trials/1"))
    assert story.trial.number == 1
    assert {event.trial_number for event in story.events} == {1}
    cursors = [event.cursor for event in story.events]
    assert cursors == sorted(set(cursors))
    kinds = [event.WhichOneof("detail") for event in story.events]
    assert kinds == [
        "trial_created",
        "trial_moved",
        "report_recorded",
        "rung_recorded",
        "decision_made",
        "trial_moved",
    ]
    created, launched, reported, recorded, decided, paused = story.events
    assert created.trial_created.parameters == story.trial.parameters
    assert launched.trial_moved.action == "launch"
    assert math.isnan(reported.report_recorded.metrics["loss"])
    assert reported.report_recorded.checkpoint.step == 1
    assert math.isnan(recorded.rung_recorded.result.value)
    assert decided.decision_made.action == event_pb2.DECISION_ACTION_PAUSE
    assert decided.decision_made.explanation.sentence
    assert paused.trial_moved.to_state == trial_pb2.TRIAL_STATE_PAUSED
    assert all(event.message for event in story.events)


async def test_an_explanation_too_long_for_a_message_leaves_the_oldest_reports_out(site: RpcSite) -> None:
    await site.create(policy={"kind": "run_all"}, max_trials=1, max_steps=10**6)
    asked = await site.suggest()
    metrics = {f"metric/with/a/long/name/{n}": 0.5 for n in range(900)} | {"loss": 0.5}
    reports = [
        pb.ReportTrialRequest(lease=asked.lease, step=step, metrics=metrics, checkpoint_uri="mem:/")
        for step in range(1, 61)
    ]
    await asyncio.gather(*(site.call("ReportTrial", report) for report in reports))
    story = await site.call("ExplainTrial", pb.ExplainTrialRequest(name="studies/s/trials/0"))
    kinds = [event.WhichOneof("detail") for event in story.events]
    assert kinds[:3] == [None, "trial_created", "trial_moved"]
    assert "older entries are left out" in story.events[0].message
    kept = [
        event.report_recorded.step
        for event in story.events
        if event.WhichOneof("detail") == "report_recorded"
    ]
    assert 0 < len(kept) < 60
    assert kept == list(range(61 - len(kept), 61)), "the newest are there"


async def test_reports_are_listed_with_what_is_not_finite(site: RpcSite) -> None:
    await site.create(policy={"kind": "run_all"}, max_trials=1)
    asked = await site.suggest()
    for step, value in ((1, math.nan), (2, math.inf), (3, -math.inf), (4, math.nan)):
        await site.report(asked.lease, step, value)
    reports = (await site.call("ListReports", pb.ListReportsRequest(parent="studies/s/trials/0"))).reports
    assert [report.step for report in reports] == [1, 2, 3, 4]
    assert [report.sequence for report in reports] == [1, 2, 3, 4]
    assert math.isnan(reports[0].metrics["loss"])
    assert [reports[place].metrics["loss"] for place in (1, 2)] == [math.inf, -math.inf]
    trial = (await site.call("GetTrial", pb.GetTrialRequest(name="studies/s/trials/0"))).trial
    assert trial.step == 4
    assert math.isnan(trial.value)
    assert not trial.HasField("best_value")


async def test_workers_are_listed_with_the_trials_on_their_slots(site: RpcSite) -> None:
    await connect(site, "alive", 2)
    await connect(site, "gone", 1, ttl_s=-1)
    spec = to_proto(make_spec(template={"callable": "train:train", "working_dir": "/tmp"}, max_trials=1))
    await site.call("CreateStudy", pb.CreateStudyRequest(study_id="s", spec=spec))
    async with asyncio.timeout(60):
        while not (await site.study()).status.running:
            await asyncio.sleep(0.01)
    alive, gone = (await site.call("ListWorkers", pb.ListWorkersRequest())).workers
    assert (alive.name, alive.connected, gone.name, gone.connected) == (
        "workers/alive",
        True,
        "workers/gone",
        False,
    )
    assert [(slot.index, slot.device, slot.trial) for slot in alive.slots] == [
        (0, "cpu", "studies/s/trials/0"),
        (1, "cpu", ""),
    ]
    assert dict(alive.labels) == {"zone": "a"}
    assert alive.version == "0.1"
    (trial,) = await site.trials()
    assert trial.worker == "workers/alive"
    assert list(trial.slots) == [0]
    study = await site.study()
    assert trial.log_path == f"/logs/s-{study.uid}/0.log"


async def test_a_preview_says_what_a_spec_would_do(site: RpcSite) -> None:
    spec = to_proto(make_spec(max_trials=27, baseline={"x": 0.5}))
    preview = await site.call("PreviewStudy", pb.PreviewStudyRequest(spec=spec, seconds_per_step=2.0))
    assert preview.trials == 27
    assert preview.slots == 1
    assert preview.steps_run_all == 28 * 9
    assert [rung.milestone for rung in preview.rungs] == [1, 3, 9]
    assert preview.rungs[0].trials == 27
    assert 0 < preview.steps < preview.steps_run_all
    assert preview.slot_time.ToTimedelta() == timedelta(seconds=2 * preview.steps)
    assert len(preview.samples) == 5
    await site.call("CreateStudy", pb.CreateStudyRequest(study_id="s", spec=spec))
    await site.ready("s")
    sampled = [trial.parameters for trial in (await site.trials())[1:4]]
    assert list(preview.samples)[:3] == sampled
    await connect(site, "w", 3)
    unknown = await site.call("PreviewStudy", pb.PreviewStudyRequest(spec=spec))
    assert unknown.slots == 3
    assert not unknown.HasField("wall_time")


async def test_room_is_found_by_the_rules_of_placement(site: RpcSite) -> None:
    """One worker with two CPU slots: a trial on two slots fits, even when they are busy. One on three slots or on
    a GPU does not."""
    await connect(site, "alive", 2)
    template = {"callable": "train:train", "working_dir": "/tmp"}

    async def lacking(name: str, resources: dict[str, object]) -> tuple[list[str], int]:
        spec = to_proto(make_spec(template=template, resources=resources, max_trials=4))
        await site.call("CreateStudy", pb.CreateStudyRequest(study_id=name, spec=spec))
        answer = await site.call("FindRoom", pb.FindRoomRequest(study=f"studies/{name}"))
        return list(answer.lacking), answer.sizes

    assert await lacking("a", {"gpus": 0, "cpus": 2}) == ([], 1)
    assert await lacking("b", {"gpus": 0, "cpus": 3}) == (["3 CPU slots"], 1)
    assert await lacking("c", {"gpus": 2, "gpu_types": ["H200"]}) == (["2 GPUs (H200)"], 1)
    assert await lacking("d", {"gpus": 0, "labels": {"zone": "b"}}) == (["1 CPU slot, label zone=b"], 1)
    assert isinstance(
        await site.refusal("FindRoom", pb.FindRoomRequest(study="studies/none")), StudyNotFoundError
    )
