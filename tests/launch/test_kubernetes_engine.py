"""The loop over Kubernetes, against an API server with the usual faults: never more than one worker on a seat."""

import json
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import kubernetes_validate
import pytest
import yaml
from fake_api_server import ApiServer, Fault
from kubernetes_site import GPUS, KIND, WORKER, Clock, Scheduler, engine, take

from headrace.errors import HeadraceError
from headrace.launch.decision import Kind
from headrace.launch.engine import EngineError, Stage
from headrace.launch.kubernetes import api as api_module
from headrace.launch.kubernetes import manifest
from headrace.launch.kubernetes.api import Api, StatusError
from headrace.launch.kubernetes.manifest import Worker
from headrace.launch.loop import Turn, turn

pytestmark = pytest.mark.timeout(120)


class Killed(BaseException):
    """The loop's process is gone."""


def test_seats_are_filled_once_and_workers_get_a_token_of_their_own(server: ApiServer, clock: Clock) -> None:
    scheduler = Scheduler()
    assert take(server, clock, scheduler).decision.submit == (0, 1, 2)
    assert sorted(server.objects["jobs"]) == ["headrace-tune-0", "headrace-tune-1", "headrace-tune-2"]
    second = take(server, clock, scheduler)
    assert second.decision.submit == ()
    assert second.tokens == (), "no pod has a node, so a token would only expire"
    assert server.start(1) is None
    server.give_node(1)
    assert server.start(1) is None, "it waits for its secret"
    assert take(server, clock, scheduler).tokens == (server.pod_of(1)["metadata"]["name"],)
    assert take(server, clock, scheduler).tokens == (), "once"
    secret = server.start(1)
    assert secret is not None
    assert scheduler.made[secret] == server.pod_of(1)["metadata"]["name"]
    third = take(server, clock, scheduler)
    assert [member.stage for member in third.members] == [Stage.PENDING, Stage.RUNNING, Stage.PENDING]
    assert third.members[1].worker == server.pod_of(1)["metadata"]["name"]


def test_without_tokens_there_is_no_secret(server: ApiServer, clock: Clock) -> None:
    plain = Worker(scheduler="head:7440", store="s3://b/x", kind=KIND, idle_exit="10m")
    turn(engine(server, clock, plain), Scheduler(), kind=KIND, most=1)
    server.give_node(0)
    assert server.start(0) == ""
    turn(engine(server, clock, plain), Scheduler(), kind=KIND, most=1)
    assert server.objects["secrets"] == {}


def test_a_token_is_replaced_while_a_large_image_is_pulled(server: ApiServer, clock: Clock) -> None:
    scheduler = Scheduler()
    take(server, clock, scheduler, most=1)
    server.give_node(0)
    take(server, clock, scheduler, most=1)
    clock.now += timedelta(minutes=4)
    assert take(server, clock, scheduler, most=1).tokens == ()
    clock.now += timedelta(minutes=2)
    assert len(take(server, clock, scheduler, most=1).tokens) == 1
    assert server.start(0) == "hr_1"
    clock.now += timedelta(hours=1)
    assert take(server, clock, scheduler, most=1).tokens == (), "it has started"


@pytest.mark.parametrize("failed", [False, True])
def test_an_ended_worker_frees_its_seat(server: ApiServer, clock: Clock, failed: bool) -> None:
    scheduler = Scheduler()
    take(server, clock, scheduler, most=1)
    first = server.pod_of(0)["metadata"]["name"]
    server.give_node(0)
    take(server, clock, scheduler, most=1)
    server.start(0)
    server.end(0, failed=failed)
    take(server, clock, scheduler, most=1)  # deletes what ended, with its pod and its secret
    assert server.objects == {"jobs": {}, "pods": {}, "secrets": {}}
    take(server, clock, scheduler, most=1)
    assert server.pod_of(0)["metadata"]["name"] != first


def test_a_job_that_is_no_longer_there_gets_no_token(server: ApiServer, clock: Clock) -> None:
    scheduler = Scheduler()
    take(server, clock, scheduler, most=1)
    server.give_node(0)
    mine = engine(server, clock)
    (member,) = mine.members()
    server.end(0, failed=True)
    engine(server, clock).submit([0])
    assert mine.deliver(member, "hr_x") is False
    engine(server, clock).submit([0])
    assert mine.deliver(member, "hr_x") is False, "the seat has another Job"


def test_nothing_waits_and_nothing_is_submitted(server: ApiServer, clock: Clock) -> None:
    assert take(server, clock, Scheduler(waiting=0)).decision.submit == ()
    assert server.asked["POST"] == 0


def test_two_loops_at_once_fill_each_seat_once(server: ApiServer, clock: Clock) -> None:
    one, other = engine(server, clock), engine(server, clock)
    for each in (one, other):  # both have seen an empty cluster
        each.submit((0, 1))
    assert len(server.objects["jobs"]) == len(server.objects["pods"]) == 2
    server.give_node(0)
    member = one.members()[0]
    assert one.deliver(member, "hr_one") is True
    assert other.deliver(member, "hr_other") is False
    assert server.start(0) == "hr_one"


FAULTS = ["429", "500", "503", "lost", "cut", "junk"]


@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "PUT"])
def test_a_passing_fault_changes_nothing(server: ApiServer, clock: Clock, kind: str, method: str) -> None:
    scheduler = Scheduler()

    def once() -> Turn:
        server.faults.append(Fault(kind, times=2, method=method))
        found = take(server, clock, scheduler, most=2)
        assert found.failures == ()
        server.faults.clear()
        return found

    once()
    assert len(server.objects["jobs"]) == 2
    server.give_node(0)
    once()
    clock.now += timedelta(minutes=6)
    once()
    assert server.start(0) == "hr_1", "the token that replaced the first one"
    assert scheduler.revoked == set(), "an answer that is lost is no other loop"
    server.end(0)
    once()
    once()
    assert len(server.objects["jobs"]) == len(server.objects["pods"]) == 2


def test_retry_after_is_respected(server: ApiServer, clock: Clock) -> None:
    slept: list[float] = []
    server.faults.append(Fault("429", method="GET"))
    engine(server, clock, sleep=slept.append).members()
    assert slept == [1.0]


def test_a_fault_that_stays_is_told_and_the_turn_goes_on_later(server: ApiServer, clock: Clock) -> None:
    server.faults.append(Fault("503", times=99))
    with pytest.raises(
        StatusError, match="answered 503 to GET /apis/batch/v1/namespaces/team/jobs: fault 503"
    ):
        take(server, clock, Scheduler())
    server.faults.clear()
    assert take(server, clock, Scheduler()).failures == ()


def test_a_slow_server_is_not_waited_for(server: ApiServer, clock: Clock) -> None:
    server.faults.append(Fault("slow", times=99))
    with pytest.raises(EngineError, match="does not answer: timed out"):
        engine(server, clock, call_s=0.2).members()


def test_a_list_that_expires_between_its_pages_starts_again(
    server: ApiServer, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_module, "PAGE", 2)
    engine(server, clock).submit(range(5))

    seen = len(engine(server, clock).members())
    server.faults.append(Fault("410", times=1, method="GET"))
    assert len(engine(server, clock).members()) == seen == 5
    server.faults.append(Fault("410", times=99, method="GET"))
    with pytest.raises(EngineError, match="again and again"):
        engine(server, clock).members()


def test_a_loop_that_is_killed_at_any_request_loses_and_doubles_nothing(
    server: ApiServer, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a request leaves, and after it was carried out, at each request of the first turns."""
    once = Api._once
    left, dies_after = [0], [False]

    def dies(self: Api, *request: Any) -> Any:
        left[0] -= 1
        if left[0] == 0 and not dies_after[0]:
            raise Killed
        answer = once(self, *request)
        if left[0] == 0:
            raise Killed
        return answer

    monkeypatch.setattr(Api, "_once", dies)
    scheduler = Scheduler()
    for dies_after[0] in (False, True):
        for at in range(1, 12):
            left[0] = at
            with suppress(Killed):
                take(server, clock, scheduler)
            for seat in range(3):
                if f"headrace-tune-{seat}" in server.objects["jobs"]:
                    server.give_node(seat)
            assert len(server.objects["jobs"]) <= 3
            assert len(server.objects["pods"]) == len(server.objects["jobs"])
    left[0] = -1
    take(server, clock, scheduler)
    take(server, clock, scheduler)
    started = [server.start(seat) for seat in range(3)]
    assert [scheduler.made[str(token)] for token in started] == [
        server.pod_of(seat)["metadata"]["name"] for seat in range(3)
    ]
    assert max(server.running.values()) == 1


def test_why_a_pod_waits_is_told(server: ApiServer, clock: Clock) -> None:
    engine(server, clock).submit([0])
    message = "0/4 nodes are available: 4 Insufficient nvidia.com/gpu."
    server.pod_of(0)["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    ]
    assert engine(server, clock).members()[0].why == message
    server.pod_of(0)["status"]["containerStatuses"] = [
        {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}}}
    ]
    assert engine(server, clock).members()[0].why == "Back-off pulling image"


@pytest.mark.parametrize("kind", [KIND, GPUS])
@pytest.mark.parametrize("version", ["1.30", "1.37"])
def test_what_is_sent_is_valid(kind: Kind, version: str) -> None:
    worker = Worker(scheduler="h:1", store="s3://b", kind=kind, idle_exit="5m", lifetime="4h", tokens=True)
    template = manifest.checked(manifest.default_template("worker:1", kind), kind)
    job = manifest.job(template, worker, launch="tune", seat=3, nonce="abcdef")
    secret = manifest.secret(
        "s", "hr_x", {"metadata": {**job["metadata"], "uid": "u"}}, now=datetime.now(UTC)
    )
    for one in (job, secret):
        kubernetes_validate.validate(json.loads(json.dumps(one)), version, strict=True)
    spec = job["spec"]["template"]["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["terminationGracePeriodSeconds"] > manifest.GRACE_S
    (container,) = spec["containers"]
    assert "--lifetime=4h" in container["args"]
    assert "--join=@/run/headrace/joining/token" in container["args"]
    assert spec["volumes"][-1]["secret"] == {"secretName": "headrace-tune-3-abcdef", "defaultMode": 0o400}
    if kind is GPUS:
        assert container["resources"]["limits"] == {"nvidia.com/gpu": 4}
        assert {"--cpu-slots=0", "--label=zone=eu"} <= set(container["args"])


def test_the_arguments_are_those_of_the_worker_command() -> None:
    import typer

    from headrace_worker.command import worker as command

    app = typer.Typer()
    app.command()(command)
    known = {option for one in typer.main.get_command(app).params for option in one.opts}
    template = manifest.default_template("worker:1", KIND)["spec"]["containers"][0]["args"]
    given = [*template[1:], *WORKER.arguments(), *Worker(
        scheduler="h", store="s", kind=GPUS, idle_exit="1m", lifetime="1h"
    ).arguments()]  # fmt: skip
    assert {argument.partition("=")[0] for argument in given} <= known


@pytest.mark.parametrize("name", ["", "Tune", "a_b", "-a", "a-", "x" * 41, "a.b"])
def test_a_name_that_kubernetes_would_refuse(name: str) -> None:
    with pytest.raises(HeadraceError, match="cannot name objects of Kubernetes"):
        manifest.check_name(name)
    manifest.check_name("tune-2")


def test_a_dry_run_prints_what_kubectl_would_apply(server: ApiServer, clock: Clock) -> None:
    shown = list(yaml.safe_load_all(engine(server, clock).shown([0, 1])))
    assert [one["metadata"]["name"] for one in shown] == ["headrace-tune-0", "headrace-tune-1"]
    assert server.objects["jobs"] == {}
