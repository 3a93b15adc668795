"""What is attacked: a scheduler and a planner under a memory limit, and a worker whose trial forwards calls."""

import json
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from limited import limited

LIMIT_BYTES = 4 * 1024**3
CALLER_BYTES = 6 * 1024**3
"""How much the caller itself may grow: what it draws is large at times."""
# Each trial lives until it is killed, and forwards others' calls: its worker answers only its own processes.
TRIAL = """
import json, os, pathlib, socket, sys, tempfile, threading
folder = pathlib.Path(sys.argv[1]); lease = os.environ["HEADRACE_LEASE_ID"]
runtime = os.environ["HEADRACE_RUNTIME"].removeprefix("unix:")
def pump(source, sink):
    try:
        while data := source.recv(65536):
            sink.sendall(data)
    except OSError:
        pass
    for end in (source, sink):
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
door = socket.socket(socket.AF_UNIX); path = tempfile.mkdtemp(prefix="hr-") + "/s"
door.bind(path); door.listen(64)
new = folder / f"{lease}.new"; new.write_text(json.dumps([f"unix:{path}", lease]))
new.rename(folder / f"{lease}.json")
while True:
    caller, _ = door.accept()
    inner = socket.socket(socket.AF_UNIX)
    try:
        inner.connect(runtime)
    except OSError:
        caller.close()
        continue
    for ends in ((caller, inner), (inner, caller)):
        threading.Thread(target=pump, args=ends, daemon=True).start()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Addresses and processes."""

    scheduler: str
    planner: str
    processes: dict[str, psutil.Process]
    sockets: Path
    scheduler_pid: int

    def memory(self) -> dict[str, int]:
        """Resident bytes of each process, without those of its children."""
        return {name: process.memory_info().rss for name, process in self.processes.items()}

    def waited_s(self) -> float:
        """How long the scheduler's event loop has been ready so far without a core."""
        pid = self.scheduler_pid
        return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[1]) / 1e9

    def runtimes(self) -> list[tuple[str, str]]:
        """Sockets and leases of the trials that run or ran, the newest last."""
        found = sorted(self.sockets.glob("*.json"), key=lambda path: path.stat().st_mtime)
        return [(text[0], text[1]) for text in (json.loads(path.read_text()) for path in found)]

    def study(self) -> dict[str, object]:
        """The only study whose trials this site's worker runs."""
        program = self.sockets / "trial.py"
        program.write_text(TRIAL)
        command = [sys.executable, str(program), str(self.sockets)]
        return {
            "objective": {"metric": "loss", "goal": "minimize"},
            "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
            "policy": {"kind": "asha", "eta": 3},
            "template": {"command": {"args": command}, "working_dir": str(self.sockets)},
            "resources": {"labels": {"real": "yes"}},
            "max_trials": 100_000,
            "max_retries": 1_000_000,
            "max_steps": 1000,
        }


@contextmanager
def site(folder: Path, database_url: str, *, worker: bool = True) -> Iterator[Site]:
    """Start everything; all of it is stopped afterwards."""
    sockets = folder / "sockets"
    sockets.mkdir()
    with ExitStack() as stack:
        started = {}
        addresses = {}
        for name, options in (
            ("scheduler", ("--database-url", database_url, "--sampler-processes", "1", "--lease-ttl", "6",
                           "--heartbeat-interval", "2")),
            ("planner", ("--workers", "1")),
        ):  # fmt: skip
            log = folder / f"{name}.log"
            command = ("-m", "headrace.cli", name, "--listen", "127.0.0.1:0", *options)
            process = stack.enter_context(_process(command, log))
            addresses[name] = _address(process, log)
            started[name] = psutil.Process(process.pid)
        if worker:
            command = (
                "-m", "headrace.cli", "worker", "--scheduler", addresses["scheduler"], "--name", "real",
                "--home", str(folder / "worker"), "--store", (folder / "store").as_uri(),
                "--cpu-slots", "2", "--label", "real=yes", "--stop-grace", "1",
            )  # fmt: skip
            process = stack.enter_context(_process(command, folder / "worker.log"))
            started["worker"] = psutil.Process(process.pid)
        yield Site(
            scheduler=addresses["scheduler"],
            planner=addresses["planner"],
            processes=started,
            sockets=sockets,
            scheduler_pid=started["scheduler"].pid,
        )


@contextmanager
def _process(arguments: Sequence[str], log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """One of our programs under the memory limit, which its children inherit."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    with log.open("ab") as out:
        process = subprocess.Popen(
            limited(LIMIT_BYTES, sys.executable, *arguments),
            stdout=out,
            stderr=subprocess.STDOUT,
            env=environment,
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def limited_caller() -> Iterator[None]:
    """A caller that draws too much gets a MemoryError, instead of taking the machine's memory."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + CALLER_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _address(process: "subprocess.Popen[bytes]", log: Path) -> str:
    until = time.monotonic() + 60
    while time.monotonic() < until and process.poll() is None:
        said = re.search(r"serving on (\S+)", log.read_text())
        if said:
            return said[1]
        time.sleep(0.05)
    raise AssertionError(f"it does not serve: {log.read_text()}")
