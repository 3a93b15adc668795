"""Seats of Kubernetes whose name is taken or whose pod outlives its Job: never two workers on one, and no seat that
cannot be filled keeps the others empty.
"""

from datetime import timedelta

import pytest
from fake_api_server import ApiServer
from kubernetes_site import KIND, Clock, Scheduler, engine, take

from headrace.launch.engine import EngineError, Stage
from headrace.launch.kubernetes.manifest import Worker
from headrace.launch.loop import turn

pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize("is_orphan", [False, True])
def test_a_pod_that_drains_without_its_job_holds_its_seat(
    server: ApiServer, clock: Clock, is_orphan: bool
) -> None:
    """`kubectl delete job` deletes the Job at once, and its pod when the worker has drained; with --cascade=orphan
    the pod stays.
    """
    scheduler = Scheduler()
    take(server, clock, scheduler, most=2)
    for seat in range(2):
        server.give_node(seat)
    take(server, clock, scheduler, most=2)
    for seat in range(2):
        server.start(seat)
        del server.objects["jobs"][f"headrace-tune-{seat}"]
        if is_orphan:
            del server.pod_of(seat)["metadata"]["ownerReferences"]
    found = take(server, clock, scheduler, most=2)
    assert found.decision.submit == ()
    pods = [server.pod_of(seat)["metadata"] for seat in range(2)]
    assert [(one.id, one.worker, one.stage) for one in found.members] == [
        (pod["uid"], pod["name"], Stage.RUNNING) for pod in pods
    ]
    server.pod_of(0)["status"] = {"phase": "Failed"}
    assert take(server, clock, scheduler, most=2).decision.submit == (0,)


def test_an_ended_job_that_is_not_deleted_leaves_its_seat_to_others(server: ApiServer, clock: Clock) -> None:
    scheduler = Scheduler(waiting=2)  # for one worker
    take(server, clock, scheduler)
    server.end(0)
    server.objects["jobs"]["headrace-tune-0"]["metadata"]["deletionTimestamp"] = "2026-03-01T00:00:00Z"
    assert take(server, clock, scheduler).failures == (), "it may be gone soon"
    assert set(server.objects["jobs"]) == {"headrace-tune-0", "headrace-tune-1"}
    assert take(server, clock, scheduler).decision.submit == (), "what waits has a worker"
    clock.now += timedelta(minutes=5)
    scheduler.waiting = 100
    found = take(server, clock, scheduler)
    assert found.decision.submit == (0, 2)
    (failure,) = found.failures
    assert "headrace-tune-0 was deleted at 2026-03-01T00:00:00Z and is still there" in failure.message
    assert "finalizers" in failure.remedy
    assert len(server.objects["jobs"]) == 3, "never more than --max"


def test_a_name_that_is_anothers_leaves_its_seat_to_others(server: ApiServer, clock: Clock) -> None:
    server.objects["jobs"]["headrace-tune-0"] = {
        "metadata": {"name": "headrace-tune-0", "uid": "u", "labels": {}}
    }
    found = take(server, clock, Scheduler(waiting=2))
    (failure,) = found.failures
    assert isinstance(failure, EngineError)
    assert "headrace-tune-0 does not belong to this launch" in failure.message
    assert set(server.objects["jobs"]) == {"headrace-tune-0", "headrace-tune-1"}
    assert take(server, clock, Scheduler(waiting=2)).failures == (), "what waits has a worker"


def test_jobs_without_a_secret_get_no_token(server: ApiServer, clock: Clock) -> None:
    """They were created before the scheduler had TLS."""
    plain = Worker(scheduler="head:7440", store="s3://b/x", kind=KIND, idle_exit="10m")
    turn(engine(server, clock, plain), Scheduler(), kind=KIND, most=1)
    server.give_node(0)
    scheduler = Scheduler()
    found = take(server, clock, scheduler, most=1)
    assert (found.failures, found.tokens, scheduler.made) == ((), (), {})
    assert engine(server, clock).deliver(found.members[0], "hr_x") is False
