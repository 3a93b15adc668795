"""HDET as a trial: gangs of four ranks, paused at rungs that are no sync points, and killed at ten random steps.

Run it:  make hdet-trials (minutes: every pause and every kill starts four processes)

Four trials race over the rungs 3, 7 and 19 with T = 5; the one that wins also runs undisturbed, in one piece. Its
rates, losses and weights of every step must be equal on every rank, bit for bit.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from headrace.cli.local import local_service
from headrace.cli.output import Output

RANKS, STEPS, KILLS = 4, 19, 10
STUDY = """
name: NAME
objective: {metric: loss, goal: minimize}
trial: {callable: train:train}
space: {x: {type: categorical, values: [0, 1, 2, 3]}}
sampler: {kind: grid}
policy: POLICY
trials: TRIALS
steps: 19
resources: {cpus: 4, processes: per_slot}
retries: 20
"""
PAUSED = "{kind: asha, variant: promotion, eta: 2, rungs: [3, 7, 19]}"
STRAIGHT = "{kind: run_all}"
TRAIN = """
import hashlib, json, os, signal
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Adam
from torch.optim.lr_scheduler import CosineAnnealingLR
from headrace_torch.hdet import HDETController, HDETScheduler, learning_rates

with open("kills.json") as file:
    KILLS = json.load(file)
torch.set_num_threads(1)

def train(t):
    dist.init_process_group("gloo")
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 2))
    model = DistributedDataParallel(model, find_unused_parameters=True)  # else DDP changes the order of its sums
    optimizer = Adam(model.parameters(), lr=0.01 * (1 + t.params["x"]))
    controller = HDETController(model, optimizer, learning_rates(optimizer, spread=0.3), sync_every=5)
    scheduler = HDETScheduler(CosineAnnealingLR(optimizer, T_max=100), controller)
    data = torch.Generator().manual_seed(100 + t.rank)
    torch.manual_seed(1000 + t.rank)  # dropout of its own on each rank
    t.track(model=model, optimizer=optimizer, scheduler=scheduler, data=data)
    for step in t.steps(checkpoint_every=1):
        mark = f"killed-{t.params['x']}-{step}"
        if [t.params["x"], step, t.rank] in KILLS and not os.path.exists(mark):
            open(mark, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        x = torch.randn(8, 8, generator=data)
        loss = (model(x) - torch.stack([x[:, 0] * x[:, 1], x.sum(dim=1).sin()], dim=1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step(loss)
        weights = torch.cat([p.detach().reshape(-1) for p in model.parameters()]).numpy().tobytes()
        with open(f"run-{t.params['x']}-{t.rank}.jsonl", "a") as file:
            rates = [float(rate).hex() for rate in scheduler.get_last_lr()]
            print(json.dumps([step, rates, loss.item().hex(), hashlib.sha256(weights).hexdigest()]), file=file)
        t.report(loss=10 * t.params["x"] + loss.item())
    dist.destroy_process_group()
"""


def main() -> None:
    """Runs both, and compares."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    seed = parser.parse_args().seed
    draws = random.Random(seed)
    # In the trial x = 0, which wins.
    kills = [[0, step, draws.randrange(RANKS)] for step in sorted(draws.sample(range(2, STEPS), KILLS))]
    folder = Path(tempfile.mkdtemp(prefix="hr-"))  # a short path: Unix sockets are created in it
    runs = {}
    with local_service(folder / "home", slots=RANKS, notes=Output()) as address:
        for name, policy, trials, some in (
            ("straight", STRAIGHT, "1", []),
            ("disturbed", PAUSED, "4", kills),
        ):
            runs[name] = run(folder / name, address, name, policy, trials, some)
    killed = len(list((folder / "disturbed").glob("killed-*")))
    print(f"kills: {kills}")
    print(
        f"{killed} of {KILLS} kills happened; straight {runs['straight']:.0f} s, disturbed {runs['disturbed']:.0f} s"
    )
    assert killed == KILLS
    for rank in range(RANKS):
        ours, theirs = (steps(folder / name / f"run-0-{rank}.jsonl") for name in ("disturbed", "straight"))
        assert len(theirs) == STEPS
        for step, seen in theirs.items():
            assert ours[step] == seen, f"rank {rank}, step {step}: {ours[step]} and not {seen}"
    print(f"{STEPS} steps on {RANKS} ranks: rates, losses and weights are equal bit for bit")
    shutil.rmtree(folder)


def run(folder: Path, address: str, name: str, policy: str, trials: str, kills: list[list[int]]) -> float:
    """Runs a study; returns its duration in seconds."""
    folder.mkdir()
    (folder / "train.py").write_text(TRAIN)
    (folder / "study.yaml").write_text(
        STUDY.replace("NAME", name).replace("POLICY", policy).replace("TRIALS", trials)
    )
    (folder / "kills.json").write_text(json.dumps(kills))
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "headrace.cli", "run", str(folder / "study.yaml")],
        env={**os.environ, "HEADRACE_ADDRESS": address},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return time.monotonic() - began


def steps(file: Path) -> dict[int, list[object]]:
    """What a rank recorded at each step, the last time that it took it."""
    return {line[0]: line for line in map(json.loads, file.read_text().splitlines())}


if __name__ == "__main__":
    main()
