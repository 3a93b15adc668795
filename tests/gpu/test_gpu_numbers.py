"""On a GPU, a fused member equals the run that it would be alone in plain torch.

In float64 the difference is rounding, within TIGHT. In float32 and TF32 the yardstick is plain torch itself: a
group may be FACTOR times as far from the float64 run as plain float32 is on the same card. That bound fits every
model and optimizer: Adam enlarges the rounding of a small gradient ten thousand times, and plain torch's as much.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch
from fuse_models import MODELS, Trained, trained_alone, trained_fused
from gpu_precision import tf32

from headrace_torch.hydro.fuse.member import Member
from headrace_torch.hydro.fuse.schedules import Setting

STEPS = 10
TIGHT = 1e-8
"""On a CPU 5e-11 at most: the biases of keys, whose gradients are rounding, under AdamW."""
FACTOR, FLOOR = 20, 1e-6
TF32_COARSER = 2**13
"""Float32 has 24 bits, and TF32 has 11."""
ENGINES = ("grouped", "vmap")
OPTIMIZERS = ("adamw", "sgd")


@cache
def alone(model: str, optimizer: str, device: str, dtype: torch.dtype, allowed: bool = False) -> Trained:
    with tf32(allowed):
        return trained_alone(model, optimizer, steps=STEPS, device=device, dtype=dtype)


def rounding(model: str, optimizer: str, device: str, allowed: bool = False) -> float:
    """How far plain float32, or TF32, is from plain float64."""
    found = alone(model, optimizer, device, torch.float32, allowed)
    return found.distance(alone(model, optimizer, device, torch.float64))


def fused(
    model: str, optimizer: str, engine: str, device: str, dtype: torch.dtype, allowed: bool = False
) -> float:
    """How far a group is from plain float64."""
    with tf32(allowed):
        group = trained_fused(model, optimizer, engine, steps=STEPS, device=device, dtype=dtype)
    return group.distance(alone(model, optimizer, device, torch.float64))


def bound(model: str, optimizer: str, device: str) -> float:
    return FACTOR * rounding(model, optimizer, device) + FLOOR


def bound_of_tf32(model: str, device: str) -> float:
    """cuDNN picks a kernel with or without TF32 for each shape, so plain torch alone may have used none."""
    coarse = TF32_COARSER * rounding(model, "sgd", device)
    return max(3 * rounding(model, "sgd", device, allowed=True), coarse)


@pytest.mark.gpu
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("engine", ENGINES)
def test_float64_members_equal_plain_torch(
    model: str, optimizer: str, engine: str, figure: Callable[[float], None]
) -> None:
    apart = fused(model, optimizer, engine, "cuda", torch.float64)
    figure(apart)
    assert apart <= TIGHT


@pytest.mark.gpu
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("engine", ENGINES)
def test_float32_members_round_as_plain_torch_does(
    model: str, optimizer: str, engine: str, figure: Callable[[float], None]
) -> None:
    apart = fused(model, optimizer, engine, "cuda", torch.float32)
    figure(apart)
    assert apart <= bound(model, optimizer, "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("engine", ENGINES)
def test_tf32_members_round_as_tf32_does(model: str, engine: str, figure: Callable[[float], None]) -> None:
    apart = fused(model, "sgd", engine, "cuda", torch.float32, allowed=True)
    figure(apart)
    assert apart <= bound_of_tf32(model, "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("model", MODELS)
def test_the_bounds_find_rates_that_are_off_on_a_gpu(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_a_rate_off_by_a_half_is_found(model, "cuda", monkeypatch)


@pytest.mark.parametrize(
    ("model", "optimizer", "engine"), [("mlp", "adamw", "grouped"), ("cnn", "sgd", "vmap")]
)
def test_the_same_comparison_on_a_cpu(
    model: str, optimizer: str, engine: str, figure: Callable[[float], None]
) -> None:
    apart = fused(model, optimizer, engine, "cpu", torch.float64)
    figure(apart)
    assert apart <= TIGHT
    assert fused(model, optimizer, engine, "cpu", torch.float32) <= bound(model, optimizer, "cpu")
    assert fused(model, "sgd", engine, "cpu", torch.float32, allowed=True) <= bound_of_tf32(model, "cpu")


def test_the_bounds_find_rates_that_are_off(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_a_rate_off_by_a_half_is_found("mlp", "cpu", monkeypatch)


def assert_a_rate_off_by_a_half_is_found(model: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every bound is passed by members that train at other rates than their own."""
    limits = (TIGHT, bound(model, "sgd", device), bound_of_tf32(model, device))
    real: Callable[[Member, int], Setting] = Member.setting
    monkeypatch.setattr(Member, "setting", lambda self, step: real(replace(self, lr=1.5 * self.lr), step))
    apart = fused(model, "sgd", "grouped", device, torch.float32)
    assert apart > max(limits)
