"""A fused member equals the run that it would be alone in plain torch: in float64 within 1e-9 over 50 steps."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from fuse_models import batches, factory, loss_of, mixed_members, trained_alone, trained_fused
from torch import Tensor

from headrace_torch import hydro
from headrace_torch.hydro.fuse import running
from headrace_torch.hydro.fuse.engines import stacked
from headrace_torch.hydro.fuse.member import Member
from headrace_torch.hydro.fuse.schedules import Setting

STEPS, TOLERANCE = 50, 1e-9


def greatest_difference(model: str, optimizer: str, engine: str, steps: int = STEPS) -> float:
    """How far members of a group are from the same members, each trained alone."""
    group = trained_fused(model, optimizer, engine, steps=steps)
    return group.distance(trained_alone(model, optimizer, steps=steps))


@pytest.mark.cases(4)
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize("model", ["mlp", "cnn", "resnet", "gpt"])
def test_grouped_members_equal_plain_torch(model: str, optimizer: str) -> None:
    assert greatest_difference(model, optimizer, "grouped") <= TOLERANCE


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("model", "optimizer"), [("mlp", "adamw"), ("cnn", "sgd"), ("resnet", "adam"), ("gpt", "sgd")]
)
def test_vmapped_members_equal_plain_torch(model: str, optimizer: str) -> None:
    assert greatest_difference(model, optimizer, "vmap", steps=20) <= TOLERANCE


@pytest.mark.parametrize(("model", "optimizer"), [("mlp", "sgd"), ("cnn", "adamw")])
def test_separate_members_equal_plain_torch(model: str, optimizer: str) -> None:
    assert greatest_difference(model, optimizer, "separate", steps=20) <= TOLERANCE


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_a_mean_over_members_is_found(optimizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[..., Tensor] = stacked.total_of
    monkeypatch.setattr(stacked, "total_of", lambda losses, slots: real(losses, slots) / len(slots))
    with pytest.raises(hydro.FusionGapError, match="mean over members"):
        greatest_difference("mlp", optimizer, "grouped")
    # And without the probe first: the trajectories themselves differ, also under Adam, which divides by the
    # gradient's size.
    monkeypatch.setattr(running, "compare", lambda *_: ("", None))
    assert greatest_difference("mlp", optimizer, "grouped", steps=10) > 1e4 * TOLERANCE


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_collapsed_rates_are_found(optimizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rates = [member["lr"] for member in mixed_members(optimizer)]
    real: Callable[[Member, int], Setting] = Member.setting
    monkeypatch.setattr(
        Member, "setting", lambda self, step: real(replace(self, lr=sum(rates) / len(rates)), step)
    )
    assert greatest_difference("mlp", optimizer, "grouped", steps=10) > 1e4 * TOLERANCE


@pytest.mark.parametrize("model", ["mlp", "cnn", "resnet", "gpt"])
def test_the_probe_measures_losses_gradients_and_buffers(model: str) -> None:
    group = hydro.fuse(factory(model, torch.float32), [{"lr": 1e-3}] * 3, workers=0)
    group.step(batches(model, 1, dtype=torch.float32)[0], loss_of)
    assert group.report is not None
    assert group.report.error.keys() == {"grouped", "vmap", "separate"}
    assert all(error <= 1e-12 for error in group.report.error.values())
    assert group.report.gaps == {}
