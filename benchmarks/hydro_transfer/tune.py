"""Hydro with the library alone: a GPT and a ResNet tuned on copies 16 times narrower, and directly for comparison.

A trial varies what carries over: the learning rate, the warm-up and Adam's β₁. Its score is the validation loss.
`end_to_end.py` runs it; `examples/hydro` is a study that does the same with the service.
"""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from data import Batch, Text
from digits import Digits, ResNet
from models import GPT
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from headrace_torch import hydro

SCALE = 16
KS = (1, 2, 5)
Hyperparameters = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A model family, its data, how long a trial trains, and the widths of the coordinate check."""

    name: str
    factory: Callable[..., nn.Module]
    width: int
    data: Callable[[], Any]
    steps: int
    rows: int
    gate: tuple[int, ...]


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What tuning one task with one seed found; seconds are CPU time.

    `regret` by k: how much worse the best of the surrogate's top k is than the best of direct tuning.
    """

    task: str
    seed: int
    trials: int
    engine: str
    surrogate_s: float
    target_s: float
    report: hydro.TransferReport
    direct_s: float | None = None
    kendall: float | None = None
    first_at: int | None = None
    regret: dict[int, float | None] | None = None
    best: float | None = None
    worst: float | None = None
    scores: list[tuple[float | None, float | None]] | None = None


TASKS = {
    "text": Task(
        name="text",
        # It grows by heads; the copy, 16 times narrower, has one head of this width.
        factory=partial(GPT, depth=2, head_width=8),
        width=128,
        data=Text,
        steps=80,
        rows=8,
        # The narrowest that pass: from 32 on, queries of the second block have -0.18. They start at zero, so what
        # moves narrow models is partly chance.
        gate=(64, 128, 256),
    ),
    "digits": Task(
        name="digits", factory=ResNet, width=64, data=Digits, steps=60, rows=16, gate=(16, 32, 64)
    ),
}


def configurations(count: int, steps: int, seed: int) -> list[Hyperparameters]:
    """Draws trials: rates over a factor of 256, three warm-ups, three values of β₁."""
    draw = random.Random(seed)
    return [
        {
            "lr": 2.0 ** draw.uniform(-12, -4),
            "warmup": draw.choice((0, steps // 10, steps // 3)),
            "beta1": draw.choice((0.8, 0.9, 0.95)),
        }
        for _ in range(count)
    ]


def member_of(one: Hyperparameters, steps: int, seed: int) -> dict[str, Any]:
    """A trial as `fuse` takes it: the rate rises linearly, then falls along a cosine."""
    fall = hydro.Cosine(steps=steps - one["warmup"])
    schedule = hydro.WarmUp(steps=one["warmup"], start=0.01, after=fall) if one["warmup"] else fall
    return {"lr": one["lr"], "betas": (one["beta1"], 0.99), "schedule": schedule, "seed": seed}


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    """The mean cross-entropy of all predictions, in nats."""
    return cross_entropy(model(batch[0]).flatten(0, -2), batch[1].flatten())


def train(
    surrogate: hydro.Surrogate, trials: Sequence[Hyperparameters], task: Task, data: Any, seed: int
) -> tuple[list[float | None], str]:
    """Trains all trials as one, and validates each as a plain model; None if a trial diverged."""
    members = [member_of(one, task.steps, seed) for one in trials]
    with hydro.fuse(surrogate, members, "adam", workers=0) as group:
        for step in range(task.steps):
            group.step(data.batch(step, task.rows, seed), loss_of)
        scores = [validate(group.member_model(number), data.validation) for number in group.ids]
        return scores, str(group.engine)


@torch.no_grad()
def validate(model: nn.Module, batch: Batch) -> float | None:
    """The loss on held-out data, in nats; None if it is not finite."""
    loss = float(loss_of(model.eval(), batch))
    return loss if loss < float("inf") else None


def tune(task: Task, trials: int, seed: int, k: int, *, direct: bool) -> Outcome:
    """Searches on the surrogate, validates the top k on the target, and tunes the target directly if requested."""
    data = task.data()
    space = configurations(trials, task.steps, seed)
    surrogate = hydro.shrink(
        task.factory, scale=SCALE, target={"width": task.width}, inputs=data.batch(0, 16)[0]
    )
    hydro.check_transferable(space)
    began = time.process_time()
    gate = hydro.coordinate_check(surrogate, widths=task.gate).raise_if_refuted()
    worst = gate.worst
    gate_s = time.process_time() - began
    steepest = "" if worst.slope is None else f", steepest {worst.name} {worst.slope:+.2f}"
    say(task, f"gate {gate.outcome} at widths {task.gate}{steepest}, {gate_s:.1f} s")
    scores, engine = train(surrogate, space, task, data, seed)
    surrogate_s = time.process_time() - began
    say(
        task,
        f"{trials} trials on a copy {SCALE} times narrower, {surrogate_s - gate_s:.1f} s, engine {engine}",
    )

    target = surrogate.target()
    seen: dict[int, float | None] = {}

    def train_target(one: Any) -> float | None:
        found = train(target, [one], task, data, seed)[0][0]
        seen[space.index(one)] = found
        return found

    began = time.process_time()
    results = [
        hydro.Trial(hyperparameters=one, score=score) for one, score in zip(space, scores, strict=True)
    ]
    report = hydro.transfer(results, train_target, k=k, gate=gate)
    target_s = time.process_time() - began
    say(task, f"the best {k} on the target, {target_s:.1f} s")
    outcome = Outcome(
        task=task.name,
        seed=seed,
        trials=trials,
        engine=engine,
        surrogate_s=surrogate_s,
        target_s=target_s,
        report=report,
    )
    if direct:
        began = time.process_time()
        on_target = [train(target, [one], task, data, seed)[0][0] for one in space]
        outcome.direct_s = time.process_time() - began
        say(task, f"all {trials} on the target, {outcome.direct_s:.1f} s")
        found = hydro.agreement(scores, on_target, ks=KS)
        outcome.kendall, outcome.first_at, outcome.regret = found.kendall, found.first_at, dict(found.regret)
        finite = [one for one in on_target if one is not None]
        outcome.best, outcome.worst = min(finite), max(finite)
        outcome.scores = list(zip(scores, on_target, strict=True))
        assert all(on_target[number] == score for number, score in seen.items()), "training is not repeatable"
    return outcome


def say(task: Task, what: str) -> None:
    """Prints one line of progress; seconds are CPU time."""
    print(f"{task.name}: {what}", flush=True)
