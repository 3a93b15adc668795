"""What happens to a primary whose agent, trial or rank is killed, stopped or misbehaves: one run of DeepSpeed.

    python tests/bubbles/kills.py --times 20      # prints figures as JSON; minutes

The test makes the same run once. After every event the primary must continue, with the same losses as without us.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from agent_site import AgentProcess
from primary_site import Primary, Running, until

from headrace_torch.bubble_shm import AT, StageFile

TRIAL = """
import sys, time
from pathlib import Path
from headrace_torch.bubbles.gate import Gate
gate = Gate(Path(sys.argv[1]))
key, quantum_s, heeds = gate.new_point(), 0.0003, sys.argv[2] == "heeds"
gate.point(key)
while True:
    end = time.perf_counter() + quantum_s
    while time.perf_counter() < end:
        pass
    if heeds:
        gate.point(key)
"""
PACE_S = 0.004
STEPS = 3


class Scene:
    """A primary with an agent, and a trial next to stage 0."""

    def __init__(self, primary: Primary, folder: Path, **run: Any) -> None:
        place = folder / "p"
        self.agent = AgentProcess(place)
        self.running: Running = primary.start(folder, place=place, pace=PACE_S, **run)
        until(lambda: self.running.file(0).exists() or None, "a stage's file")
        self.file = StageFile.open(self.running.file(0))
        self.trial = self.start_trial()
        self.figures: dict[str, float] = {}

    def says(self, name: str) -> int:
        return int(self.file.words[AT[name]])

    def start_trial(self, manner: str = "heeds") -> "subprocess.Popen[bytes]":
        return subprocess.Popen([sys.executable, "-c", TRIAL, str(self.running.file(0)), manner])

    def harvests(self) -> None:
        """Waits until a trial works in windows."""
        before = self.says("trial_stretches")
        until(lambda: self.says("trial_stretches") > before + 2, "work in windows")

    def steps(self, what: str, count: int = STEPS) -> None:
        """Waits for some steps of the primary, and records how long they took."""
        before = self.says("steps")
        until(lambda: self.says("steps") >= before + count + 1, f"steps: {what}")
        recent = self.file.records(1, AT["steps"], self.says("steps") - count)
        self.figures[f"step_ms, {what}"] = 1e-6 * statistics.median(
            ended - began for _, began, ended, _ in recent
        )

    def timed(self, what: str, condition: Callable[[], Any]) -> None:
        began = time.monotonic()
        until(condition, what)
        self.figures[f"ms until {what}"] = 1e3 * (time.monotonic() - began)

    def close(self) -> None:
        self.file.close()
        self.trial.kill()
        self.trial.wait()
        self.agent.kill()


def state(process: "subprocess.Popen[bytes]") -> str:
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]


def play(scene: Scene) -> None:
    """Every event, one after the other."""
    scene.steps("undisturbed")
    scene.harvests()
    scene.steps("with a trial")

    scene.agent.kill()
    scene.timed("no gate opens after the agent's death", lambda: scene.says("lease") < time.monotonic_ns())
    epoch = scene.says("gate_epoch")
    scene.steps("agent killed")
    assert scene.says("gate_epoch") - epoch <= 2
    scene.agent = AgentProcess(scene.agent.folder)
    scene.harvests()

    until(lambda: scene.says("gate_epoch") & 1 and not scene.says("trial_waiting"), "an open window")
    scene.trial.send_signal(signal.SIGSTOP)
    scene.steps("trial stopped inside a quantum")
    scene.trial.send_signal(signal.SIGCONT)
    scene.harvests()

    scene.trial.kill()
    scene.trial.wait()
    scene.steps("trial killed")

    scene.trial = scene.start_trial("ignores")
    until(lambda: scene.says("trial_pid") == scene.trial.pid, "the trial that ignores its gate")
    until(lambda: not scene.says("trial_waiting"), "its first window")
    until(lambda: not scene.says("gate_epoch") & 1, "that window's end")
    scene.timed("a trial that ignores its gate is stopped", lambda: state(scene.trial) == "T")
    scene.steps("beside a trial that ignores its gate")
    until(lambda: scene.says("evict"), "three offences")
    scene.trial.kill()
    scene.trial.wait()

    paused, seen = scene.running.pids[1], scene.says("steps")
    os.kill(paused, signal.SIGSTOP)
    time.sleep(0.3)
    assert scene.says("steps") <= seen + 1
    os.kill(paused, signal.SIGCONT)
    scene.steps("after a pause of the primary")


def unlearnt(file: StageFile, least: int) -> list[tuple[int, ...]]:
    """Work in windows of a generation that had not been seen often enough."""
    windows = file.records(0, AT["windows"], 0)
    first: dict[int, int] = {}
    for at, _, _, generation in windows:
        first.setdefault(generation, at >> 16)
    early = [
        (began, ended, generation)
        for at, began, ended, generation in windows
        if generation != windows[0][3] and at >> 16 < first[generation] + least
    ]
    return [
        stretch
        for stretch in file.records(2, AT["trial_stretches"], 0)
        if any(began <= stretch[0] <= ended for began, ended, _ in early)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=5)
    options = parser.parse_args()
    primary, told = Primary(), dict[str, list[float]]()
    for number in range(options.times):
        with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
            scene = Scene(primary, Path(name), steps=100_000)
            play(scene)
            kill_a_rank(scene)
            scene.close()
        for what, value in scene.figures.items():
            told.setdefault(what, []).append(round(value, 2))
        print(f"run {number + 1} of {options.times}", file=sys.stderr)
    primary.close()
    summary = {
        what: {"median": statistics.median(values), "worst": max(values), "all": values}
        for what, values in told.items()
    }
    print(json.dumps(summary, indent=1))


def kill_a_rank(scene: Scene) -> None:
    """A rank dies: its gate closes by itself, and the trial stops working."""
    scene.trial = scene.start_trial()
    scene.harvests()
    os.kill(scene.running.pids[0], signal.SIGKILL)
    died = time.monotonic_ns()
    scene.running.codes()
    time.sleep(0.2)
    last = scene.file.records(2, AT["trial_stretches"], scene.says("trial_stretches") - 1)[-1]
    scene.figures["ms until the trial rests after a rank's death"] = max(0, last[1] - died) * 1e-6
    assert scene.says("trial_waiting")


if __name__ == "__main__":
    main()
