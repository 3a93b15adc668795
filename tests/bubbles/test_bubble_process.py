"""The agent's process: one per folder, killed at any time, queried by `headrace bubbles`, and informed by its
peers."""

import json
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import grpc
import pytest
from agent_site import AgentProcess, bubbles, join
from stage_site import Stage, until

from headrace.error_status import from_rpc_error
from headrace.errors import BusyError, HeadraceError, InvalidFieldError
from headrace.v1 import bubble_pb2 as pb
from headrace.v1 import bubble_pb2_grpc
from headrace_services.bubble_agent.certificate import OPTIONS, WorkerCertificate
from headrace_services.bubble_agent.process import CALLERS, Settings, check
from headrace_services.identity import authority
from headrace_torch.bubble_shm import AT, Awaits
from headrace_torch.bubble_shm.layout import TABLE


class Player(threading.Thread):
    """Two stages that step forever, in one folder or in separate ones. Stage 0 waits for stage 1."""

    def __init__(self, near: Path, far: Path) -> None:
        super().__init__(daemon=True)
        self.near, self.far, self.ending = Stage(near), Stage(far, stage=1), False
        for stage in (self.near, self.far):
            stage.words[AT["lease"]] = stage.words[AT["permitted"]] = 0
        self.start()

    def run(self) -> None:
        step = 0
        while not self.ending:
            for stage in (self.near, self.far):
                stage.hook.begin_step(step, 4)
            self.near.hook.begin_wait(Awaits.BACKWARD)
            time.sleep(0.004)
            self.far.hook.begin_backward()
            time.sleep(0.004)
            self.near.hook.end_wait()
            for stage in (self.near, self.far):
                stage.hook.end_step()
            step += 1

    def end(self) -> None:
        self.ending = True
        self.join(30)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[AgentProcess, AgentProcess, Player]]:
    """Two agents on two machines that know each other, beside workers that have joined."""
    near, far = tmp_path_factory.mktemp("n"), tmp_path_factory.mktemp("f")
    authority.make(ca := tmp_path_factory.mktemp("c") / "ca", ["localhost"], now=datetime.now(UTC))
    for folder in (near, far):
        folder.chmod(0o700)
        join(folder / "home", authority.load(ca))
    where = ("--listen", "127.0.0.1:0", "--worker-home")
    first = AgentProcess(near, "--name", "first", *where, str(near / "home"))
    second = AgentProcess(far, "--name", "second", *where, str(far / "home"), "--peer", first.told["listen"])
    player = Player(near, far)
    yield first, second, player
    player.end()
    first.kill()
    second.kill()


Site = tuple[AgentProcess, AgentProcess, Player]


@pytest.mark.full
def test_a_second_agent_is_refused_by_name(site: Site) -> None:
    first = site[0]
    other = AgentProcess(first.folder)
    _, log = other.process.communicate(timeout=30)
    assert other.process.returncode == 1
    assert f"process {first.process.pid} is the bubble agent of {first.folder} already" in log
    assert first.process.poll() is None


@pytest.mark.full
def test_windows_open_and_the_other_machine_is_heard(site: Site) -> None:
    first, second, player = site
    until(lambda: player.near.says("permitted") and player.near.words[TABLE])
    (job,) = first.jobs()
    (stage,) = job["local_stages"]
    assert (job["name"], job["stages"], job["micro_batches"]) == ("gpt", 2, 4)
    assert stage["gate"] == str(player.near.file.path)
    assert 0.003 < stage["windows"][0]["predicted_seconds"] < 0.1
    assert 0 < stage["waiting_share"] <= 1
    until(lambda: first.jobs()[0]["peers"] == ["second"])
    assert second.jobs()[0]["peers"] == []


@pytest.mark.full
def test_the_view_as_text_picture_and_trace(site: Site, tmp_path: Path) -> None:
    first, _, player = site
    until(lambda: player.near.says("steps") > 20)
    code, out, err = bubbles(first.folder)
    assert code == 0, err
    assert "job gpt: 2 stages, 4 micro-batches per step" in out
    assert "slowdown: not known yet" in out
    svg, trace = tmp_path / "b.svg", tmp_path / "b.json"
    code, _, err = bubbles(first.folder, "--svg", str(svg), "--trace", str(trace), "--seconds", "0.5")
    assert code == 0, err
    picture = ET.parse(svg).getroot()
    names = [one.text or "" for one in picture.iter("{http://www.w3.org/2000/svg}title")]
    assert any(name.startswith("waits (slot 0)") for name in names)
    events = json.loads(trace.read_text())["traceEvents"]
    waits = [one for one in events if one["name"].startswith("waits")]
    assert len(waits) > 5
    assert all(one["dur"] >= 7000 for one in waits)


@pytest.mark.full
def test_what_is_not_there_is_reported(site: Site, tmp_path: Path) -> None:
    code, _, err = bubbles(tmp_path)
    assert (code, "no bubble agent answers" in err, "headrace bubble-agent" in err) == (1, True, True)
    code, _, err = bubbles(site[0].folder, "--job", "other")
    assert (code, "no job 'other' runs" in err) == (1, True)
    code, _, err = bubbles(site[0].folder, "--watch", "--json")
    assert code == 2


def test_bad_calls_are_refused(site: Site) -> None:
    with grpc.insecure_channel(f"unix:{site[0].folder / 'agent.sock'}") as channel:
        stub = bubble_pb2_grpc.BubbleServiceStub(channel)
        calls: list[Callable[[], object]] = [
            lambda: stub.GetBubbleTimeline(pb.GetBubbleTimelineRequest(job="other"), timeout=10),
            lambda: stub.GetBubbleTimeline(pb.GetBubbleTimelineRequest(seconds=1e9), timeout=10),
            lambda: stub.ListBubbleJobs(pb.ListBubbleJobsRequest(job="\0"), timeout=10),
            lambda: stub.ShareProgress(iter([pb.ShareProgressRequest(step=-1)]), timeout=10),
        ]
        for call in calls:
            with pytest.raises(grpc.RpcError) as told:
                call()
            assert isinstance(from_rpc_error(told.value), InvalidFieldError)


def test_other_machines_read_nothing_and_cannot_fill_the_users_socket(site: Site) -> None:
    first, second, _ = site
    shown = WorkerCertificate(second.folder / "home")
    with grpc.secure_channel(first.told["listen"], shown.channel(), OPTIONS) as channel:
        stub = bubble_pb2_grpc.BubbleServiceStub(channel)
        for call, request in (
            (stub.ListBubbleJobs, pb.ListBubbleJobsRequest()),
            (stub.GetBubbleTimeline, pb.GetBubbleTimelineRequest(job="gpt")),
        ):
            with pytest.raises(grpc.RpcError) as told:
                call(request, timeout=30)
            assert told.value.code() is grpc.StatusCode.UNIMPLEMENTED
        silent = threading.Event()
        streams = [stub.ShareProgress.future(iter(silent.wait, True)) for _ in range(CALLERS.streams)]
        with pytest.raises(grpc.RpcError) as told:
            stub.ShareProgress(iter([]), timeout=30)
        assert isinstance(from_rpc_error(told.value), BusyError)
        assert isinstance(first.jobs(), list)
        for stream in streams:
            stream.cancel()
        silent.set()


@pytest.mark.full
def test_a_killed_agent_leaves_no_gate_open_and_its_successor_continues(site: Site) -> None:
    first, _, player = site
    until(lambda: player.near.says("permitted"))
    first.kill()
    until(lambda: player.near.says("lease") < time.monotonic_ns())
    epoch, steps = player.near.says("gate_epoch"), player.near.says("steps")
    until(lambda: player.near.says("steps") > steps + 10)
    assert player.near.says("gate_epoch") <= epoch + 2, "one may have been open"
    again = AgentProcess(first.folder)
    until(lambda: player.near.says("gate_epoch") > epoch + 2)
    code, _ = again.stop()
    assert code == 0
    assert player.near.says("permitted") == player.near.says("lease") == 0


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"listen": "nowhere"}, "is not HOST:PORT"),
        ({"listen": "0.0.0.0:7442"}, "without TLS"),
        ({"peers": ("a:b",)}, "is not HOST:PORT"),
        ({"folder": Path("/dev/shm") / ("x" * 120)}, "too long"),
    ],
)
def test_settings_that_cannot_work_are_refused(changed: dict[str, object], says: str) -> None:
    settings: dict[str, object] = {"folder": Path("/dev/shm/b"), "name": "n", **changed}
    with pytest.raises(HeadraceError, match=says):
        check(Settings(**settings))  # type: ignore[arg-type]
    for safe in ({"insecure": True}, {"worker_home": Path("/dev/shm/w")}):
        check(Settings(folder=Path("/dev/shm/b"), name="n", listen="0.0.0.0:7442", **safe))  # type: ignore[arg-type]
