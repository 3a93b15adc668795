"""Bundles of programs that count: a trial that pauses and comes back equals one that never paused, to the bit."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headrace.trial import Bundle
from headrace.trial.bundle_local import LocalBundle
from headrace.trial.bundle_run import run_bundle
from headrace.trial.bundle_runtime import Answer, Attached, Said
from headrace.trial.runtime import Decision
from headrace_torch import hydro

X = torch.linspace(-1, 1, 40).reshape(10, 4)
PARAMS: Any = [{"lr": 0.01}, {"lr": 0.03}]
STEPS = 8


class Counting:
    """An annealed loss with a running mean, for numbers, lists and tensors."""

    def __init__(self) -> None:
        self.calls, self.told, self.mean = 0, [0.0], torch.zeros(())

    def __call__(self, model: nn.Module, batch: Tensor) -> Tensor:
        self.calls += 1
        loss = model(batch).square().mean()
        self.mean = 0.9 * self.mean + 0.1 * loss.detach()
        self.told.append(self.calls / 60)
        return loss * sum(self.told) + self.mean * 0.01 * model(batch).mean()


class Grows(nn.Module):
    """A layer whose scale changes at each call; it is in the extra state."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(4, 3), 1.0

    def forward(self, x: Tensor) -> Tensor:
        self.scale *= 1.1
        return self.layer(x) * self.scale

    def get_extra_state(self) -> Any:
        return {"scale": self.scale}

    def set_extra_state(self, state: Any) -> None:
        self.scale = state["scale"]


class Numbers(Grows):
    """Reads its scale from an iterator."""

    def __init__(self) -> None:
        super().__init__()
        self.ids = itertools.count(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * next(self.ids)

    get_extra_state = nn.Module.get_extra_state
    set_extra_state = nn.Module.set_extra_state


def linear() -> nn.Module:
    return nn.Linear(4, 3)


Curves = dict[tuple[int, int], float]


def program(
    make: Callable[[], nn.Module], curves: Curves, until: int | None = None
) -> Callable[[Bundle], None]:
    """Trains until a step, and records each trial's losses."""

    def train(bundle: Bundle) -> None:
        torch.manual_seed(0)
        loss, group = Counting(), hydro.fuse(make, optimizer="adamw")
        bundle.track(group=group)
        for _ in bundle.steps():
            members = bundle.members
            losses = group.step(X, loss)
            for member, one in zip(members, losses, strict=True):
                curves[member.number, member.step] = float(one)
            bundle.report(loss=losses)
            if max(member.step for member in members) == until:
                return

    return train


def run(
    make: Callable[[], nn.Module],
    folder: Path,
    until: int | None = None,
    kind: type[LocalBundle] = LocalBundle,
) -> Curves:
    """One process of a bundle; returns the losses by trial and step."""
    curves: Curves = {}
    bundle = kind(params=PARAMS, steps=STEPS, seed=0, checkpoints=folder)
    run_bundle(program(make, curves, until), bundle, bundle.attach())
    return curves


class Undecided(LocalBundle):
    """Trial 0 may continue after its second step only when trial 1 has done its fifth."""

    held: tuple[tuple[str, Decision], ...] = ()

    def attach(self) -> Attached:
        attached = super().attach()
        first, *others = attached.members
        held = replace(first, assignment=replace(first.assignment, next_milestone=2))
        return replace(attached, members=(held, *others))

    def turn(self, said: Said) -> Answer:
        answer = super().turn(said)
        steps = {lease: report.step for lease, report in said.reports}
        if steps.get("0") == 2:
            self.held = tuple(one for one in answer.decisions if one[0] == "0")
            return replace(answer, decisions=tuple(one for one in answer.decisions if one[0] != "0"))
        if steps.get("1") == 5:
            return replace(answer, decisions=(*answer.decisions, *self.held))
        return answer


@pytest.mark.parametrize("make", [linear, Grows])
def test_a_bundle_that_is_paused_continues_to_the_bit(make: Callable[[], nn.Module], tmp_path: Path) -> None:
    whole = run(make, tmp_path / "whole")
    assert len(whole) == 2 * STEPS
    begun = run(make, tmp_path / "parts", until=3)
    assert begun == {key: loss for key, loss in whole.items() if key[1] <= 3}
    assert run(make, tmp_path / "parts") == {key: loss for key, loss in whole.items() if key[1] > 3}


@pytest.mark.parametrize("make", [linear, Grows])
def test_a_trial_that_waits_for_its_decision_continues_to_the_bit(
    make: Callable[[], nn.Module], tmp_path: Path
) -> None:
    """It leaves the group, and comes back next to a trial that is three steps further."""
    found, whole = run(make, tmp_path / "held", kind=Undecided), run(make, tmp_path / "whole")
    assert list(found) != list(whole)
    assert found == whole


def test_what_no_checkpoint_can_hold_is_refused_at_the_first_step(tmp_path: Path) -> None:
    curves: Curves = {}
    bundle = LocalBundle(params=PARAMS, steps=STEPS, seed=0, checkpoints=tmp_path)
    with pytest.raises(hydro.FuseError, match="a member's state cannot hold ids, which a step changes"):
        run_bundle(program(Numbers, curves), bundle, bundle.attach())
    assert {step for _, step in curves} == {1}
    run_bundle(
        program(Numbers, curves), unsaved := LocalBundle(params=PARAMS, steps=3, seed=0), unsaved.attach()
    )
