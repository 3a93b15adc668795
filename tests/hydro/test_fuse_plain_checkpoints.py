"""A trial that trains alone, in plain PyTorch, continues in a bundle, and then alone again, as if it had never
moved."""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from fuse_models import CLASSES, OPTIMIZERS, apart, built, factory, loss_of
from torch import Tensor

from headrace.trial import Bundle, Trial
from headrace.trial.bundle_run import run_bundle
from headrace.trial.bundle_runtime import Answer, Attached, Ended, Said, Seat
from headrace.trial.runtime import Action, Assignment, Decision
from headrace_torch import hydro

sys.path.insert(0, str(Path(__file__).parent.parent / "trial"))

from recording_runtime import RecordingRuntime

KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "adamw": ("adamw", {"weight_decay": 0.05}),
    "momentum": ("sgd", {"momentum": 0.9, "dampening": 0.1}),
    "plain sgd": ("sgd", {}),
}
RUNGS = (2, 4, 6)
LR = 0.02


def data(group: Any) -> hydro.EpochBatches:
    """Three batches per step, in a different order at each."""
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(24, 16, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, CLASSES, (24,), generator=generator)
    return hydro.EpochBatches(group, inputs, labels, batch_size=8, seed=3)


def alone(trial: Trial, kind: str) -> dict[str, Tensor]:
    """The user's own loop. Returns the model's state."""
    name, settings = KINDS[kind]
    model, batches = built("mlp", 1), data(hydro.fuse(factory("mlp")))
    optimizer = OPTIMIZERS[name](model.parameters(), lr=LR, **settings)
    trial.track(model=model, optimizer=optimizer)
    for step in trial.steps():
        for seen in range(3 * (step - 1), 3 * step):
            optimizer.zero_grad()
            loss = loss_of(model, batches.of(seen))  # type: ignore[arg-type]  # two tensors
            loss.backward()
            optimizer.step()
        trial.report(loss=loss.item())
    return model.state_dict()


@dataclass
class Company:
    """A bundle in which the trial is next to two others, which start first."""

    runtime: RecordingRuntime
    over: bool = field(default=False)

    def attach(self) -> Attached:
        others = [
            Seat(
                lease=f"other-{seed}",
                assignment=Assignment(trial="", params={}, max_steps=99, next_milestone=99, seed=seed),
            )
            for seed in (7, 8)
        ]
        return Attached(
            members=(others[0], Seat(lease="own", assignment=self.runtime.attach()), others[1]), seats=3
        )

    def turn(self, said: Said) -> Answer:
        assert not said.finished
        decisions = [
            (lease, Decision(action=Action.CONTINUE, next_milestone=99)) for lease, _ in said.reports
        ]
        for place, (lease, report) in enumerate(said.reports):
            if lease == "own":
                decisions[place] = (lease, self.runtime.report(report))
                self.over = decisions[place][1].action is not Action.CONTINUE
        return Answer(decisions=tuple(decisions), over=self.over)

    def finish(self, end: Ended) -> None:
        assert end == Ended(), end.traceback


def in_a_bundle(runtime: RecordingRuntime, kind: str) -> None:
    name, settings = KINDS[kind]

    def train(bundle: Bundle) -> None:
        group = hydro.fuse(factory("mlp"), optimizer=name, engine="grouped")
        batches = data(group)
        bundle.track(group=group, member=lambda one: {"lr": LR, "seed": one.seed, **settings})
        for _ in bundle.steps():
            for batch in batches:
                losses = group.step(batch, loss_of)
            bundle.report(loss=losses)

    company = Company(runtime)
    run_bundle(train, company, company.attach())


@pytest.mark.parametrize("kind", KINDS)
def test_it_continues_as_if_it_had_stayed_alone(kind: str, tmp_path: Path) -> None:
    stayed = RecordingRuntime(checkpoint_dir=tmp_path / "stayed", rungs=RUNGS)
    expected = alone(stayed.trial(), kind)
    runtime = RecordingRuntime(
        checkpoint_dir=tmp_path / "moved",
        rungs=RUNGS,
        decisions={2: Action.PAUSE, 4: Action.PAUSE, 6: Action.STOP},
    )
    alone(runtime.trial(), kind)
    assert runtime.reports[-1].step == 2
    in_a_bundle(runtime, kind)
    assert runtime.reports[-1].step == 4
    found = alone(runtime.trial(), kind)
    assert [one.step for one in runtime.reports] == [1, 2, 3, 4, 5, 6]
    assert [one.metrics["loss"] for one in runtime.reports] == pytest.approx(
        [one.metrics["loss"] for one in stayed.reports], rel=1e-9
    )
    assert apart(found, expected) < 1e-9
