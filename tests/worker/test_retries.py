"""A trial that failed on a worker waits before it starts there again; another trial does not."""

from scripted_scheduler import ScriptedScheduler, until
from worker_site import Site

from headrace.v1 import event_pb2, worker_pb2
from headrace_worker.retries import Retries, trial_key

FAILED = worker_pb2.EXIT_OUTCOME_FAILED


def test_the_wait_doubles_and_starts_over() -> None:
    retries = Retries()
    waits = []
    for _ in range(7):
        waits.append(retries.wait_s("a"))
        retries.failed("a")
    assert waits == [0, 1, 2, 4, 8, 16, 30]
    assert retries.wait_s("b") == 0
    retries.went_on("a")
    assert retries.wait_s("a") == 0


async def test_a_trial_that_failed_here_starts_later(site: Site, scheduler: ScriptedScheduler) -> None:
    site.start()
    stream = await scheduler.stream()
    failing = site.program("import sys, time; print(time.time()); sys.exit('boom')", prelude=False)
    ended = []
    for attempt in (1, 2):
        stream.send(assign=site.assign(failing, attempt=attempt))
        ended.append(await stream.get("exited", attempt))
    assert [one.outcome for one in ended] == [FAILED] * 2
    first, second = (float(one.log_tail.splitlines()[0]) for one in ended)
    assert second - first >= 1.0
    third = site.assign(failing, attempt=3)
    stream.send(assign=third)  # waits for two seconds, and can be ended meanwhile
    other = site.assign(site.program("mark('up')"), number=1, slots=(1,))
    stream.send(assign=other)
    await until((site.marks / "up").exists, "another trial starts at once")
    stream.send(cancel=worker_pb2.Cancel(lease=third.lease, reason="a user stopped it"))
    await until(
        lambda: any(
            one.lease == third.lease and one.outcome == worker_pb2.EXIT_OUTCOME_RELEASED
            for one in stream.all("exited")
        ),
        "it is let go while it waits",
    )


def test_trials_of_one_name_in_two_projects_wait_each_for_itself() -> None:
    lease = event_pb2.LeaseRef(trial="studies/s/trials/0")
    one, other = (worker_pb2.Assign(lease=lease, study_uid=uid) for uid in ("a1", "b2"))
    retries = Retries()
    retries.failed(trial_key(one))
    assert retries.wait_s(trial_key(one)) > 0
    assert retries.wait_s(trial_key(other)) == 0
