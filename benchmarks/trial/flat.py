"""Memory, descriptors and processes of a worker and of reused trial processes, while one study runs many trials.

    python benchmarks/trial/flat.py --trials 2000

Samples every few seconds. Prints the samples, and each figure's median in the second and in the last tenth of the
study; writes `flat.json` into `--out`.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent))

import psutil
from turns import environ, print_table, service

PROGRAM = """
import numpy as np

def train(t):
    data = np.random.rand(200, 200)
    t.report(loss=float(data.sum() * t["x"]))
"""
STUDY = {
    "name": "flat",
    "objective": {"metric": "loss", "goal": "minimize"},
    "trial": {"callable": "program:train", "reuse": True},
    "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
    "sampler": {"kind": "random"},
    "policy": {"kind": "run_all"},
    "steps": 1,
    "resources": {"gpus": 0},
}
EVERY_S = 3.0


def sample(up: psutil.Process, ended: int, began: float) -> dict[str, float]:
    """The figures now."""
    found: dict[str, float] = {"at_s": round(time.monotonic() - began, 1), "trials": ended, "processes": 0}
    trials_mb, trials_fds = [], []
    for one in up.children(recursive=True):
        with suppress(psutil.Error):
            words = " ".join(one.cmdline())
            mb, fds = one.memory_info().rss / 2**20, one.num_fds()
            if "headrace.cli" in words and " worker " in f"{words} ":
                found |= {"worker_mb": round(mb, 1), "worker_fds": fds}
            elif "headrace.cli" in words and " scheduler " in f"{words} ":
                found |= {"scheduler_mb": round(mb, 1), "scheduler_fds": fds}
            elif "flat" in words or "headrace.trial" in words:
                found["processes"] += 1
                trials_mb.append(mb)
                trials_fds.append(fds)
    found["trial_mb"] = round(max(trials_mb, default=0), 1)
    found["trial_fds"] = max(trials_fds, default=0)
    return found


def main() -> None:
    """Runs the study, samples, prints and writes the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results")
    asked = parser.parse_args()
    samples = []
    with tempfile.TemporaryDirectory(prefix="hr-flat-") as name:
        folder = Path(name)
        variables = environ(HEADRACE_HOME=str(folder / "home"))
        (folder / "program.py").write_text(PROGRAM)
        study = folder / "study.yaml"
        study.write_text(json.dumps({**STUDY, "trials": asked.trials}))
        with service(folder / "home", variables, folder / "log") as up:
            command = [sys.executable, "-m", "headrace.cli"]
            began = time.monotonic()
            subprocess.run([*command, "run", str(study), "--detach"], env=variables, check=True, cwd=folder)
            state = "active"
            while state == "active":
                time.sleep(EVERY_S)  # between two samples
                said = subprocess.run(
                    [*command, "show", "flat", "--json"], env=variables, capture_output=True, check=True
                )
                shown = json.loads(said.stdout)
                state, counts = shown["state"], shown["trials"]
                samples.append(sample(up, counts["completed"] + counts["failed"], began))
                print(json.dumps(samples[-1]), flush=True)
            said = subprocess.run(
                [*command, "workers", "--json"], env=variables, capture_output=True, check=True
            )
            print(json.loads(said.stdout)[0]["reused"])
            print(json.dumps(counts))
    full = [one for one in samples if "worker_mb" in one and one["trials"]]
    tenth = max(1, len(full) // 10)
    early, late = full[tenth : 2 * tenth], full[-tenth:]
    rows = [
        {
            "": figure,
            "second tenth": f"{median(one[figure] for one in early):g}",
            "last tenth": f"{median(one[figure] for one in late):g}",
        }
        for figure in full[0]
        if figure not in ("at_s", "trials")
    ]
    print_table(rows)
    asked.out.mkdir(parents=True, exist_ok=True)
    (asked.out / "flat.json").write_text(json.dumps({"samples": samples, "summary": rows}, indent=1))


if __name__ == "__main__":
    main()
