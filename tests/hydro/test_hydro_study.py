"""A study's surrogate in the library: the copy, its optimizer, and what its gate does not allow."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hydro_models import MLP, rows
from torch import nn

from headrace_torch import hydro
from headrace_torch.hydro.examine import Asked, examine

PROGRAM = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, width, heads=2):
        super().__init__()
        if width % heads:
            raise ValueError(f"{heads} heads do not divide a width of {width}")
        self.first, self.second = nn.Linear(20, width), nn.Linear(width, width)
        self.readout = nn.Linear(width, 3)

    def forward(self, x):
        return self.readout(torch.relu(self.second(torch.relu(self.first(x)))))

def make_model(width=64):
    return Model(width)

def deeper(depth_of, width=64):
    return Model(width)

def module():
    return Model(64)

def batch():
    return torch.randn(4, 20)

def no_batch():
    return 3

number = 3
"""


def test_a_small_copy_has_the_multipliers_and_any_other_model_an_ordinary_optimizer() -> None:
    surrogate = hydro.surrogate_of(MLP, width=16, optimizer="adam")
    copy = surrogate.build(0)
    rates = {group["lr"] for group in hydro.optimizer(copy, "adam", lr=1e-3).param_groups}
    assert rates == {group["lr"] for group in surrogate.optimizer(copy, "adam", lr=1e-3).param_groups}
    assert len(rates) > 1
    (plain,) = hydro.optimizer(MLP(16), "adam", lr=1e-3, betas=(0.8, 0.9)).param_groups
    assert (plain["lr"], plain["betas"]) == (1e-3, (0.8, 0.9))
    assert hydro.has_optimizer(copy)
    assert not hydro.has_optimizer(surrogate.build(0))


def test_the_model_itself_is_the_base_of_its_copies() -> None:
    """The transfer's target trains the plain model: in its own parametrization every multiplier is 1."""
    target = hydro.surrogate_of(MLP, width=16).target()
    with torch.random.fork_rng():
        torch.manual_seed(5)
        plain = MLP()
    for one, other in zip(target.build(5).parameters(), plain.parameters(), strict=True):
        assert torch.equal(one, other)
    assert target.parametrization("adamw").is_identity


@pytest.mark.parametrize("use", ["fuse", "optimizer"])
def test_an_optimizer_that_the_gate_has_not_checked_is_refused(use: str) -> None:
    surrogate = hydro.surrogate_of(MLP, width=16, optimizer="adamw")

    def train(name: Any) -> Any:
        if use == "fuse":
            return hydro.fuse(surrogate, [{"lr": 0.1}], name)
        return hydro.optimizer(surrogate.build(0), name, lr=0.1)

    train("adam")  # Adam and AdamW share their rules
    with pytest.raises(hydro.CoordinateCheckError, match=r"surrogate: \{optimizer: sgd\}"):
        train("sgd")
    hydro.fuse(hydro.surrogate_of(MLP, width=16, gated=False), [{"lr": 0.1}], "sgd")  # without a warning


def test_a_wrapped_copy_gets_no_optimizer() -> None:
    copy = hydro.surrogate_of(MLP, width=16).build(0)
    with pytest.raises(hydro.ParametrizationError, match=r"0 is the small copy, and it is wrapped"):
        hydro.optimizer(nn.Sequential(copy), "adam", lr=0.1)
    with pytest.raises(hydro.ParametrizationError, match="one of sgd, adam, adamw, not 'lion'"):
        hydro.optimizer(copy, "lion", lr=0.1)


def test_a_function_without_a_width_is_rebuilt() -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3))

    assert hydro.surrogate_of(make, scale=4).build(0)[0].out_features == 16
    with pytest.raises(hydro.ShrinkError, match=r"no argument named width.*scale: 8"):
        hydro.surrogate_of(make, width=16)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"examined_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(PROGRAM)
    monkeypatch.syspath_prepend(tmp_path)
    return name


def look(program: str, model: str = "make_model", inputs: str = "", **changes: Any) -> dict[str, str]:
    asked: dict[str, Any] = {
        "model": f"{program}:{model}",
        "width": 16,
        "scale": None,
        "optimizer": "adamw",
        "inputs": inputs and f"{program}:{inputs}",
        "widths": (),
        "gated": True,
        "params": {"lr": 0.1},
        "domains": {"lr": {}, "depth_of": [1, 2]},
    }
    return examine(Asked(**{**asked, **changes}))


@pytest.mark.parametrize(
    ("asked", "field", "says"),
    [
        ({"model": "make_modle"}, "surrogate.model", "has no make_modle"),
        ({"model": "number"}, "surrogate.model", "is a int, not a function"),
        ({"model": "deeper"}, "surrogate.model", "needs the argument depth_of"),
        ({"inputs": "no_batch"}, "surrogate.inputs", "returned a int"),
        ({"width": 128}, "surrogate.width", "above the model's own, 64"),
        ({"width": 7}, "surrogate.width", "2 heads do not divide a width of 7"),
        ({"width": None, "scale": 3}, "surrogate.scale", "64 cannot be divided by the scale 3"),
        ({"width": None, "scale": 64}, "surrogate.scale", "1"),
        ({"model": "module"}, "surrogate.width", "no argument named width"),
        ({"widths": (32, 33)}, "gate.widths", "2 heads do not divide a width of 33"),
        ({"model": "module", "width": None, "scale": 1}, "gate.widths", "two sizes at least"),
    ],
)
def test_what_cannot_be_made_is_found_before(
    program: str, asked: dict[str, Any], field: str, says: str
) -> None:
    found = look(program, **asked)
    assert found.get("field") == field, found
    assert says in found["error"]


def test_a_module_that_does_not_import_is_reported(program: str) -> None:
    assert look("no_such")["error"] == "ModuleNotFoundError: No module named 'no_such'"


def test_the_key_is_of_the_source_the_settings_and_nothing_else(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    def key(**changes: Any) -> str:
        for name in (program, "imported_by_it"):
            sys.modules.pop(name, None)
        return look(program, **changes)["key"]

    first = key(inputs="batch")
    assert first == key(inputs="batch") == key(inputs="batch", domains={"lr": {"low": 3}})
    assert len({first, key(), key(inputs="batch", width=32), key(inputs="batch", optimizer="sgd")}) == 4
    assert key(model="deeper", params={"depth_of": 1}) != key(
        model="deeper", params={"depth_of": 1}, domains={"depth_of": [1, 3]}
    )
    path = tmp_path / f"{program}.py"
    path.write_text(f"import imported_by_it\n{PROGRAM}")
    (tmp_path / "imported_by_it.py").write_text("a = 1\n")
    second = key(inputs="batch")
    (tmp_path / "imported_by_it.py").write_text("a = 22\n")
    assert len({first, second, key(inputs="batch")}) == 3


def test_it_takes_a_batch_of_the_user_s(program: str) -> None:
    surrogate = hydro.surrogate_of(MLP, width=16, inputs=f"{program}:batch")
    assert surrogate.family.inputs.given[0].shape == rows(4).shape


def test_a_pilot_tries_what_the_model_can_be(program: str) -> None:
    wanted: dict[str, Any] = {"width": None, "gated": False}
    assert look(program, **wanted, scales=(16, 8, 4)) == {"key": "", "scales": [16, 8, 4]}
    # 64 wide, with two heads: a copy 64 times narrower is 1 wide, and nobody named that
    assert look(program, **wanted, scales=(64, 8))["scales"] == [8]
    refused = look(program, **wanted, scales=(64, 8), all_scales=True)
    assert refused["field"] == "surrogate.pilot.scales"
    assert refused["error"].startswith("cannot be 64: ")
    narrow = look(program, **wanted, scales=(128, 64))
    assert narrow["field"] == "surrogate.scale"
    assert narrow["error"].startswith("finds no copy 64 times narrower: ")
    assert look(program, "make_modle", **wanted, scales=(8, 4))["field"] == "surrogate.model"
