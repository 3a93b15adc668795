"""A head node for real: `headrace up --listen`, the commands that it prints, run as they are, and restarts."""

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import psutil
import pytest
from ready_home import furnish

from headrace import Client
from headrace.errors import UnauthenticatedError
from headrace.home import address_in
from headrace.pinned import FOLDER
from headrace.ports import any_port

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]
HEADRACE = [sys.executable, "-m", "headrace.cli"]
STUDY = """
name: over-two
objective: {metric: loss, goal: minimize}
trial: {callable: train:train, working_dir: .}
space: {x: {type: float, low: 0, high: 1}}
policy: {kind: run_all}
trials: 6
steps: 4
"""
TRAIN = """
import time

def train(t):
    for step in t.steps():
        time.sleep(0.2)  # so that both workers get some
        t.report(loss=t.params["x"])
"""


def until(holds: Callable[[], object], what: Callable[[], str], deadline_s: float = 180) -> None:
    """Polls until the condition holds."""
    deadline = time.monotonic() + deadline_s
    while not holds():
        assert time.monotonic() < deadline, what()
        time.sleep(0.1)


@contextmanager
def head(home: Path, *options: str) -> Iterator[tuple[psutil.Popen, Callable[[], str]]]:
    """A running head node, and what it has said in this run."""
    output = home.with_suffix(".out")
    with output.open("wb") as out:
        process = psutil.Popen(
            [*HEADRACE, "up", "--home", str(home), "--console", "0", "--slots", "1", *options],
            stdout=out,
            stderr=out,
            stdin=subprocess.DEVNULL,
            env=environment(home),
        )
    try:
        until(
            lambda: "Join a worker:" in output.read_text() or not process.is_running(),
            lambda: output.read_text(),
        )
        assert process.poll() is None, output.read_text()
        yield process, output.read_text
    finally:
        if process.is_running():
            process.terminate()
            process.wait(90)


def environment(home: Path) -> dict[str, str]:
    """Of a machine whose home this is."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    return {**kept, "HEADRACE_HOME": str(home), "PYTHONUNBUFFERED": "1"}


def command(said: str, what: str) -> list[str]:
    """A command that the head node printed."""
    found = re.search(rf"^ +{what}: +headrace (.*)$", said, re.MULTILINE)
    assert found, said
    return [*HEADRACE, *shlex.split(found[1])]


def run(line: list[str], home: Path, text: str = "") -> str:
    done = subprocess.run(
        line, input=text, env=environment(home), capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def worker(line: list[str], home: Path, log: Path) -> Iterator[None]:
    with log.open("ab") as out:
        process = subprocess.Popen(line, env=environment(home), stdout=out, stderr=out)
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


def connected(home: Path) -> set[str]:
    text = run([*HEADRACE, "workers", "--json"], home)
    return set(re.findall(r'"name": "([^"]+)",\s+"connected": true', text))


def test_one_command_makes_a_head_and_the_printed_ones_make_a_cluster(tmp_path: Path) -> None:
    home, user, other = (tmp_path / name for name in ("home", "user", "other"))
    furnish(home)
    port = any_port()
    with head(home, "--listen", f"127.0.0.1:{port}") as (_, said):
        assert address_in(home) == f"tls://127.0.0.1:{port}"
        token = (home / "head" / "token").read_text().strip()
        assert token not in said()
        with (
            Client(f"tls://127.0.0.1:{port}", tls_ca=home / "head/ca/ca.pem") as nobody,
            pytest.raises(UnauthenticatedError),
        ):
            nobody.studies()
        run([*HEADRACE, "--address", f"tls://127.0.0.1:{port}", "studies"], home)  # without a login
        login, join = command(said(), "Log in"), command(said(), "Join a worker")
        assert "admin of project default" in run(login, user, f"{token}\n")
        secret = run([*HEADRACE, "worker-token", "create"], user).strip()
        join = [secret if word == "TOKEN" else word for word in join]
        log = tmp_path / "other.log"
        with worker([*join, "--name", "other", "--cpu-slots", "1"], other, log):
            until(lambda: connected(user) == {"head", "other"}, lambda: said() + log.read_text())
            program = tmp_path / "program"
            program.mkdir()
            (program / "study.yaml").write_text(STUDY)
            (program / "train.py").write_text(TRAIN)
            run([*HEADRACE, "run", str(program / "study.yaml"), "--ship"], user)
            with Client(address_in(home), tls_ca=home / "head/ca/ca.pem", token=token) as client:
                assert client.study("over-two").status().state == "completed"
            for ran in (home / "workers/head", other / "workers/other"):
                assert list(ran.glob("logs/over-two-*/*.log")), f"{ran} has run trials"
        found = re.search(r"http://127.0.0.1:\d+", said())
        assert found
        with urlopen(found[0]) as page:
            assert b"token" in page.read().lower(), "the console asks for one"
    before = {file: file.read_bytes() for file in (home / "head").rglob("*.*")}
    before[home / "head/token"] = f"{token}\n".encode()

    # The same again: everything stays, and those who know it need nothing new.
    with head(home, "--listen", f"127.0.0.1:{port}") as (running, said):
        assert {file: file.read_bytes() for file in before} == before
        with worker([*join, "--name", "other", "--cpu-slots", "1"], other, log):
            until(lambda: connected(user) == {"head", "other"}, lambda: said() + log.read_text())
        running.kill()
        running.wait()

    # Another address, after a kill: the server's certificate alone is new.
    moved = any_port()
    with head(home, "--listen", f"127.0.0.2:{moved}") as (_, said):
        changed = {file.name for file, content in before.items() if file.read_bytes() != content}
        assert changed == {"server.pem", "server.key", "login.json"}
        login = command(said(), "Log in")
        assert f"tls://127.0.0.2:{moved}" in login
        run(login, user, f"{token}\n")
        until(lambda: connected(user) == {"head"}, said)  # the killed run's is listed for a lease's time
        assert len(list((user / FOLDER).iterdir())) == 1
    with _alone(home) as address:
        assert address.startswith("127.0.0.1:"), "without --listen it serves this machine alone, as before"
        assert connected(home) == {"local"}
        with Client(address) as client:
            assert [study.name for study in client.studies()] == ["over-two"]


@contextmanager
def _alone(home: Path) -> Iterator[str]:
    """`headrace up` on the same home, without --listen."""
    process = subprocess.Popen(
        [*HEADRACE, "up", "--home", str(home), "--port", "0", "--no-console"],
        stdout=subprocess.DEVNULL,
        env=environment(home),
    )
    try:
        until(lambda: address_in(home) or process.poll() is not None, lambda: "it is ready")
        found = address_in(home)
        assert found is not None
        yield found
    finally:
        process.terminate()
        process.wait(90)


def test_what_cannot_be_a_head_ends_before_anything_starts(tmp_path: Path) -> None:
    line = [*HEADRACE, "up", "--home", str(tmp_path / "home"), "--listen", "198.51.100.7"]
    done = subprocess.run(
        line, env=environment(tmp_path / "home"), capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode != 0
    assert "is no address of this machine" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "home" / "postgres").exists()
    assert not (tmp_path / "home" / "head").exists()
