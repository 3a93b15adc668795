"""One rank fails, and the gang ends as one: within a bounded time, and reported as the rank that failed first."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from headrace.grants import WORLD_SIZE
from headrace.trial import gang
from headrace.trial.ends import End, cause

RANK = """
import os, signal, socket, sys, time
from headrace.trial import ends
ends.open_line()
rank, folder = int(os.environ["RANK"]), os.environ["OUT"]
def speak(error):
    ends.speak(error=error, traceback="")
def peer_is_gone():
    "What a rank does whose peer has closed the connection: it raises, and says so."
    speak("RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:5141")
    sys.exit(1)
def wait_for(name):
    while not os.path.exists(os.path.join(folder, name)):
        time.sleep(0.002)
def mark(name):
    open(os.path.join(folder, name), "w").close()
"""
FIRST_THE_ECHO = """
if rank == 1:
    mark("destroyed")      # a `finally:` that leaves the process group comes before the error is told
    wait_for("said")
    speak("ValueError: boom")
    sys.exit(1)
wait_for("destroyed")
speak("RuntimeError: Connection closed by peer")
mark("said")
sys.exit(1)
"""
KILLED = """
if rank == 1:
    mark("going")
    os.kill(os.getpid(), signal.SIGKILL)
wait_for("going")
peer_is_gone()
"""
SILENT = KILLED.replace("os.kill(os.getpid(), signal.SIGKILL)", "os._exit(3)")
HANGS = """
if rank == 1:
    speak("ValueError: boom")
    signal.pause()          # a thread that does not end
signal.pause()
"""
STOPPED = """
if rank == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
signal.pause()
"""
ALL_ECHOES = """
if rank == 1:
    wait_for("said")
speak("RuntimeError: [gloo] Connection closed by peer")
mark("said")
sys.exit(1)
"""
STOPPED_FOR_S = 1.0


@pytest.mark.cases(3)
@pytest.mark.parametrize(
    ("body", "told", "status"),
    [
        (FIRST_THE_ECHO, "on rank 1: ValueError: boom", 1),
        (KILLED, "rank 1 was killed by SIGKILL", -signal.SIGKILL),
        (SILENT, "rank 1 ended with exit status 3", 3),
        (HANGS, "on rank 1: ValueError: boom", 1),
        (STOPPED, "rank 1 was stopped by SIGSTOP", -signal.SIGKILL),
        (ALL_ECHOES, "on rank 0: RuntimeError: [gloo", 1),
    ],
    ids=["echo first", "killed", "silent", "hangs after it", "stopped", "echoes alone"],
)
def test_the_first_failure_is_reported_and_all_are_ended(
    tmp_path: Path, body: str, told: str, status: int
) -> None:
    program = tmp_path / "rank.py"
    program.write_text(RANK + textwrap.dedent(body) + f"\n#{tmp_path}")
    start = (
        f"import sys; from headrace.trial import gang; gang.STOPPED_S = {STOPPED_FOR_S}; "
        "sys.exit(gang.main([sys.executable, sys.argv[1]]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", start, str(program)],
        env={**os.environ, WORLD_SIZE: "2", "OUT": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,  # ranks that nobody ends never end
        check=False,
    )
    assert f"headrace: {told}" in done.stderr
    assert done.stderr.count("headrace: ") == 1
    assert done.returncode == status
    left = subprocess.run(["pgrep", "-f", str(program)], capture_output=True, text=True, check=False).stdout
    assert not left


class Speaks:
    """A process that says why it fails, and is gone at a given check."""

    pid = 0

    def __init__(self, error: str, at_look: int, pipe: int) -> None:
        self.error, self.looks, self.pipe = error, at_look, pipe
        self.code: int | None = None

    def poll(self) -> int | None:
        self.looks -= 1
        if self.looks < 0 and self.code is None:
            word = {"at": 1.0, "error": self.error, "traceback": ""}
            os.write(self.pipe, json.dumps(word).encode() + b"\n")
            os.close(self.pipe)
            self.code = 1
        return self.code

    def send_signal(self, number: signal.Signals) -> None:
        assert number == signal.SIGKILL


@pytest.mark.parametrize("at_look", range(5))
def test_a_rank_is_heard_at_whatever_instant_it_speaks_and_ends(
    at_look: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = {0: ("RuntimeError: Connection closed by peer", 0), 1: ("ValueError: boom", at_look)}

    def start(_program: object, rank: int, _world: int, _port: int, *, reuse: bool) -> gang._Rank:
        ours, theirs = os.pipe()
        os.set_blocking(ours, False)
        error, look = said[rank]
        return gang._Rank(rank, Speaks(error, look, theirs), ours)

    monkeypatch.setattr(gang, "_start", start)
    assert gang.Gang(["train.py"], 2).wait() == 1
    assert "headrace: on rank 1: ValueError: boom;" in capsys.readouterr().err


def test_an_echo_is_no_cause_and_of_causes_the_first_counts() -> None:
    reset = End(rank=0, at=1.0, error="ConnectionResetError: [Errno 104] Connection reset by peer")
    aborted = End(rank=2, at=1.1, code=-signal.SIGABRT)
    own = End(rank=1, at=1.5, error="KeyError: 'x'")
    killed = End(rank=3, at=1.6, code=-signal.SIGKILL)
    assert cause([reset, aborted, own, killed]) is own
    assert cause([reset, aborted, killed]) is killed
    assert cause([aborted, reset]) is reset
