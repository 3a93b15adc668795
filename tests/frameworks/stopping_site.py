"""Trials that stop early by themselves, through a real service: undisturbed, and paused and killed on their way.

A trial is described by what must not depend on pauses: its values, its end, and the content of its last
checkpoint.
"""

import hashlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "chaos"))  # a cluster that can be damaged

from cluster_site import Cluster, cluster, connect, until

from headrace import Client
from headrace.client.model import Checkpoint, TrialInfo, TrialState
from headrace.errors import TrialEndedError
from headrace.trial import read_checkpoint

__all__ = [
    "BUDGET",
    "METRICS",
    "PROGRAMS",
    "cluster",
    "connect",
    "disturb",
    "disturbed",
    "ended",
    "kept",
    "undisturbed",
]

PROGRAMS = Path(__file__).parent / "stopping"
BUDGET = 12
METRICS = {"plain": "val_loss", "with_lightning": "val_loss", "with_transformers": "eval_loss"}
"""The programs, each with its objective."""


@dataclass(frozen=True, slots=True)
class Told:
    """The result of a trial."""

    values: dict[int, float]
    """By step. If a step was computed again after a loss, both values must be equal."""
    outcome: str
    steps: int
    saved: dict[str, str]
    """The content of its last checkpoint: a digest of each piece, its step among them."""


def spec_of(
    program: str, lrs: list[float], *, home: Path | None = None, steps: int = BUDGET
) -> dict[str, Any]:
    """A study of one trial for each rate. A study to disturb, on the site of this home, has a rung at each step,
    where no trial is stopped: the median policy compares no trial before the last of these."""
    policy: dict[str, Any] = {"kind": "run_all"}
    env = {"OMP_NUM_THREADS": "1"}
    if home is not None:
        env |= {"BATCH_S": "0.2", "HOME_OF_SITE": str(home)}  # by which `Cluster.trials` finds the processes
        policy = {"kind": "median", "interval": 1, "grace_steps": steps}
    return {
        "objective": {"metric": METRICS[program], "goal": "minimize"},
        "trial": {
            "callable": f"{program}:train",
            "working_dir": str(PROGRAMS),
            "env": env,
        },
        "space": {"lr": {"type": "float", "low": 1e-6, "high": 1.0}},
        "enqueue": [{"lr": lr} for lr in lrs],
        "trials": len(lrs),
        "steps": steps,
        "policy": policy,
        "resources": {"gpus": 0},
    }


def undisturbed(
    client: Client, program: str, lrs: list[float], name: str, *, steps: int = BUDGET
) -> list[Told]:
    """Runs the trials of these rates from start to end."""
    client.create_study(name, spec_of(program, lrs, steps=steps))
    return ended(client, name, len(lrs))


def disturbed(
    site: Cluster, client: Client, program: str, lrs: list[float], name: str, *, steps: int = BUDGET
) -> list[Told]:
    """Runs them with a pause of the first trial at each step, and kills every process found on the way."""
    client.create_study(name, spec_of(program, lrs, home=site.home, steps=steps))
    disturb(site, client, name)
    return ended(client, name, len(lrs))


def disturb(site: Cluster, client: Client, name: str, number: int = 0) -> int:
    """Pauses a trial at every rung, and kills its process between some, until it has ended; returns its pauses."""
    trial, pauses = client.study(name).trial(number), 0
    while True:
        try:
            trial.pause()
        except TrialEndedError:
            return pauses
        if pauses % 3 == 1 or (pauses and not trial.info().interruptions):
            kill(site, client, name, number)
        found = until(lambda: rests(trial.info()), f"a pause of trial {number} of {name}", 240)
        if found.state is TrialState.TERMINATED:
            return pauses
        pauses += 1
        trial.resume()


def kill(site: Cluster, client: Client, name: str, number: int) -> None:
    """Kills the process that trains a trial, unless it reaches its pause first."""
    trial = client.study(name).trial(number)
    attempt = trial.info().attempt
    until(lambda: leaves(trial.info(), attempt) or site.kill(process_of(site, name, number)), "a kill")


def rests(info: TrialInfo) -> TrialInfo | None:
    """The trial, once it waits for its user or has ended."""
    return info if info.state in (TrialState.PAUSED, TrialState.TERMINATED) and info.worker is None else None


def leaves(info: TrialInfo, attempt: int) -> bool:
    """Whether a trial has reached its pause before it could be killed."""
    return info.attempt != attempt or rests(info) is not None


def process_of(site: Cluster, name: str, number: int) -> Any:
    """The process that trains a trial now, if any: found by its title, as it may have started before its trial."""
    title = f"headrace: trial {name}/{number}"
    return next((one for one in site.trials() if " ".join(one.cmdline()).strip() == title), None)


def ended(client: Client, name: str, trials: int) -> list[Told]:
    """The results of the study's trials, after its end."""
    until(lambda: client.study(name).status().state.ended, f"the end of {name}", 480)
    return [told(client, name, number) for number in range(trials)]


def told(client: Client, name: str, number: int) -> Told:
    """The result of a trial. A step that was reported several times must have had the same value each time."""
    trial = client.study(name).trial(number)
    info, metric = trial.info(), client.study(name).status().spec.objective.metric
    values: dict[int, set[float]] = {}
    for report in trial.reports():
        values.setdefault(report.step, set()).add(report.metrics[metric])
    assert {step for step, found in values.items() if len(found) > 1} == set(), values
    assert info.checkpoint is not None, f"trial {number} of {name} left no checkpoint: {info.detail}"
    return Told(
        values={step: found.pop() for step, found in sorted(values.items())},
        outcome=info.outcome,
        steps=info.step,
        saved=saved_in(info.checkpoint),
    )


def kept(info: TrialInfo) -> dict[str, str]:
    """The content of the checkpoint of the result that counts."""
    assert info.kept_checkpoint is not None
    return saved_in(info.kept_checkpoint)


def saved_in(checkpoint: Checkpoint) -> dict[str, str]:
    """A digest of each piece of a checkpoint, and its step."""
    return {"step": str(checkpoint.step), **pieces(checkpoint.uri)}


def pieces(uri: str) -> dict[str, str]:
    """A digest of each piece of training state that a checkpoint holds."""
    saved = read_checkpoint(uri)
    found: dict[str, Any] = {**saved.tracked, "t.state": dict(saved.state)}
    for place in saved.files.values():
        if (place / "trainer.ckpt").exists():
            whole = torch.load(place / "trainer.ckpt", weights_only=False)
            kept = ("state_dict", "optimizer_states", "lr_schedulers", "callbacks", "epoch", "global_step")
            found |= {name: whole[name] for name in kept}
        else:
            found |= trainer_files(place)
    return {name: hashlib.sha256(repr(plain(value)).encode()).hexdigest() for name, value in found.items()}


def trainer_files(place: Path) -> dict[str, Any]:
    """The Trainer's files; of its own state, everything except folder names and times."""
    import json

    from safetensors.torch import load_file

    state = json.loads((place / "trainer_state.json").read_text())
    kept = ("global_step", "best_metric", "max_steps")
    early = {name: one for name, one in state["stateful_callbacks"].items() if name != "TrainerControl"}
    return {
        "model": load_file(place / "model.safetensors"),
        "optimizer": torch.load(place / "optimizer.pt", weights_only=True),
        "scheduler": torch.load(place / "scheduler.pt", weights_only=True),
        "state": {name: state[name] for name in kept},
        "callbacks": early,
    }


def plain(value: Any) -> Any:
    """A value as text that shows every bit of it."""
    if isinstance(value, torch.Tensor):
        return (str(value.dtype), tuple(value.shape), value.tolist())
    if isinstance(value, Mapping):
        return sorted((repr(key), plain(item)) for key, item in value.items())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value
