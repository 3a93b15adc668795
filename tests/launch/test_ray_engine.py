"""The loop over Ray's rules: one living actor of a name, a token for each, and workers that end with their actors. A
real cluster is in test_ray_cluster.py.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from datetime import timedelta
from pathlib import Path

import pytest
import typer

from headrace.launch.decision import Kind, Need
from headrace.launch.engine import EngineError, Stage
from headrace.launch.loop import Cluster, Turn, turn
from headrace.launch.options import worker_options
from headrace.launch.ray.engine import Ray
from headrace.launch.ray.worker import Seat, Worker

pytestmark = pytest.mark.timeout(120)
KIND = Kind(slots=2, on_gpu=False, labels={"zone": "eu"})
OPTIONS = worker_options(
    scheduler="tls://h:1",
    store="s3://b",
    kind=KIND,
    idle_exit="5m",
    lifetime="",
    pass_env="",
    drain_grace_s=60,
)


class Actors:
    """Ray in memory."""

    def __init__(self) -> None:
        self.living: dict[str, str] = {}
        self.started: set[str] = set()
        self.tokens: dict[str, str] = {}
        self.made = 0
        self.loses_answers = False
        self.seats = ["another-launch-0", "headrace-tune-x"]

    def names(self) -> list[str]:
        return [*self.seats, *self.living]

    def create(self, name: str, worker: Worker, prefix: str, *, cpus: float, gpus: float) -> bool:
        assert worker.options == OPTIONS
        assert (cpus, gpus) == (2, 0)
        assert prefix == name.replace("headrace", "ray", 1)
        if name in self.living:
            return False
        self.made += 1
        self.living[name] = f"{self.made:024x}01000000"
        return True

    def identity(self, name: str) -> str | None:
        return self.living.get(name)

    def awaiting(self, names: Collection[str]) -> dict[str, bool]:
        return {name: name not in self.tokens for name in names if name in self.started}

    def give(self, name: str, token: str) -> bool:
        taken = self.tokens.setdefault(name, token) == token
        if self.loses_answers:
            raise EngineError("no answer")
        return taken

    def end(self, name: str) -> None:
        del self.living[name]
        self.started.discard(name)
        self.tokens.pop(name, None)


class Scheduler:
    def __init__(self) -> None:
        self.made: dict[str, str] = {}
        self.revoked: set[str] = set()

    def look(self, kind: Kind, most: int) -> Cluster:  # noqa: ARG002  # as the protocol has it
        needs = [Need(count=100, slots=1, labels={"zone": "eu"})]
        return Cluster(needs=needs, free=[], connected=frozenset())

    def create_token(self, worker: str, lifetime: timedelta) -> tuple[str, str]:  # noqa: ARG002  # as above
        secret = f"hr_{len(self.made)}"
        self.made[secret] = worker
        return secret, secret

    def revoke_token(self, token_id: str) -> None:
        self.revoked.add(token_id)


def ray(actors: Actors) -> Ray:
    return Ray(actors=actors, worker=Worker(options=OPTIONS, tokens=True), kind=KIND, launch="tune", cpus=2)


def take(actors: Actors, scheduler: Scheduler) -> Turn:
    return turn(ray(actors), scheduler, kind=KIND, most=2)


def test_seats_are_filled_once_and_each_worker_gets_a_token() -> None:
    actors, scheduler = Actors(), Scheduler()
    assert take(actors, scheduler).decision.submit == (0, 1)
    assert take(actors, scheduler).decision.submit == ()
    assert scheduler.made == {}, "no actor has started"
    actors.started.add("headrace-tune-1")
    found = take(actors, scheduler)
    assert [member.stage for member in found.members] == [Stage.PENDING, Stage.RUNNING]
    assert found.tokens == (found.members[1].worker,) == ("ray-tune-1-000000000000",)
    assert take(actors, scheduler).tokens == ()
    actors.end("headrace-tune-1")
    assert take(actors, scheduler).decision.submit == (1,)
    assert actors.made == 3


def test_two_loops_at_once_fill_each_seat_once_and_give_one_token() -> None:
    actors = Actors()
    one, other = ray(actors), ray(actors)
    for each in (one, other):
        each.submit((0, 1))
    assert actors.made == 2
    actors.started.update(actors.living)
    member = one.members()[0]
    assert one.deliver(member, "hr_one")
    assert not other.deliver(member, "hr_other")
    actors.end("headrace-tune-0")
    one.submit([0])
    assert not one.deliver(member, "hr_one"), "the seat has another actor"


def test_a_lost_answer_is_a_failure_of_the_turn_and_its_token_is_revoked() -> None:
    actors, scheduler = Actors(), Scheduler()
    take(actors, scheduler)
    actors.started.add("headrace-tune-0")
    actors.loses_answers = True
    (failure,) = take(actors, scheduler).failures
    assert failure.message == "no answer"
    assert len(scheduler.revoked) == 1, "an actor that has it fails, and its seat is filled again"
    actors.loses_answers = False
    assert take(actors, scheduler).tokens == ()


def test_what_would_run_is_shown() -> None:
    shown = ray(Actors()).shown([0])
    assert "headrace-tune-0: num_cpus=2 num_gpus=0" in shown
    assert "--label=zone=eu --ephemeral --name ray-tune-0-ID --join -" in shown


def test_the_options_are_those_of_the_worker_command() -> None:
    from headrace_worker.command import worker as command

    app = typer.Typer()
    app.command()(command)
    known = {option for one in typer.main.get_command(app).params for option in one.opts}
    gpus = worker_options(
        scheduler="h:1",
        store="s",
        kind=Kind(slots=8, on_gpu=True),
        idle_exit="1m",
        lifetime="4h",
        pass_env="WANDB_*",
        drain_grace_s=60,
    )
    assert "--cpu-slots=0" in gpus
    assert {option.partition("=")[0] for option in (*OPTIONS, *gpus)} <= known


PROGRAM = """
import json, os, signal, sys, pathlib
told = pathlib.Path(sys.argv[1])
def drains(*_):
    (told / "drained").touch()
    os._exit(0)
signal.signal(signal.SIGTERM, drains)
text = sys.stdin.read()
home = pathlib.Path(sys.argv[sys.argv.index("--home") + 1]).parent
new = told / "said.new"
new.write_text(json.dumps({"token": text, "args": sys.argv[2:], "pid": os.getpid(), "mode": home.stat().st_mode & 0o777,
    "ca": (home / "ca.pem").read_text() if "--tls-ca" in sys.argv else ""}))
new.rename(told / "said")
if "stays" in sys.argv:
    signal.pause()
sys.exit(int(sys.argv[2]))
"""


def until(holds: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def seat(told: Path, worker: Worker, *words: str, token_wait_s: float = 600.0) -> tuple[Seat, list[int]]:
    over: list[int] = []
    program = (sys.executable, "-c", PROGRAM, str(told), *words)
    return Seat(worker, "ray-a-0-1", over=over.append, token_wait_s=token_wait_s, program=program), over


@pytest.mark.parametrize("status", [0, 3])
def test_a_seat_waits_for_its_token_and_ends_with_its_worker(tmp_path: Path, status: int) -> None:
    one, over = seat(tmp_path, Worker(options=("--x=1",), tokens=True, authority="PEM"), str(status))
    assert one.awaits_token()
    assert over == []
    assert one.give("hr_token")
    assert one.give("hr_token"), "an answer was lost"
    assert not one.give("hr_other")
    assert not one.awaits_token()
    until(lambda: over, "it is over")
    assert over == [status]
    said = json.loads((tmp_path / "said").read_text())
    assert said["token"] == "hr_token"
    assert said["ca"] == "PEM"
    assert said["mode"] == 0o700
    assert said["args"][1:4] == ["--x=1", "--name", "ray-a-0-1"]
    assert said["args"][-2:] == ["--join", "-"]
    assert "hr_token" not in said["args"]
    home = Path(said["args"][said["args"].index("--home") + 1]).parent
    assert home.exists() == (status != 0), "what may not be reported yet is kept"


def test_without_tokens_it_starts_at_once(tmp_path: Path) -> None:
    one, over = seat(tmp_path, Worker(options=()), "0")
    assert not one.awaits_token()
    until(lambda: over, "it is over")
    assert "--join" not in json.loads((tmp_path / "said").read_text())["args"]


def test_a_token_that_never_arrives_ends_the_seat(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    _, over = seat(tmp_path, Worker(options=(), tokens=True), "0", token_wait_s=0.05)
    until(lambda: over, "it is over")
    assert over == [1]
    assert "no join token arrived" in capfd.readouterr().err
    assert not (tmp_path / "said").exists()


ACTOR = """
import sys, signal, pathlib
from headrace.launch.ray.worker import Seat, Worker
program = (sys.executable, "-c", sys.argv[1], sys.argv[2], "0", "stays")
Seat(Worker(options=()), "n", program=program)
signal.pause()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the death signal is Linux's")
def test_a_killed_actor_drains_its_worker(tmp_path: Path) -> None:
    actor = subprocess.Popen([sys.executable, "-c", ACTOR, PROGRAM, str(tmp_path)])
    until(lambda: (tmp_path / "said").exists(), "the worker runs")
    os.kill(actor.pid, signal.SIGKILL)
    actor.wait()
    until(lambda: (tmp_path / "drained").exists(), "the worker was told to drain")
