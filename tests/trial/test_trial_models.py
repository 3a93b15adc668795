"""The model that a trial requests: the user's own by hand, the small copy in a study with a surrogate."""

import sys
import types
from dataclasses import replace
from typing import Any

import pytest
import torch
from recording_runtime import RecordingRuntime
from torch import nn

from headrace.grants import CPUS
from headrace.trial import Bundle, Trial
from headrace.trial.bundle_run import run_bundle
from headrace.trial.bundle_solo import SoloBundle
from headrace.trial.runtime import Surrogate
from headrace_torch import hydro
from headrace_torch.hydro import gate_trial

SURROGATE = Surrogate(model=f"{__name__}:make_model", width=8, optimizer="adam")


class Readout(nn.Linear):
    """Undoes the parametrization for the last layer, which then has the standard one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * (self.in_features / 8)


def make_model(classes: int, width: int = 32, last: type[nn.Linear] = nn.Linear) -> nn.Module:
    readout = last(width, classes)
    nn.init.zeros_(readout.weight)
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), readout)


def make_standard(classes: int, width: int = 32) -> nn.Module:
    return make_model(classes, width, last=Readout)


def trial_of(runtime: RecordingRuntime, surrogate: Surrogate | None = SURROGATE) -> Trial:
    runtime.params = {"lr": 0.1, "classes": 3}
    return Trial(replace(runtime.attach(), surrogate=surrogate), runtime)


def test_a_trial_gets_the_small_copy_and_by_hand_the_model(recording: RecordingRuntime) -> None:
    for surrogate, width in ((SURROGATE, 8), (None, 32)):
        t = trial_of(recording, surrogate)
        model = t.model(make_model)
        assert (model[2].in_features, model[4].out_features) == (width, 3)  # `classes` is a parameter
        optimizer = hydro.optimizer(model, "adam", lr=0.1)
        assert {group["lr"] for group in optimizer.param_groups} == ({0.1, 0.4} if surrogate else {0.1})
        t.track(model=model, optimizer=optimizer)
        assert next(t.steps()) == 1


def test_a_copy_with_an_ordinary_optimizer_is_not_trained(recording: RecordingRuntime) -> None:
    t = trial_of(recording)
    torch.optim.Adam(t.model(make_model).parameters())
    with pytest.raises(ValueError, match=r"headrace_torch\.hydro\.optimizer\(model, 'adamw', lr=\.\.\.\)"):
        next(t.steps())


def test_a_model_by_the_name_under_which_its_module_imports_it(
    recording: RecordingRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For `from models import GPT` in train.py, with `model: train:GPT`."""
    train = types.ModuleType("train_by_name")
    train.Net = make_model  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "train_by_name", train)
    copy = trial_of(recording, replace(SURROGATE, model="train_by_name:Net")).model(make_model)
    assert copy[2].in_features == 8


def test_a_model_that_was_not_checked_is_refused(recording: RecordingRuntime) -> None:
    with pytest.raises(ValueError, match=r"t.model\(...\) got .*make_standard, .* made of .*make_model"):
        trial_of(recording).model(make_standard)
    for surrogate in (SURROGATE, None):
        with pytest.raises(TypeError, match="got a Linear; give the model's function"):
            trial_of(recording, surrogate).model(nn.Linear(1, 1))


def test_a_bundle_gets_what_fuse_takes() -> None:
    seen: list[Any] = []

    def train(bundle: Bundle) -> None:
        group = hydro.fuse(bundle.model(make_model), optimizer="adam")
        bundle.track(group=group)
        for _ in bundle.steps():
            losses = group.step((torch.ones(2, 4), torch.tensor([0, 1])), nn.CrossEntropyLoss())
            seen.append(group.member_model(group.ids[0])[2].in_features)
            bundle.report(loss=[float(one) for one in losses])

    for surrogate in (SURROGATE, None):
        runtime = RecordingRuntime(checkpoint_dir=None, params={"lr": 0.1, "classes": 3})
        solo = SoloBundle(runtime, replace(runtime.attach(), surrogate=surrogate))
        run_bundle(train, solo, solo.attach())
    assert seen == [8] * 4 + [32] * 4


def gate(runtime: RecordingRuntime, model: str) -> Trial:
    runtime.rungs = (2,)
    surrogate = replace(SURROGATE, model=f"{__name__}:{model}", widths=(32, 64, 128))
    return trial_of(runtime, surrogate)


def plots(runtime: RecordingRuntime) -> list[str]:
    folder = runtime.reports[0].checkpoint_dir
    assert folder is not None
    return [path.read_text() for path in folder.rglob("coordinate_check.svg")]


def test_the_gate_passes_what_the_check_passes(
    recording: RecordingRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[tuple[str, Any, Any]] = []

    def check(surrogate: hydro.Surrogate, *, optimizer: str, widths: Any) -> hydro.CoordinateReport:
        checked.append((surrogate.label, optimizer, widths))
        # Wide intervals pass: other tests cover whether the check is right.
        return coordinate_check(
            surrogate, optimizer=optimizer, widths=(32, 64), seeds=2, steps=4, tolerance=9
        )

    coordinate_check = gate_trial.coordinate_check
    monkeypatch.setattr(gate_trial, "coordinate_check", check)
    gate_trial.run(gate(recording, "make_model"))
    assert checked == [("8", "adam", (32, 64, 128))]
    assert [report.step for report in recording.reports] == [1, 2]
    assert recording.reports[0].metrics == recording.reports[1].metrics
    assert "Coordinate check passed" in plots(recording)[0]


def test_the_gate_uses_no_more_threads_than_its_slot_has_cores(
    recording: RecordingRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    class LookedError(Exception):
        """The check has started."""

    def check(*_: object, **__: object) -> None:
        raise LookedError(torch.get_num_threads())

    before = torch.get_num_threads()
    monkeypatch.setattr(gate_trial, "coordinate_check", check)
    monkeypatch.setenv(CPUS, str(before + 1))
    try:
        with pytest.raises(LookedError, match=f"^{before + 1}$"):
            gate_trial.run(gate(recording, "make_model"))
    finally:
        torch.set_num_threads(before)


def test_the_gate_stops_one_in_standard_parametrization_and_names_the_layer(
    recording: RecordingRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(hydro.CoordinateCheckError, match=r"slopes 4 \+0\.\d\d.*gate: false skips the check"):
        gate_trial.run(gate(recording, "make_standard"))
    (report,) = recording.reports
    assert report.metrics["worst_slope"] > 0.5
    assert "Coordinate check failed" in plots(recording)[0]
    # A trial that continues after the first step does not check again, and gets the same result.
    monkeypatch.setattr(gate_trial, "coordinate_check", None)
    with pytest.raises(hydro.CoordinateCheckError, match=r"slopes 4 \+0\.\d\d"):
        gate_trial.run(gate(recording, "make_standard"))
