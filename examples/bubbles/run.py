"""A GPT trains as a pipeline of two stages, and a study tunes digits while its stages wait: one command, two cores.

    python examples/bubbles/run.py

It starts two ranks, each bound to a core, the scheduler, and a worker whose only slots are the stages' bubbles.
Then it runs study.yaml. With --own-slot-after 20 a second worker brings an ordinary slot after 20 seconds, and
members move there. At the end it prints what the agent saw and the result of the best trial, and writes the last
second as a chart and as a trace for Perfetto.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
HEADRACE = [sys.executable, "-m", "headrace.cli"]
STUDY = "digits-in-bubbles"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_rank(rank: int, port: int, folder: Path, core: int, *options: str) -> "subprocess.Popen[bytes]":
    """Starts a rank, bound to a core."""
    env = {
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "HEADRACE_BUBBLES": str(folder),
        "OMP_NUM_THREADS": "1",
    }
    with (folder / f"rank{rank}.log").open("ab") as log:
        return subprocess.Popen(
            ["taskset", "-c", str(core), sys.executable, str(HERE / "gpt.py"), *options],
            env=env,
            stdout=None if rank == 0 else log,
            stderr=log,
        )


def start_agent(folder: Path) -> "subprocess.Popen[str]":
    """Starts the agent of a folder; returns when it serves."""
    with (folder / "agent.log").open("ab") as log:
        agent = subprocess.Popen(
            [*HEADRACE, "bubble-agent", "--folder", str(folder)],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    assert agent.stdout is not None
    if not agent.stdout.readline():
        sys.exit((folder / "agent.log").read_text())
    return agent


def cores() -> tuple[int, int]:
    """A core for each stage, the same one if there is no second."""
    allowed = sorted(os.sched_getaffinity(0))
    return allowed[0], allowed[-1]


def wait_for(path: Path, process: "subprocess.Popen[bytes]") -> None:
    while not path.exists():
        if process.poll() is not None:
            sys.exit(f"a rank has ended: see {path.parent}")
        time.sleep(0.1)


class Service:
    """A scheduler of its own, and workers that are started on it."""

    def __init__(self, home: Path, folder: Path) -> None:
        port = free_port()
        self.env = {**os.environ, "HEADRACE_HOME": str(home), "HEADRACE_ADDRESS": f"127.0.0.1:{port}"}
        self.env |= {"HEADRACE_BUBBLES": str(folder), "OMP_NUM_THREADS": "1"}
        self.processes: list[subprocess.Popen[Any]] = []
        self._logs = home
        home.mkdir(exist_ok=True)
        self.start("up", "--no-worker", f"--port={port}")
        while not self.ask("studies", "--json"):
            if self.processes[0].poll() is not None:
                sys.exit((home / "up.log").read_text())
            time.sleep(0.2)

    def start(self, *command: str, name: str = "") -> None:
        """Starts a part of the service."""
        with (self._logs / f"{name or command[0]}.log").open("ab") as log:
            started = subprocess.Popen([*HEADRACE, *command], env=self.env, stdout=log, stderr=log)
        self.processes.append(started)

    def ask(self, *command: str) -> str:
        """The output of a command; empty if it fails."""
        ran = subprocess.run([*HEADRACE, *command], env=self.env, capture_output=True, text=True)
        return ran.stdout if ran.returncode == 0 else ""

    def end(self) -> None:
        """Ends the workers first, the database last."""
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def draw(service: Service, out: Path) -> None:
    """Draws the last second, unless nothing happened in it."""
    for name, option in (("bubbles.svg", "--svg"), ("bubbles.json", "--trace")):
        told = service.ask("bubbles", "--seconds=1", option, "-")
        if "quanta" in told:
            (out / name).write_text(told)


def follow(service: Service, study: "subprocess.Popen[bytes]", options: argparse.Namespace) -> str:
    """Watches until the study ends; returns the agent's last report."""
    began, report, own = time.monotonic(), "", options.own_slot_after
    while study.poll() is None:
        time.sleep(0.5)
        told = service.ask("bubbles")
        report = told if "stage" in told else report
        draw(service, options.out)
        if own is not None and time.monotonic() - began > own:
            own = None
            service.start("worker", "--name=own", "--cpu-slots=1", name="own")
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(), help="where bubbles.svg and bubbles.json go")
    parser.add_argument("--own-slot-after", type=float, metavar="SECONDS", help="bring an ordinary slot then")
    parser.add_argument("--study", type=Path, default=HERE / "study.yaml")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that everything that was started ends
    ranks: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory(dir="/dev/shm") as words, tempfile.TemporaryDirectory() as home:
        folder = Path(words)
        service = Service(Path(home) / "headrace", folder)
        try:
            port, places = free_port(), cores()
            ranks += [start_rank(rank, port, folder, places[rank], "--steps=1000000000") for rank in range(2)]
            for stage in range(2):
                wait_for(folder / f"gpt.0.{stage}.bubble", ranks[stage])
            service.start("worker", "--name=beside", "--bubbles", "--cpu-slots=0", name="beside")
            study = subprocess.Popen([*HEADRACE, "run", str(options.study)], env=service.env)
            report = follow(service, study, options)
            print(report)
            best = service.ask("best", STUDY)  # it begins with `# trial 14:`
            print(service.ask("why", STUDY, best.partition("# trial ")[2].partition(":")[0]))
            print(f"drawn: {options.out / 'bubbles.svg'}, {options.out / 'bubbles.json'}")
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
            service.end()


if __name__ == "__main__":
    main()
