"""Model features that fusion could miss: equal to the same model under torch.optim, or refused by name."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from headrace_torch import hydro
from headrace_torch.hydro.fuse.obstacles import ENGINES, Need, why_not

PATH = Path(__file__).resolve().parents[2] / "benchmarks" / "hydro" / "yardstick.py"
spec = importlib.util.spec_from_file_location("yardstick", PATH)
assert spec is not None
assert spec.loader is not None
yardstick = importlib.util.module_from_spec(spec)
sys.modules["yardstick"] = yardstick
spec.loader.exec_module(yardstick)

# Every case that is not refused runs separately, except where the reason is that a fused engine is slower.
REASONS = {
    "hook on a gradient": "parameter inside.weight has a hook (register_hook)",
    "hook after accumulation": "parameter inside.weight has a hook (register_post_accumulate_grad_hook)",
    "layer of every other step": "a step changes attribute calls",
    "layer of some members": "__bool__ in layer (model) (Routed)",
    "parameter in a list": "parameter inside.weight is also reached through plain[0]",
    "counter in Python, rate 0": "a step changes attribute calls",
    "counter in Python": "a step changes attribute calls",
    "batch changed in place": "the forward pass changes its batch in place",
    "factory's argument": "attribute slope differs between members 0 and 1",
    "metrics kept by the loss": "the loss keeps a tensor after the step",
    "nan in one member": "the loss of member 0 is nan at the first step",
}
REFUSED = {
    "layer in a plain list": "plain[0].weight is a tensor that the model has not registered",
    "batch changed by member": "each member in another way",
    "plain tensor attribute": "gain is a tensor that the model has not registered",
    "sparse embedding": "layer words (Embedding) has sparse gradients",
    "old weight norm": "use torch.nn.utils.parametrizations.weight_norm",
    "compiled module": "is compiled: pass the module that torch.compile was given",
    "scripted module": "is scripted or traced",
}


@pytest.mark.cases(14)
@pytest.mark.filterwarnings("ignore")  # old torch functions emit warnings
@pytest.mark.parametrize("name", yardstick.CASES)
@pytest.mark.parametrize("engine", ["auto", "separate"])
def test_a_case_equals_torch_optim_or_is_refused(name: str, engine: str) -> None:
    found = yardstick.run(yardstick.CASES[name], engine)
    if name in REFUSED:
        assert REFUSED[name] in found.refused
        return
    assert found.refused == ""
    assert found.losses <= 1e-9
    assert found.parameters <= 1e-9
    if engine == "auto" and name in REASONS:
        assert found.engine == "separate"
        assert REASONS[name] in found.reason


@pytest.mark.parametrize("engine", ["grouped", "vmap", "pool"])
@pytest.mark.parametrize("name", ["hook on a gradient", "counter in Python", "batch changed in place"])
def test_an_engine_that_would_be_wrong_is_refused_by_name(name: str, engine: str) -> None:
    assert REASONS[name] in yardstick.run(yardstick.CASES[name], engine).refused


def test_every_need_is_given_by_the_engine_of_last_resort() -> None:
    for need in Need:
        assert why_not("separate", {need: "x"}) == ""
        fused = "" if need in (Need.MEMORY, Need.RECORD) else "x"
        assert why_not("grouped", {need: "x"}) == why_not("vmap", {need: "x"}) == fused
    assert {name for name, one in ENGINES.items() if one.fused} == {"grouped", "vmap"}


class Counted(nn.Module):
    """Counts its calls in Python, in a buffer and with a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(4, 3), 0
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.seen += 1
        return self.layer(x) * (1 + 0.1 * self.calls)


def test_the_probe_leaves_everything_as_it_was() -> None:
    model, rows, classes = Counted(), torch.randn(6, 4), torch.randint(3, (6,))
    calls, told, given = [0], [], rows.clone()
    before = {name: one.clone() for name, one in model.state_dict().items()}

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        calls[0] += 1
        out = functional.cross_entropy(model(batch[0]), batch[1])
        told.append(float(out.detach()))
        return out

    state = torch.get_rng_state()
    with hydro.fuse(model, [{"lr": 0.0}, {"lr": 0.0}]) as group:
        first = group.step((rows, classes), loss)
        assert group.engine == "separate"
        second = group.step((rows, classes), loss)
    with torch.no_grad():
        expected = [
            float(functional.cross_entropy(model.layer(rows) * (1 + 0.1 * n), classes)) for n in (1, 2)
        ]
    assert first.tolist() == pytest.approx([expected[0]] * 2)
    assert second.tolist() == pytest.approx([expected[1]] * 2)
    assert (model.calls, calls, told) == (0, [2], pytest.approx(expected))  # one call per step
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(rows, given)
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())
    assert group.worker_ids == []


def test_a_loss_of_another_model_is_refused() -> None:
    other = nn.Linear(4, 3)
    with pytest.raises(hydro.FuseError, match="depends on no parameter of the model that it is given"):
        hydro.fuse(nn.Linear(4, 3), [{"lr": 0.1}]).step(torch.randn(2, 4), lambda _, x: other(x).sum())


def test_a_loss_with_parameters_is_refused() -> None:
    class Weighted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(()))

        def forward(self, out: Tensor, target: Tensor) -> Tensor:
            return self.weight * functional.cross_entropy(out, target)

    with pytest.raises(hydro.FuseError, match="a trainable parameter, weight"):
        hydro.fuse(nn.Linear(4, 3), [{"lr": 0.1}]).step((torch.randn(2, 4), torch.tensor([0, 1])), Weighted())


class Switched(yardstick.Base):
    """Uses a layer only for some batches."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.second = nn.Linear(8, width).double()
        self.third = nn.Linear(width, 8).double()

    def forward(self, x: Tensor) -> Tensor:
        h = self.inside(x)
        return self.head(torch.tanh(self.third(self.second(h)) if x[0, 0] > 0 else h))


@pytest.mark.parametrize("width", [8, 300], ids=["short rows", "rows for kernels"])
@pytest.mark.parametrize("optimizer", ["adamw", "adam", "sgd"])
def test_a_checkpoint_counts_each_parameters_steps(optimizer: str, width: int) -> None:
    """The moments and counts of a layer that is used in some steps continue in plain torch, and in another group."""
    settings: dict[str, Any] = {"momentum": 0.9, "dampening": 0.2} if optimizer == "sgd" else {}
    member = {"lr": 0.05, "weight_decay": 0.1, "schedule": hydro.Cosine(steps=20), **settings}

    def make() -> nn.Module:
        return Switched(width)

    group = hydro.fuse(make, [member, {**member, "seed": 1}], optimizer)
    data = []
    for number, (x, y) in enumerate(yardstick.batches()):
        x = x.clone()
        x[0, 0] = 1.0 if number in (1, 4) else -1.0
        data.append((x, y))
    for batch in data[:3]:
        group.step(batch, yardstick.mean_loss)
    model = group.member_model(0)
    plain = group.member_optimizer(0, model)
    if optimizer != "sgd":
        steps = {name: int(plain.state[one]["step"]) for name, one in model.named_parameters()}
        assert steps["inside.weight"] == 3
        assert steps["second.weight"] == 1
    other = hydro.fuse(make, [member], optimizer)
    (joined,) = other.add([member], states=[group.member_state(0)])
    for number, batch in enumerate(data[3:], start=3):
        for one in plain.param_groups:
            one["lr"] = hydro.Cosine(steps=20).setting(number, 0.05).lr
        plain.zero_grad()
        loss = yardstick.mean_loss(model, batch)
        loss.backward()
        plain.step()
        expected = pytest.approx(float(loss.detach()), rel=1e-9)
        assert float(group.step(batch, yardstick.mean_loss)[0]) == expected
        assert float(other.step(batch, yardstick.mean_loss)[1]) == expected
    for state in (group.member_state(0), other.member_state(joined)):
        for name, one in model.state_dict().items():
            assert yardstick.apart(one, state["model"][name]) <= 1e-9


def test_rounding_that_adam_enlarges_refuses_nothing() -> None:
    """Attention keys have a bias whose gradient is pure rounding; a high rate moves it by rounding over ε."""

    def make() -> nn.Module:
        return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    members = [{"lr": 2.0**-one, "seed": one} for one in (1, 2, 3)]
    group = hydro.fuse(make, members, "adam")
    group.step(torch.randn(4, 5, 8), lambda model, x: model(x).square().mean())
    assert group.report is not None
    assert group.report.gaps == {}


def test_parametrized_layers_are_fused() -> None:
    def make() -> nn.Module:
        return nn.Sequential(
            nn.utils.parametrizations.weight_norm(nn.Linear(4, 8)), nn.ReLU(), nn.Linear(8, 2)
        )

    group = hydro.fuse(make, [{"lr": 0.01, "seed": one} for one in range(3)], engine="grouped")
    assert group.step(torch.randn(5, 4), lambda model, x: model(x).square().mean()).isfinite().all()
