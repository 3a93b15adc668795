"""The example `fused_digits`: each member's curve is that of its trial alone, and the study's decisions are the
same."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from fused_study import Advance, Study, one_by_one, together

from headrace.spec import StudySpec
from headrace.spec.file import load_study_file
from headrace_torch import hydro

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "fused_digits"
TRIALS = 18


@pytest.fixture
def example() -> Iterator[ModuleType]:
    """A fresh copy of the example's module."""
    spec = importlib.util.spec_from_file_location("fused_digits_train", EXAMPLE / "train.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    threads = torch.get_num_threads()
    yield module
    torch.set_num_threads(threads)


def with_images(example: ModuleType, count: int, dtype: torch.dtype) -> None:
    """The example with `count` of its images, in this precision."""
    images, labels, val_images, val_labels = example.load_data()
    make_model = example.make_model
    data = images[:count].to(dtype), labels[:count], val_images.to(dtype), val_labels
    example.load_data = lambda: data
    example.make_model = lambda: make_model().to(dtype)


def of_file(name: str) -> StudySpec:
    return load_study_file(EXAMPLE / name).spec.model_copy(update={"max_trials": TRIALS})


def alone(example: ModuleType, seed: int, lr: float, weight_decay: float) -> Advance:
    """A trial in plain PyTorch; each call trains one epoch."""
    images, labels, val_images, val_labels = example.load_data()
    torch.manual_seed(seed)
    model = example.make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=weight_decay)
    batches = hydro.EpochBatches(hydro.fuse(example.make_model), images, labels, batch_size=32, seed=7)
    seen = 0

    def epoch() -> float:
        nonlocal seen
        model.train()
        for _ in range(len(batches)):
            optimizer.zero_grad()
            example.loss_of(model, batches.of(seen)).backward()
            optimizer.step()
            seen += 1
        value: float = example.validate(model, val_images, val_labels)
        return value

    return epoch


@pytest.mark.full
def test_the_study_decides_as_it_does_unfused(example: ModuleType, tmp_path: Path) -> None:
    """One slot each, the reports in the same order: every decision has the same words, every curve agrees within
    1e-9."""
    with_images(example, 320, torch.float64)
    unfused, fused = Study(of_file("unfused.yaml")), Study(of_file("study.yaml"))
    order = one_by_one(unfused, lambda _, seed, params: alone(example, seed, **params))
    runtime = together(fused, example.train, order, tmp_path)
    assert runtime.most == 16
    assert len(fused.decisions) >= TRIALS
    assert fused.decisions == unfused.decisions
    assert max(len(curve) for curve in fused.curves.values()) == fused.spec.max_steps, "over the whole trial"
    for number, curve in unfused.curves.items():
        assert fused.curves[number] == pytest.approx(curve, rel=1e-9), f"trial {number}"


def test_in_single_precision_curves_agree_over_fifty_steps(example: ModuleType, tmp_path: Path) -> None:
    """Two epochs of 25 batches."""
    with_images(example, 800, torch.float32)
    short = {"policy": {"kind": "run_all"}, "max_trials": 4, "max_steps": 2}
    unfused, fused = (
        Study(StudySpec.model_validate({**of_file(name).model_dump(mode="json"), **short}))
        for name in ("unfused.yaml", "study.yaml")
    )
    order = one_by_one(unfused, lambda _, seed, params: alone(example, seed, **params))
    assert len(order) == 8
    assert together(fused, example.train, order, tmp_path).most == 4
    for number, curve in unfused.curves.items():
        assert fused.curves[number] == pytest.approx(curve, rel=1e-5), f"trial {number}"
