"""Which process may speak for which lease, on the socket that all trials of a worker share."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from scripted_scheduler import ScriptedScheduler, Stream, until
from worker_site import Site

from headrace.v1 import runtime_pb2, runtime_pb2_grpc, worker_pb2
from headrace_worker import callers
from headrace_worker.callers import Caller, Identity, identity, may_speak

# The victim's lease and its checkpoint folder are no secret: the other trial gets them.
VICTIM = """
mark("victim", json.dumps([lease, os.environ["HEADRACE_RUNTIME"]]))
while not Path(os.environ["MARKS"], "go").exists():
    time.sleep(0.02)
leave_if_told(report(1, loss=0.5))
"""
CALLS = """
def outcome(call):
    try:
        call()
        return "OK"
    except grpc.RpcError as error:
        return error.code().name
def speak_for(theirs, stub):
    report = runtime_pb2.ReportRequest(lease_id=theirs, sequence=1, step=1, metrics={"loss": -1e9})
    finish = runtime_pb2.FinishRequest(lease_id=theirs, error="RuntimeError: ruined")
    return [
        outcome(lambda: stub.Attach(runtime_pb2.AttachRequest(lease_id=theirs), timeout=60)),
        outcome(lambda: stub.Restored(runtime_pb2.RestoredRequest(lease_id=theirs), timeout=60)),
        outcome(lambda: stub.Report(report, timeout=60)),
        outcome(lambda: stub.Finish(finish, timeout=60)),
    ]
"""
# Directly, by a child that took the victim's environment, and by a child that also left the session.
ATTACKER = """
import subprocess
while not Path(os.environ["MARKS"], "victim").exists():
    time.sleep(0.02)
theirs, address = json.loads(Path(os.environ["MARKS"], "victim").read_text())
assert address == os.environ["HEADRACE_RUNTIME"]
said = {"itself": speak_for(theirs, stub)}
child = [sys.executable, sys.argv[1], address, theirs]
for name, apart in (("child", False), ("session", True)):
    done = subprocess.run(child, env={**os.environ, "HEADRACE_LEASE_ID": theirs}, start_new_session=apart,
                          capture_output=True, text=True)
    said[name] = json.loads(done.stdout) if done.returncode == 0 else done.stderr
orphan = subprocess.run(["sh", "-c", 'setsid "$@" >"$MARKS/orphan" & echo $!', "sh", *child], capture_output=True,
                        env={**os.environ, "HEADRACE_LEASE_ID": theirs}, text=True)
while not Path(os.environ["MARKS"], "orphan").read_text().strip():
    time.sleep(0.05)
said["orphan"] = json.loads(Path(os.environ["MARKS"], "orphan").read_text())
own = subprocess.run([sys.executable, sys.argv[1], address, lease], capture_output=True, text=True,
                     start_new_session=True)
said["own"] = json.loads(own.stdout)[:1]
mark("said", json.dumps(said))
mark("go")
"""
CHILD = f"""
import json, sys, grpc
from headrace.v1 import runtime_pb2, runtime_pb2_grpc
{CALLS}
stub = runtime_pb2_grpc.TrialRuntimeServiceStub(grpc.insecure_channel(sys.argv[1]))
if len(sys.argv) > 3:
    print(json.dumps([outcome(lambda: stub.Attach(runtime_pb2.AttachRequest(lease_id=sys.argv[2]), timeout=60))]))
else:
    print(json.dumps(speak_for(sys.argv[2], stub)))
"""


@pytest.fixture
async def stream(site: Site, scheduler: ScriptedScheduler) -> Stream:
    site.start()
    opened = await scheduler.stream()
    (site.root / "child.py").write_text(CHILD)
    return opened


async def test_a_trial_speaks_for_itself_alone(site: Site, stream: Stream) -> None:
    """Another trial's report and end are refused, from any process of the trial: the victim loses nothing."""
    victim = site.assign(site.program(VICTIM), number=1)
    attacker = site.assign(
        [*site.program(CALLS + ATTACKER), str(site.root / "child.py")], number=2, slots=(1,)
    )
    stream.send(assign=victim)
    stream.send(assign=attacker)
    said = json.loads(await until(lambda: _read(site.marks / "said"), "the attacker's word", 60.0))
    refused = ["PERMISSION_DENIED"] * 4
    assert said == {"itself": refused, "child": refused, "session": refused, "orphan": refused, "own": ["OK"]}
    ends = await until(
        lambda: (
            {e.lease.lease_id: e for e in stream.all("exited") if e}
            if len(stream.all("exited")) == 2
            else None
        )
    )
    assert ends[victim.lease.lease_id].outcome == worker_pb2.EXIT_OUTCOME_FINISHED
    theirs = [report for report in stream.all("report") if report.lease == victim.lease]
    assert [dict(report.metrics) for report in theirs] == [{"loss": 0.5}]


async def test_processes_outside_of_all_trials(site: Site, stream: Stream) -> None:
    """A process in the daemon's own control group is refused, even with the lease in its environment."""
    victim = site.assign(site.program(VICTIM), number=1)
    stream.send(assign=victim)
    lease, address = json.loads(await until(lambda: _read(site.marks / "victim"), "the trial", 60.0))
    program = [sys.executable, str(site.root / "child.py"), address, lease, "attach"]

    def outside(mark: str) -> str:
        environ = {**os.environ, "HEADRACE_LEASE_ID": mark}
        done = subprocess.run(program, env=environ, capture_output=True, text=True, check=True)
        return json.loads(done.stdout)[0]

    assert await asyncio.to_thread(outside, lease) == "PERMISSION_DENIED"
    assert await asyncio.to_thread(outside, "lease-of-another") == "PERMISSION_DENIED"
    # Going past our socket does not help either.
    async with grpc.aio.insecure_channel(address.removesuffix("rt") + "in") as direct:
        stub = runtime_pb2_grpc.TrialRuntimeServiceStub(direct)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Attach(runtime_pb2.AttachRequest(lease_id=lease))
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
    (site.marks / "go").write_text("x")
    await stream.get("exited")


@pytest.mark.parametrize(
    ("family", "mark", "apart", "may"),
    [
        ({7, 8}, "", False, True),  # a descendant
        ({7, 9}, "theirs", True, True),  # it runs a trial's program by itself
        ({9}, "ours", True, False),  # of another trial, whatever its environment says
        ({5}, "ours", True, True),  # outside of all trials, in a container
        ({5}, "ours", False, False),
        ({5}, "theirs", True, False),
        ({5}, "", True, False),
    ],
)
def test_the_rule(
    monkeypatch: pytest.MonkeyPatch, family: set[int], mark: str, *, apart: bool, may: bool
) -> None:
    monkeypatch.setattr(callers, "identity", lambda pid: Identity(pid, 1))
    caller = Caller(pid=1, family=frozenset(Identity(pid, 1) for pid in family), mark=mark, apart=apart)
    assert may_speak(caller, leader=7, mark="ours", others={9}) is may
    monkeypatch.setattr(callers, "identity", lambda pid: Identity(pid, 2))
    before = Caller(pid=1, family=caller.family, mark="", apart=False)
    assert not may_speak(before, leader=7, mark="ours", others={9}), "the number is another process's now"
    monkeypatch.setattr(callers, "identity", lambda _: None)
    assert not may_speak(before, leader=7, mark="ours", others={9}), "the leader is gone"


def test_a_process_is_known_by_when_it_started() -> None:
    with subprocess.Popen(["sleep", "60"]) as one:
        first = identity(one.pid)
        assert first is not None
        assert first == identity(one.pid)
        assert first.started > 0
        one.kill()
        one.wait()
        assert identity(one.pid) is None


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""
