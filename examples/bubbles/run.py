"""A GPT trains as a pipeline of two stages, and digits are tuned while its stages wait: one command, two cores.

    python examples/bubbles/run.py

It starts the bubble agent, two ranks, each bound to a core, and a trial beside each. At the end it prints what the
agent saw, and writes the last second as a picture and as a trace for Perfetto.
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

HERE = Path(__file__).resolve().parent
HEADRACE = [sys.executable, "-m", "headrace.cli"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_rank(rank: int, port: int, folder: Path, core: int, *options: str) -> "subprocess.Popen[bytes]":
    """A rank, bound to a core."""
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


def start_trial(gate: Path | None, core: int, *options: str) -> "subprocess.Popen[bytes]":
    """A trial on a core: in a stage's bubbles, or with all of the core."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    if gate:
        env["HEADRACE_BUBBLE_GATE"] = str(gate)
    command = ["taskset", "-c", str(core), sys.executable, str(HERE / "digits.py"), *options]
    return subprocess.Popen(command, env=env)


def start_agent(folder: Path) -> "subprocess.Popen[str]":
    """The agent of a folder; returns when it serves."""
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
    """A core for each stage: the same one where there is no second."""
    allowed = sorted(os.sched_getaffinity(0))
    return allowed[0], allowed[-1]


def wait_for(path: Path, process: "subprocess.Popen[bytes]") -> None:
    while not path.exists():
        if process.poll() is not None:
            sys.exit(f"a rank has ended: see {path.parent}")
        time.sleep(0.1)


def ask(folder: Path, *options: str) -> str:
    """What `headrace bubbles` prints."""
    command = [*HEADRACE, "bubbles", "--folder", str(folder), *options]
    return subprocess.run(command, capture_output=True, text=True).stdout


def draw(folder: Path, out: Path) -> None:
    """The last second, unless nothing happened in it."""
    for name, option in (("bubbles.svg", "--svg"), ("bubbles.json", "--trace")):
        told = ask(folder, "--seconds=1", option, "-")
        if "quanta" in told:
            (out / name).write_text(told)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=600, help="of the GPT")
    parser.add_argument("--out", type=Path, default=Path(), help="where bubbles.svg and bubbles.json go")
    options = parser.parse_args()
    ran, trials = [], []
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        folder = Path(name)
        try:
            ran.append(start_agent(folder))
            port, places = free_port(), cores()
            ranks = [
                start_rank(rank, port, folder, places[rank], f"--steps={options.steps}") for rank in range(2)
            ]
            ran += ranks
            for stage in range(2):
                gate = folder / f"gpt.0.{stage}.bubble"
                wait_for(gate, ranks[stage])
                trials.append(start_trial(gate, places[stage]))
            ran += trials
            report = ""
            while ranks[0].poll() is None:
                time.sleep(0.5)
                told = ask(folder)
                report = told if "stage" in told else report
                draw(folder, options.out)
            for trial in trials:
                trial.send_signal(signal.SIGTERM)
            time.sleep(1)
            print(report)
            print(f"drawn: {options.out / 'bubbles.svg'}, {options.out / 'bubbles.json'}")
        finally:
            for process in ran:
                process.kill()
                process.wait()


if __name__ == "__main__":
    main()
