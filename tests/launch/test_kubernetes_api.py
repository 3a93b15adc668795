"""What an API server refuses, and one that is slow or sends calls elsewhere."""

import socket
import threading
from contextlib import suppress

import pytest
from fake_api_server import TOKEN, ApiServer, Fault, api_server
from kubernetes_site import Clock, Scheduler, take

from headrace.launch.engine import EngineError
from headrace.launch.kubernetes import api as api_module
from headrace.launch.kubernetes.access import Access
from headrace.launch.kubernetes.api import Api, StatusError

pytestmark = pytest.mark.timeout(120)
RIGHTS = (
    'jobs.batch is forbidden: User "system:serviceaccount:team:x" cannot create resource "jobs" in API group "batch" '
    'in the namespace "team"'
)
QUOTA = (
    'jobs.batch "headrace-tune-0" is forbidden: exceeded quota: compute, requested: count/jobs.batch=1, '
    "used: count/jobs.batch=4, limited: count/jobs.batch=4"
)
POLICY = 'admission webhook "policies.example" denied the request: images must come from registry.example'


def api(address: str, call_s: float = 20.0) -> Api:
    access = Access(server=address, namespace="team", tls=None, token=TOKEN)
    return Api(access, call_s=call_s, sleep=lambda _: None)


@pytest.mark.parametrize(
    ("says", "remedy"), [(RIGHTS, "access.yaml"), (QUOTA, "Lower --max"), (POLICY, "Change the template")]
)
def test_what_is_forbidden_names_the_remedy(server: ApiServer, clock: Clock, says: str, remedy: str) -> None:
    server.faults.append(Fault("403", times=99, method="POST", says=says))
    (failure,) = take(server, clock, Scheduler()).failures
    assert f"forbids POST /apis/batch/v1/namespaces/team/jobs: {says}" in failure.message
    assert remedy in failure.remedy


def test_a_user_who_is_not_known(server: ApiServer, clock: Clock) -> None:
    server.tokens = ()
    with pytest.raises(StatusError, match="does not know this user"):
        take(server, clock, Scheduler())


def test_a_login_does_not_follow_a_redirect(server: ApiServer) -> None:
    with api_server() as other:
        there = f"{other.address}/api/v1/namespaces/team/pods?labelSelector=a%3Db&limit=200"
        server.faults.append(Fault("302", says=there))
        with pytest.raises(
            StatusError, match="redirects GET /api/v1/namespaces/team/pods to http://"
        ) as caught:
            api(server.address).list("/api/v1/namespaces/team/pods", "a=b")
        assert "kubeconfig" in caught.value.remedy
        assert other.asked == {}


@pytest.mark.timeout(30)
@pytest.mark.parametrize("status", ["200 OK", "403 Forbidden"])
def test_an_answer_that_trickles_is_not_waited_for(status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_module, "TRIES", 1)
    stop = threading.Event()

    def serve() -> None:
        while not stop.is_set():
            with suppress(OSError), listening.accept()[0] as peer:
                peer.recv(1 << 16)
                peer.sendall(f"HTTP/1.1 {status}\r\nContent-Length: 100000\r\n\r\n".encode())
                while not stop.wait(0.05):
                    peer.sendall(b" ")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.2)
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            with pytest.raises(EngineError, match=r"does not answer: timed out|forbids"):
                api(f"http://127.0.0.1:{listening.getsockname()[1]}", call_s=1.0).list("/api", "a=b")
        finally:
            stop.set()
            thread.join()
