"""The loop over Kubernetes in a test: a scheduler, a clock, and the engine over a fake API server."""

from datetime import UTC, datetime, timedelta
from typing import Any

from fake_api_server import TOKEN, ApiServer

from headrace.launch.decision import Kind, Need
from headrace.launch.kubernetes import manifest
from headrace.launch.kubernetes.access import Access
from headrace.launch.kubernetes.api import Api
from headrace.launch.kubernetes.engine import Kubernetes
from headrace.launch.kubernetes.manifest import Worker
from headrace.launch.loop import Cluster, Turn, turn

KIND = Kind(slots=2, on_gpu=False)
GPUS = Kind(slots=4, on_gpu=True, labels={"zone": "eu"})
WORKER = Worker(
    scheduler="tls://head:7440", store="s3://b/x", kind=KIND, idle_exit="10m", tokens=True, authority="PEM"
)


class Clock:
    def __init__(self) -> None:
        self.now = datetime(2026, 3, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


class Scheduler:
    """As many waiting trials as a test says, and the tokens that were made."""

    def __init__(self, waiting: int = 100) -> None:
        self.waiting = waiting
        self.connected: set[str] = set()
        self.made: dict[str, str] = {}
        self.revoked: set[str] = set()

    def look(self, kind: Kind, most: int) -> Cluster:  # noqa: ARG002  # as the protocol has it
        needs = [Need(count=self.waiting, slots=1)] if self.waiting else []
        return Cluster(needs=needs, free=[], connected=frozenset(self.connected))

    def create_token(self, worker: str, lifetime: timedelta) -> tuple[str, str]:
        assert lifetime <= timedelta(minutes=15)
        secret = f"hr_{len(self.made)}"
        self.made[secret] = worker
        return secret, secret

    def revoke_token(self, token_id: str) -> None:
        self.revoked.add(token_id)


def engine(server: ApiServer, clock: Clock, worker: Worker = WORKER, **options: Any) -> Kubernetes:
    access = Access(server=server.address, namespace="team", tls=None, token=TOKEN)
    api = Api(access, call_s=options.pop("call_s", 20.0), sleep=options.pop("sleep", lambda _: None))
    template = manifest.checked(manifest.default_template("worker:1", worker.kind), worker.kind)
    most = options.pop("most", 3)
    return Kubernetes(api, template, worker, launch="tune", most=most, clock=clock)


def take(server: ApiServer, clock: Clock, scheduler: Scheduler, most: int = 3) -> Turn:
    return turn(engine(server, clock, most=most), scheduler, kind=KIND, most=most)
