"""What a worker does when a session ends: nothing is lost, and nothing happens twice."""

import asyncio

import pytest
from scripted_scheduler import ScriptedScheduler, until
from worker_site import Site, lease_id

from headrace.v1 import event_pb2, worker_pb2

CONTINUE = event_pb2.DECISION_ACTION_CONTINUE


STOP = event_pb2.DECISION_ACTION_STOP


RELEASED = worker_pb2.EXIT_OUTCOME_RELEASED


async def _up(site: Site) -> int:
    await until(lambda: (site.marks / "up").exists(), "the trial is up")
    return int((site.marks / "up").read_text())


async def test_unacknowledged_messages_are_sent_again_in_order(
    site: Site, scheduler: ScriptedScheduler
) -> None:
    scheduler.acks = False
    site.start()
    stream = await scheduler.stream()
    stream.send(assign=site.assign(site.program("[report(n) for n in range(1, 8)]")))
    await stream.get("exited")
    first = stream.durable()
    stream.send(ack=worker_pb2.Ack(sequences=[first[0].sequence, first[2].sequence, 9999]))
    stream.close()
    again = await scheduler.stream(2)
    await again.get("exited")
    assert again.durable() == [m for m in first if m.sequence not in {first[0].sequence, first[2].sequence}]
    assert [ref.lease_id for ref in again.hello.held] == [lease_id(1)], (
        "held until its Exited is acknowledged"
    )
    again.send(ack=worker_pb2.Ack(sequences=[m.sequence for m in first]))
    again.close()
    last = await scheduler.stream(3)
    await last.get("heartbeat", 2)
    assert last.durable() == []
    assert not last.hello.held


async def test_a_second_assign_starts_nothing(site: Site, scheduler: ScriptedScheduler) -> None:
    site.start()
    stream = await scheduler.stream()
    assign = site.assign(site.program("mark('up', os.getpid()); report(1)"), milestone=1)
    stream.send(assign=assign)
    report = await stream.get("report")
    stream.send(assign=assign)
    stream.decide(report, STOP)
    stream.decide(report, STOP)
    await stream.get("exited")
    stream.send(assign=assign)
    await stream.get("heartbeat", len(stream.all("heartbeat")) + 2)
    assert len(stream.all("exited")) == 1
    log = (site.root / "home/logs/s/0.log").read_text()
    assert log.count("==== ") == 1


async def test_a_decision_that_ends_a_trial_answers_the_report_that_is_on_its_way(
    site: Site, scheduler: ScriptedScheduler
) -> None:
    """The next report once waited for an answer of its own until the grace period was over, so the code after it
    never ran."""
    site.start()
    stream = await scheduler.stream()
    command = site.program("report(1); mark('answered', report(2).action)")
    stream.send(assign=site.assign(command, milestone=2))
    await stream.get("report", 2)
    stream.decide(stream.all("report")[0], STOP)
    assert (await stream.get("exited")).outcome == RELEASED
    assert (site.marks / "answered").read_text() == str(STOP)


@pytest.mark.full
async def test_a_lost_decision_is_asked_for_again(site: Site, scheduler: ScriptedScheduler) -> None:
    site.start()
    stream = await scheduler.stream()
    stream.send(assign=site.assign(site.program("report(1); mark('answered')"), milestone=1))
    await stream.get("report")
    stream.close()  # acknowledged, but the decision was lost with the stream
    again = await scheduler.stream(2)
    again.decide(await again.get("report"), CONTINUE, next_milestone=5)
    assert (await again.get("exited")).outcome == worker_pb2.EXIT_OUTCOME_FINISHED


@pytest.mark.full
async def test_a_report_acknowledged_but_never_decided_reopens_the_session(
    site: Site, scheduler: ScriptedScheduler
) -> None:
    site.start()
    stream = await scheduler.stream()
    stream.send(assign=site.assign(site.program("report(1)"), milestone=1))
    again = await scheduler.stream(2)
    assert len(stream.all("report")) == 1
    again.decide(await again.get("report"), STOP)
    await again.get("exited")


async def test_fenced_leases_are_killed_at_welcome(site: Site, scheduler: ScriptedScheduler) -> None:
    site.start()
    stream = await scheduler.stream()
    stream.send(assign=site.assign(site.program("mark('up', os.getpid()); report(5); report(10)")))
    await _up(site)
    await stream.get("report", 2)
    scheduler.welcomes = False
    stream.close()
    again = await scheduler.stream(2)
    assert [ref.lease_id for ref in again.hello.held] == [lease_id(1)]
    again.welcome(held=[])
    exited = await again.get("exited")
    assert exited.outcome == RELEASED


async def test_trials_continue_to_their_milestone_without_a_scheduler(
    site: Site, scheduler: ScriptedScheduler
) -> None:
    site.start()
    stream = await scheduler.stream()
    command = site.program(
        """
        for step in range(1, 6):
            while step == 2 and not Path(os.environ["MARKS"], "go").exists():
                time.sleep(0.01)
            report(step)
            mark(f"answered{step}")
        """
    )
    stream.send(assign=site.assign(command, milestone=5))
    await stream.get("report")
    address = scheduler.address
    await scheduler.stop()
    (site.marks / "go").write_text("")
    await until(lambda: (site.marks / "answered4").exists())
    assert not (site.marks / "answered5").exists()
    await scheduler.start(address)
    again = await scheduler.stream(2)
    fifth = await again.get("report", 4)
    assert [r.step for r in again.all("report")] == [2, 3, 4, 5]
    again.decide(fifth, STOP)
    await again.get("exited")


@pytest.mark.full
async def test_a_draining_scheduler_is_left_for_another(
    site: Site, scheduler: ScriptedScheduler, other_scheduler: ScriptedScheduler
) -> None:
    scheduler.address += f",{other_scheduler.address}"
    site.start()
    await until(lambda: scheduler.streams or other_scheduler.streams, "a session with any of them")
    # it starts with any of them
    first, second = (scheduler, other_scheduler) if scheduler.streams else (other_scheduler, scheduler)
    stream = await first.stream()
    stream.send(drain=worker_pb2.Drain())
    await second.stream()
    await asyncio.wait_for(stream.over.wait(), 60)
    await site.stop()


async def test_a_repeated_report_call_gets_the_same_outcome(site: Site, scheduler: ScriptedScheduler) -> None:
    site.start()
    stream = await scheduler.stream()
    command = site.program(
        """
        try:
            report(1, save=True, timeout=0.3)
        except grpc.RpcError as error:
            mark("deadline", error.code().name)
        mark("answer", report(1, again=True).action)
        """
    )
    stream.send(assign=site.assign(command, milestone=1))
    report = await stream.get("report")
    await until(lambda: (site.marks / "deadline").exists())
    stream.decide(report, CONTINUE, next_milestone=3)
    await stream.get("exited")
    assert (site.marks / "answer").read_text() == "1"
    assert len(stream.all("report")) == 1
