"""Studies with `trial: {reuse: true}` report the same bits as with a process for each attempt."""

import json
import random
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from ready_home import furnish
from test_outcomes_end_to_end import Service
from test_up_end_to_end import Up, up

pytestmark = [pytest.mark.full, pytest.mark.timeout(400)]

STUDY = """
objective: {metric: loss, goal: minimize}
trial: {callable: "PROGRAM:train", REUSE}
space: {lr: {type: float, low: 0.001, high: 0.1, log: true}}
policy: {kind: asha, eta: 2, rungs: [1, 2, 4]}
sampler: {kind: random}
trials: 8
seed: 3
"""
MARK = """
import os
from pathlib import Path

def mark(number):
    with open(Path(__file__).with_suffix(".pids"), "a") as file:
        file.write(f"{number} {os.getpid()}\\n")
"""
PLAIN = (
    MARK
    + """
import random
import numpy as np
import torch

def train(t):
    mark(t.number)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=t["lr"])
    t.track(model=model, optimizer=optimizer)
    for step in t.steps():
        x = torch.randn(32, 8) + random.random() + float(np.random.rand())
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        t.report(loss=float(loss))
"""
)
GANG = (
    MARK
    + """
import torch
import torch.distributed as dist

def train(t):
    if t.rank == 0:
        mark(t.number)
    dist.init_process_group("gloo")
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=t["lr"])
    t.track(model=model, optimizer=optimizer)
    for step in t.steps():
        loss = model(torch.randn(32, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        t.report(loss=float(loss))
    dist.destroy_process_group()
"""
)
LIGHTNING = (
    MARK
    + """
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

from headrace_torch.lightning import TrialCallback

DATA = TensorDataset(torch.arange(512.0).reshape(64, 8) / 512)

class Model(pl.LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.lr = lr
        self.net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))

    def training_step(self, batch):
        loss = self.net(batch[0]).square().mean()
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr)

def train(t):
    mark(t.number)
    callback = TrialCallback(t)
    trainer = pl.Trainer(max_epochs=t.max_steps, callbacks=[callback], logger=False, enable_progress_bar=False,
                         enable_model_summary=False, accelerator="cpu")
    trainer.fit(Model(t["lr"]), DataLoader(DATA, 16, shuffle=True), ckpt_path=callback.ckpt_path)
"""
)
BUNDLE = (
    MARK
    + """
import torch
from headrace_torch import hydro

def make_model():
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))

def loss_of(model, batch):
    return model(batch).square().mean()

def train(bundle):
    mark(0)
    group = hydro.fuse(bundle.model(make_model), optimizer="adamw")
    bundle.track(group=group)
    x = torch.linspace(-1, 1, 64).reshape(8, 8)
    for _ in bundle.steps():
        losses = group.step(x, loss_of)
        bundle.report(loss=[float(loss) for loss in losses])
"""
)
PROGRAMS = {
    "plain": (PLAIN, ""),
    "gang": (GANG, "resources: {cpus: 2, processes: per_slot}\n"),
    "lightning": (LIGHTNING, ""),
    "bundle": (BUNDLE, "fuse: {most: 3}\nresources: {gpus: 0}\n"),
}


class Site(Service):
    """A service, and its processes."""

    running: Up


@pytest.fixture(scope="module")
def service() -> Iterator[Site]:
    folder = Path(tempfile.mkdtemp(prefix="hr-"))  # short: Unix sockets are created in it
    home = folder / "home"
    furnish(home)
    with up(home, slots=2) as running:
        found = Site(home, folder)
        found.running = running
        yield found
    shutil.rmtree(folder, ignore_errors=True)


def curves(service: Service, study: str) -> dict[tuple[int, int], float]:
    """Each reported value by trial and step."""
    rows = json.loads(service.cli("export", study, "--reports", "--format", "json").out)
    return {(row["trial"], row["step"]): row["metric.loss"] for row in rows}


def processes(service: Service, study: str) -> Counter[str]:
    """How many trials each process began."""
    lines = (service.folder / f"program_{study}.pids").read_text().splitlines()
    return Counter(line.split()[1] for line in lines)


@pytest.mark.parametrize("kind", PROGRAMS)
def test_the_same_bits_as_in_a_process_for_each_attempt(service: Service, kind: str) -> None:
    program, more = PROGRAMS[kind]
    found = {}
    for reuse in ("reuse: true", "reuse: false"):
        name = f"{kind}{'' if reuse == 'reuse: true' else 'fresh'}"
        done = service.run(name, program, STUDY.replace("REUSE", reuse) + more)
        assert done.code == 0, done.out + done.err
        found[reuse] = curves(service, name)
    common = found["reuse: true"].keys() & found["reuse: false"].keys()
    assert len(common) >= 10  # which trials are promoted may depend on the order in which they arrive
    assert {key: found["reuse: true"][key] for key in common} == {
        key: found["reuse: false"][key] for key in common
    }
    if kind == "plain":
        assert (
            "of the processor time of the study's first 8 attempts" in service.cli("events", "plainfresh").out
        )
    reused = processes(service, kind)
    if kind == "bundle":
        return  # one process may take all members of the study, as they leave and join
    assert max(reused.values()) > 1, service.cli("workers").out + service.cli("events", kind).out
    assert max(processes(service, f"{kind}fresh").values()) == 1


def test_kills_of_reused_processes_and_of_workers_change_no_result(service: Site) -> None:
    """A kill is charged to the trial that runs, if any, and a worker's death to nobody."""
    study = STUDY.replace("trials: 8", "trials: 24").replace("REUSE", "reuse: REUSE")
    slower = PLAIN.replace("        t.report", "        time.sleep(0.3)\n        t.report").replace(
        "import random\n", "import random\nimport time\n"
    )
    done = service.run("calm", slower, study.replace("reuse: REUSE", "reuse: true"))
    assert done.code == 0, done.out + done.err
    assert service.run("killed", slower, study.replace("reuse: REUSE", "reuse: true"), "--detach").code == 0
    chance, kills = random.Random(5), Counter[str]()
    pause = threading.Event()

    def over() -> bool:
        return service.json("show", "killed")["state"] != "active"

    while not over():
        pause.wait(chance.uniform(2, 4))  # four kills without progress would fail a trial
        with suppress(psutil.Error, AssertionError):  # one that is just being started again
            worker = service.running.child(" worker ")
            trials = [one for one in worker.children() if "headrace" in " ".join(one.cmdline())]
            victim = worker if kills.total() % 3 == 2 or not trials else chance.choice(trials)
            victim.kill()
            kills["a worker" if victim == worker else "a trial's process"] += 1
        if kills.total() >= 9:
            service.running.until(over, "the study ends", 240)
    assert min(kills["a worker"], kills["a trial's process"]) >= 2, kills
    assert service.json("show", "killed")["state"] == "completed"
    counts = service.json("show", "killed")["trials"]
    assert (counts["failed"], counts["total"]) == (0, 24), service.cli("events", "killed").out
    calm, killed = curves(service, "calm"), curves(service, "killed")
    common = calm.keys() & killed.keys()
    assert len(common) >= 30
    assert {key: calm[key] for key in common} == {key: killed[key] for key in common}
