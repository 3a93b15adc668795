"""The scheduler is killed between a pilot, a gate, their study and its transfer: nothing changes.

Each kill waits for the moment when one study has just ended and the next one has no trial yet.
"""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from cluster_site import PROGRAMS, Cluster, cluster, connect, until

from headrace.client import Client
from headrace.client.model import StudyState
from headrace.spec import parse_spec

pytestmark = pytest.mark.full

PROGRAM = """
import time

import fused
from headrace import trial

def make_model():
    return 1

class Rates(fused.Group):
    def losses(self, scale):
        sign = -1 if scale == 8 else 1  # a copy 8 times narrower ranks the other way round
        return [sign * row["lr"] for row in self._rows.values()]

def settings_of(member):
    (lr,) = member.params.values()  # the scale of a pilot's trial is none of its parameters
    return {"lr": lr, "seed": member.seed, "number": member.number}

def train(bundle: trial.Bundle) -> None:
    model = bundle.model(make_model)
    scale = model if isinstance(model, int) else model()
    group = Rates()
    bundle.track(group=group, member=settings_of)
    for _ in bundle.steps():
        time.sleep(0.5)
        bundle.report(loss=group.losses(scale), scale=[scale for _ in group.ids])
"""
# Replaces the library, which needs PyTorch, in trial processes only: a copy is the number of its scale.
STAND_IN = """
import sys
import time
from types import ModuleType

library = ModuleType("headrace_torch.hydro")
library.surrogate_of = lambda factory, **settings: settings["scale"]
gate = ModuleType("headrace_torch.hydro.gate_trial")

def run(t):
    for _ in t.steps():
        time.sleep(1)  # the test's client has found the new scheduler before the gate ends
        t.report(worst_slope=0.1, scale=t.surrogate.scale)

gate.run = run
sys.modules |= {one.__name__: one for one in (library, gate)}
"""


def test_the_scheduler_is_killed_between_the_four_studies(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "sitecustomize.py").write_text(STAND_IN)
    spec: dict[str, Any] = {
        "objective": {"metric": "loss", "goal": "minimize"},
        "trial": {
            "callable": "train:train",
            "working_dir": str(tmp_path),
            "env": {"PYTHONPATH": f"{tmp_path}:{PROGRAMS}"},
        },
        "space": {"lr": {"type": "float", "low": 0.1, "high": 1.0}},
        "surrogate": {
            "model": "train:make_model",
            "scale": "auto",
            "pilot": {"scales": [8, 4], "configurations": 10, "steps": 2},
        },
        "fuse": {"most": 10},
        "policy": {"kind": "run_all"},
        "trials": 3,
        "steps": 2,
        "transfer": {"callable": "train:train", "top": 2},
    }
    with cluster(tmp_path / "site", slots=4) as site, connect(site) as client:
        client.create_study("small", parse_spec(spec))
        for before, behind in pairwise(("small-scale", "small-gate", "small", "small-target")):
            until(lambda before=before: ended(client, before), f"the end of {before}", 120)
            early = client.study(behind).status().counts.terminated
            scheduler = site.child("scheduler")
            assert site.kill(scheduler)
            assert early == 0
            until(lambda scheduler=scheduler: new_scheduler(site, scheduler.pid), "a scheduler again", 60)
        until(lambda: ended(client, "small-target"), "the end of the transfer", 120)
        for name, trials in {"small-scale": 30, "small-gate": 1, "small": 3, "small-target": 2}.items():
            study = client.study(name)
            assert study.status().state is StudyState.COMPLETED, study.status().detail
            found = list(study.trials())
            assert [(one.failures, one.step) for one in found] == [(0, 2)] * trials
        for name, scales in {
            "small-scale": {1, 4, 8},
            "small-gate": {4},
            "small": {4},
            "small-target": {1},
        }.items():
            assert {one.metrics["scale"] for one in client.study(name).trials()} == scales
        choice = client.study("small").status().scale_choice
        assert choice is not None
        assert (choice.scale, choice.study) == (4, "small-scale")
        assert [(one.scale, one.kendall, one.agrees) for one in choice.tried] == [
            (8, -1.0, False),
            (4, 1.0, True),
        ]
        best = sorted(client.study("small").trials(), key=lambda one: one.params["lr"])
        sources = [one.source for one in client.study("small-target").trials()]
        assert sources == [one.number for one in best[:2]]


def ended(client: Client, name: str) -> bool:
    return client.study(name).status().state.ended


def new_scheduler(site: Cluster, old: int) -> bool:
    found = site.child("scheduler")
    return found is not None and found.pid != old
