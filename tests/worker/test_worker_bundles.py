"""Bundles: several leases of one grant in one real process, a daemon, and a scripted scheduler."""

import os
import re
import signal
from pathlib import Path

import psutil
import pytest
from bundle_site import TRAIN, BundleSite, log_of, started
from daemon_process import DaemonProcess
from scripted_scheduler import ScriptedScheduler, until
from worker_site import Site

from headrace.bundle_logs import LogReader
from headrace.v1 import event_pb2, spec_pb2, worker_pb2
from headrace_worker.exits import Verdict, for_all
from headrace_worker.launch import Launch, launch_of
from headrace_worker.session_core import Identity, SessionCore
from headrace_worker.standby import _nameless, _names

CONTINUE = event_pb2.DECISION_ACTION_CONTINUE
PAUSE = event_pb2.DECISION_ACTION_PAUSE
STOP = event_pb2.DECISION_ACTION_STOP
FINISHED = worker_pb2.EXIT_OUTCOME_FINISHED
RELEASED = worker_pb2.EXIT_OUTCOME_RELEASED
FAILED = worker_pb2.EXIT_OUTCOME_FAILED
LOST = worker_pb2.EXIT_OUTCOME_LOST


async def test_two_members_share_a_process_and_one_that_waits_holds_up_nobody(
    site: Site, scheduler: ScriptedScheduler
) -> None:
    bundle = await started(site, scheduler)
    one, other = bundle.start(1, milestone=3), bundle.start(2, milestone=20)
    waiting = await bundle.report(one, 3)
    await bundle.report(other, 12)
    assert [r.step for r in bundle.reports(one)] == [1, 2, 3], "it does not train past its milestone"
    bundle.stream.decide(waiting, CONTINUE, 27)
    await bundle.report(one, 5)
    await bundle.decide(other, 20, PAUSE)
    exited = await bundle.exited(other)
    assert exited.outcome == RELEASED
    await bundle.decide(one, 27, STOP)
    assert (await bundle.exited(one)).outcome == RELEASED
    await bundle.sees(over=True)
    assert len(bundle.pids()) == 1
    assert bundle.reports(other)[-1].checkpoint.uri.startswith("file://")
    await until(lambda: not list((site.root / "home/scratch").iterdir()))  # deleted when Exited is sent
    assert "training" in exited.log_tail
    assert f"bundle of up to 4 trials, which prints into {site.root}" in log_of(site, 1).read_text()


@pytest.mark.full
async def test_a_member_s_log_shows_what_its_bundle_prints_while_it_is_aboard(
    site: Site, scheduler: ScriptedScheduler
) -> None:
    """It shows lines as they are printed, and each line once, whether the log is followed or read afterwards."""
    printing = TRAIN.replace("    say(", '    print("turn", turn, flush=True)\n    say(', 1)
    bundle = await started(site, scheduler, printing)
    one, _ = bundle.start(1, milestone=3), bundle.start(2, milestone=200)
    waiting = await bundle.report(one, 3)
    reader = LogReader(log_of(site, 1))
    live = b"".join(reader.new())
    assert len(_turns(live)) >= 2
    bundle.stream.decide(waiting, PAUSE)
    await bundle.exited(one)
    whole = live + b"".join(reader.new()) + reader.rest()
    assert _turns(whole) == list(range(len(_turns(whole))))
    afterwards = b"".join(LogReader(log_of(site, 1)).new())
    assert _turns(afterwards) == list(range(len(_turns(afterwards))))
    assert len(_turns(live)) <= len(_turns(afterwards)) <= len(_turns(whole))


def _turns(printed: bytes) -> list[int]:
    return [int(number) for number in re.findall(rb"^turn (\d+)$", printed, re.MULTILINE)]


async def test_a_member_joins_a_bundle_that_runs_from_its_checkpoint(
    site: Site, scheduler: ScriptedScheduler
) -> None:
    bundle = await started(site, scheduler)
    first, second = bundle.start(1, milestone=27), bundle.start(2, milestone=2)
    report = await bundle.report(second, 2)
    bundle.stream.decide(report, PAUSE)
    assert (await bundle.exited(second)).outcome == RELEASED
    again = bundle.start(2, milestone=4, attempt=2, checkpoint=report.checkpoint, resume_step=2)
    await bundle.report(again, 4)
    assert [r.step for r in bundle.reports(again)] == [3, 4]
    assert len(bundle.pids()) == 1
    assert not bundle.exits(first)


@pytest.mark.full
async def test_a_seat_that_is_given_away_at_once_keeps_the_process(
    site: Site, scheduler: ScriptedScheduler
) -> None:
    bundle = await started(site, scheduler)
    last = bundle.start(1)
    await bundle.decide(last, 3, STOP)
    after = bundle.start(2)
    await bundle.report(after, 3)
    assert len(bundle.pids()) == 1
    assert (await bundle.exited(last)).outcome == RELEASED


@pytest.mark.full
async def test_a_trial_after_the_end_gets_the_next_process(site: Site, scheduler: ScriptedScheduler) -> None:
    bundle = await started(site, scheduler)
    last = bundle.start(1)
    await bundle.decide(last, 3, STOP)
    await bundle.sees(over=True)
    after = bundle.start(2)
    await bundle.report(after, 3)
    assert len(bundle.pids()) == 2


async def test_a_cancelled_member_is_gone_and_the_others_continue(
    site: Site, scheduler: ScriptedScheduler
) -> None:
    bundle = await started(site, scheduler)
    kept, cancelled = bundle.start(1, milestone=27), bundle.start(2, milestone=2)
    await bundle.report(cancelled, 2)
    bundle.stream.send(cancel=worker_pb2.Cancel(lease=cancelled.lease, reason="a user stopped it"))
    await bundle.sees(gone=2)
    assert (await bundle.exited(cancelled)).outcome == RELEASED
    await bundle.report(kept, 27)
    assert not bundle.exits(kept)


async def test_a_process_that_is_killed_loses_all_and_charges_nobody(
    site: Site, scheduler: ScriptedScheduler
) -> None:
    bundle = await started(site, scheduler)
    members = [bundle.start(n) for n in (1, 2, 3)]
    for member in members:
        await bundle.report(member, 3)
    os.kill(bundle.pids()[0], signal.SIGKILL)
    for member in members:
        exited = await bundle.exited(member)
        assert (exited.outcome, exited.error) == (LOST, "its bundle of 3 trials ended: killed by SIGKILL")
    after = site.assign(site.program("report(1)"), number=9)
    bundle.stream.send(assign=after)
    assert (await bundle.exited(after)).outcome == FINISHED, "the slot is free again"


@pytest.mark.cases(3)
@pytest.mark.parametrize(
    ("body", "outcome", "error"),
    [
        (
            """
stub.FinishBundle(runtime_pb2.FinishBundleRequest(
    grant_id=grant, error='ValueError: no', traceback='Traceback: no'))
sys.exit(1)
""",
            LOST,
            "its bundle of 1 trial ended: ValueError: no",
        ),
        (
            """
stub.FinishBundle(runtime_pb2.FinishBundleRequest(
    grant_id=grant, error='OutOfMemoryError: 2 GiB', out_of_memory=True))
sys.exit(1)
""",
            LOST,
            "its bundle of 1 trial ran out of memory: OutOfMemoryError: 2 GiB",
        ),
        (
            """
stub.FinishBundle(runtime_pb2.FinishBundleRequest(
    grant_id=grant, error='FuseError: layer fc is compiled', of_each=True))
sys.exit(1)
""",
            FAILED,
            "FuseError: layer fc is compiled",
        ),
        (
            "print('terminate called after throwing std::bad_alloc', flush=True); os.abort()",
            LOST,
            "its bundle of 1 trial ran out of memory: killed by SIGABRT",
        ),
        (
            "raise ValueError('no')",
            LOST,
            "its bundle of 1 trial ended: exit status 1; last output: ValueError: no",
        ),
        ("stub.FinishBundle(runtime_pb2.FinishBundleRequest(grant_id=grant))", FINISHED, ""),
    ],
)
async def test_how_a_bundle_ends(
    site: Site,
    scheduler: ScriptedScheduler,
    body: str,
    outcome: worker_pb2.ExitOutcome.ValueType,
    error: str,
) -> None:
    bundle = await started(site, scheduler, body)
    exited = await bundle.exited(bundle.start(1))
    assert (exited.outcome, exited.error) == (outcome, error)
    assert exited.out_of_memory == ("ran out of memory" in error)
    if "Traceback: no" in body:
        assert "Traceback: no" in exited.log_tail


@pytest.mark.full
async def test_a_member_with_an_error_of_its_own_is_charged_alone(
    site: Site, scheduler: ScriptedScheduler
) -> None:
    bundle = await started(
        site,
        scheduler,
        """
def failed(lease):
    error = "" if number(lease) == 2 else "ValueError: boom"
    return runtime_pb2.FinishRequest(lease_id=lease, error=error, traceback=error and "Traceback: boom")
while True:
    due = [lease for lease in members if number(lease) > 1 and steps[lease] == 1]
    say([report(lease, save=True) for lease in free()], [failed(lease) for lease in due])
    for lease in due:
        waiting.discard(lease)
        members.pop(lease, None)
""",
    )
    sound, finished, failed = (bundle.start(n, milestone=27) for n in (1, 2, 3))
    exited = await bundle.exited(failed)
    assert (exited.outcome, exited.error) == (FAILED, "ValueError: boom")
    assert "Traceback: boom" in exited.log_tail
    assert (await bundle.exited(finished)).outcome == FINISHED
    assert [r.step for r in bundle.reports(failed)] == [1, 2], "what it reported with its last turn is kept"
    await bundle.report(sound, 27)
    assert not bundle.exits(sound)


async def test_a_report_that_cannot_be_taken_fails_its_member_alone(
    site: Site, scheduler: ScriptedScheduler
) -> None:
    bundle = await started(
        site,
        scheduler,
        """
while True:
    for lease in free():
        steps[lease] += 9 if number(lease) == 2 and steps[lease] == 1 else 0
    say([report(lease) for lease in free()])
""",
    )
    sound, bad = bundle.start(1, milestone=9, rungs=[9, 27]), bundle.start(2, milestone=9, rungs=[9, 27])
    exited = await bundle.exited(bad)
    assert exited.outcome == FAILED
    assert "rung" in exited.error
    await bundle.report(sound, 9)
    assert not bundle.exits(sound)


async def test_a_repeated_turn_has_the_same_answer_and_says_nothing_twice(
    site: Site, scheduler: ScriptedScheduler
) -> None:
    bundle = await started(
        site,
        scheduler,
        """
while True:
    say([report(lease, save=True) for lease in free()], again=3)
    try:
        stub.Turn(runtime_pb2.TurnRequest(grant_id=grant, sequence=turn - 1 or turn, waits=True), timeout=5)
    except grpc.RpcError as error:
        note(code=error.code().name)
""",
    )
    one = bundle.start(1, milestone=3)
    await bundle.decide(one, 3, CONTINUE, 5)
    await bundle.decide(one, 5, STOP)
    assert (await bundle.exited(one)).outcome == RELEASED
    assert [r.step for r in bundle.reports(one)] == [1, 2, 3, 4, 5]
    await bundle.sees(code="INVALID_ARGUMENT")


async def test_a_silent_bundle_is_ended_and_charges_nobody(site: Site, scheduler: ScriptedScheduler) -> None:
    bundle = await started(site, scheduler, "time.sleep(100)")
    members = [bundle.start(n, report_timeout_s=1.5, grace_s=0.5) for n in (1, 2)]
    for member in members:
        exited = await bundle.exited(member)
        assert exited.outcome == LOST
        assert "reported nothing for 1.5 s" in exited.error


@pytest.mark.full
async def test_another_grant_gets_the_slot_when_the_bundle_has_left(
    site: Site, scheduler: ScriptedScheduler
) -> None:
    bundle = await started(site, scheduler)
    members = [bundle.start(n) for n in (1, 2)]
    reports = [await bundle.report(member, 3) for member in members]
    next_one = site.assign(site.program("report(1)"), number=9)
    bundle.stream.send(assign=next_one)
    for report in reports:
        bundle.stream.decide(report, PAUSE)
    assert (await bundle.exited(next_one)).outcome == FINISHED
    assert [(await bundle.exited(member)).outcome for member in members] == [RELEASED, RELEASED]


async def test_a_member_is_no_trial_by_itself(site: Site, scheduler: ScriptedScheduler) -> None:
    bundle = await started(
        site,
        scheduler,
        """
try:
    stub.Attach(runtime_pb2.AttachRequest(lease_id=os.environ["HEADRACE_LEASE_ID"]))
except grpc.RpcError as error:
    note(code=error.code().name)
try:
    stub.AttachBundle(runtime_pb2.AttachBundleRequest(grant_id="another"))
except grpc.RpcError as error:
    note(unknown=error.code().name)
""",
    )
    bundle.start(1)
    await bundle.sees(code="FAILED_PRECONDITION")
    await bundle.sees(unknown="NOT_FOUND")


async def test_a_clean_stop_loses_all_members(site: Site, scheduler: ScriptedScheduler) -> None:
    bundle = await started(site, scheduler)
    members = [bundle.start(n) for n in (1, 2)]
    for member in members:
        await bundle.report(member, 3)
    site.daemons[0][0].stop()
    last = BundleSite(site, await scheduler.stream(2))
    for member in members:
        exited = await last.exited(member)
        assert (exited.outcome, exited.error) == (LOST, "the worker was stopped")
    await site.daemons[0][1]
    site.daemons.clear()
    assert not psutil.pid_exists(bundle.pids()[0])


@pytest.mark.full
async def test_kill_9_of_the_daemon_loses_all_members_and_leaves_nothing(
    site: Site, scheduler: ScriptedScheduler, daemons: DaemonProcess
) -> None:
    daemon = await daemons.start()
    stray = """
if os.fork() == 0:
    os.setsid()
    (MARKS / "stray").write_text(str(os.getpid()))
    os.execvp("sleep", ["sleep", "100"])
"""
    bundle = BundleSite(site, await scheduler.stream(), stray + TRAIN)
    first, second = bundle.start(1), bundle.start(2)
    await bundle.report(second, 3)
    await bundle.decide(first, 3, STOP)
    await bundle.exited(first)
    stray_pid = int(await until(lambda: (p := site.marks / "stray").exists() and p.read_text()))
    assert psutil.Process(stray_pid).environ()["HEADRACE_LEASE_ID"] == first.lease.lease_id
    daemon.kill()
    await daemon.wait()
    await daemons.start()
    after = BundleSite(site, await scheduler.stream(2))
    exited = await after.exited(second)
    assert (exited.outcome, exited.error) == (LOST, "the worker daemon died")
    for pid in (*bundle.pids(), stray_pid):
        await until(lambda pid=pid: not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie")


@pytest.mark.full
def test_members_of_one_bundle_do_not_crowd_their_slot() -> None:
    core = SessionCore(Identity(worker="w", incarnation="i", devices=(), labels={}, version="", log_dir="/"))
    core.connect()
    core.receive(worker_pb2.SessionResponse(welcome=worker_pb2.Welcome(protocol=1)))

    def assign(lease: str, grant: str) -> None:
        held = worker_pb2.Assign(
            lease=event_pb2.LeaseRef(lease_id=lease), grant=worker_pb2.Grant(slots=[0], id=grant, seats=4)
        )
        core.receive(worker_pb2.SessionResponse(assign=held))

    def tick() -> str:
        core.receive(worker_pb2.SessionResponse(ack=worker_pb2.Ack(heartbeat=1)))
        return core.tick()

    assign("a", "g")
    assign("b", "g")
    assert not any(tick() for _ in range(10))
    assign("c", "another")
    assert any("waits for a slot" in tick() for _ in range(10))


@pytest.mark.full
def test_a_standby_process_for_a_bundle_is_for_any_bundle_and_no_lone_trial() -> None:
    def launch(lease: str, seats: int) -> Launch:
        return launch_of(
            worker_pb2.Assign(
                lease=event_pb2.LeaseRef(lease_id=lease, trial=f"studies/s/trials/{len(lease)}"),
                template=spec_pb2.TrialTemplate(callable="m:f"),
                grant=worker_pb2.Grant(slots=[0], id=f"grant-of-{lease}", seats=seats),
            ),
            devices=(),
            runtime="",
            log_dir=Path("/l"),
            environ={},
        )

    bundle, alone = launch("a", 4), launch("a", 1)
    assert bundle.env["HEADRACE_BUNDLE"] == "grant-of-a"
    assert "HEADRACE_BUNDLE" not in alone.env
    assert _nameless(bundle) == _nameless(launch("bb", 4)) != _nameless(alone)
    assert "HEADRACE_BUNDLE" in _names(bundle)


def test_a_bundle_s_end_charges_nobody() -> None:
    failed = Verdict(outcome=FAILED, error="exit status 1", exit_code=1)
    found = for_all(failed, members=2, out_of_memory=False)
    assert found == Verdict(outcome=LOST, error="its bundle of 2 trials ended: exit status 1", exit_code=1)
    finished = Verdict(outcome=FINISHED)
    assert for_all(finished, members=2, out_of_memory=False) is finished


@pytest.mark.full
async def test_a_turn_tells_what_it_cost_on_one_of_its_reports(
    site: Site, scheduler: ScriptedScheduler
) -> None:
    body = """
while True:
    reports = [report(lease, save=True) for lease in free()]
    if reports:
        reports[0].turn.members = len(reports)
        reports[0].turn.time.FromMilliseconds(250)
        reports[0].turn.memory_bytes = 7
    say(reports)
"""
    bundle = await started(site, scheduler, body)
    first = await bundle.report(bundle.start(1), 1)
    assert (first.turn.members, first.turn.time.ToTimedelta().total_seconds(), first.turn.memory_bytes) == (
        1,
        0.25,
        7,
    )
