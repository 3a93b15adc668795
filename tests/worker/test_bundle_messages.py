"""Reports of a bundle's members on their way to the scheduler: waiting reports travel together."""

from bundle_site import started
from scripted_scheduler import ScriptedScheduler
from worker_site import Site

from headrace.v1 import event_pb2, worker_pb2
from headrace_worker.outbox import Entry
from headrace_worker.session import MAX_MESSAGE_BYTES, _batches

CONTINUE = event_pb2.DECISION_ACTION_CONTINUE
STOP = event_pb2.DECISION_ACTION_STOP
RELEASED = worker_pb2.EXIT_OUTCOME_RELEASED


async def test_reports_that_wait_are_one_message(site: Site, scheduler: ScriptedScheduler) -> None:
    scheduler.acks = False
    bundle = await started(site, scheduler)
    members = [bundle.start(n, milestone=2) for n in (1, 2, 3)]
    for member in members:
        await bundle.report(member, 2)
    scheduler.acks = True
    bundle.stream.close()
    bundle.stream = await scheduler.stream(2)
    last = [await bundle.report(member, 2) for member in members]
    assert bundle.stream.batches == [6], "in their order, after the connection broke"
    assert [one.sequence for one in bundle.stream.all("report")] == sorted(
        one.sequence for one in bundle.stream.all("report")
    )
    decisions = [
        worker_pb2.LeaseDecision(
            lease=report.lease,
            report_sequence=report.sequence,
            decision=event_pb2.Decision(action=STOP if report is last[0] else CONTINUE, next_milestone=4),
        )
        for report in last
    ]
    bundle.stream.send(decisions=worker_pb2.Decisions(decisions=decisions))
    assert (await bundle.exited(members[0])).outcome == RELEASED
    assert {(await bundle.report(member, 4)).step for member in members[1:]} == {4}


def test_reports_that_follow_each_other_go_together_as_far_as_a_message_holds_them() -> None:
    def entry(sequence: int, size: int, *, exits: bool = False) -> Entry:
        request = worker_pb2.SessionRequest(report=worker_pb2.Report(warnings=["x" * size]))
        if exits:
            request = worker_pb2.SessionRequest(exited=worker_pb2.Exited(error="x" * size))
        return Entry(sequence=sequence, lease_id="l", request=request)

    entries = [
        entry(1, 9),
        entry(2, 9),
        entry(3, 9, exits=True),
        entry(4, 9),
        entry(5, 3 << 20),
        entry(6, 2 << 20),
    ]
    entries += [entry(7, 5 << 20), entry(8, 9)]
    found = _batches(entries)
    assert [[one.sequence for one in together] for together in found] == [[1, 2], [3], [4, 5], [6], [7], [8]]
    for together in found:
        reports = [one.request.report for one in together]
        size = worker_pb2.SessionRequest(reports=worker_pb2.Reports(reports=reports)).ByteSize()
        assert size <= MAX_MESSAGE_BYTES or len(together) == 1
