"""Every multiplier of every parameter, against a table made from the definitions and against the `mup` package."""

from typing import Any

import pytest
import torch
from hydro_models import GPT, MLP, ManyHeads, ResNet, images, rows, text
from torch import nn

from headrace_torch import hydro
from headrace_torch.hydro.parametrize import Kind, Parametrization

SCALE = 4
MANY = "GPT of more heads"
# Yang et al. 2022, table 8, for a model SCALE times narrower than its base, by hand: (lr, weight decay, eps).
ADAM = {
    Kind.INPUT: (1, 1, 4),
    Kind.EMBEDDING: (1, 1, 4),
    Kind.VECTOR: (1, 1, 4),
    Kind.HIDDEN: (4, 1 / 4, 4),
    Kind.OUTPUT: (1, 1, 4),
    Kind.FIXED: (1, 1, 1),
}
SGD = {
    Kind.INPUT: (1 / 4, 4, 1),
    Kind.EMBEDDING: (1 / 4, 4, 1),
    Kind.VECTOR: (1 / 4, 4, 1),
    Kind.HIDDEN: (1, 1, 1),
    Kind.OUTPUT: (1 / 4, 4, 1),
    Kind.FIXED: (1, 1, 1),
}
EXPECTED = {"adam": ADAM, "adamw": ADAM, "sgd": SGD}
I, H, O, V, E, F = Kind.INPUT, Kind.HIDDEN, Kind.OUTPUT, Kind.VECTOR, Kind.EMBEDDING, Kind.FIXED  # noqa: E741
_BLOCK = {"norm1.weight": V, "norm1.bias": V, "norm2.weight": V, "norm2.bias": V}
for _layer in ("attention.query", "attention.key", "attention.value", "attention.out", "wide", "narrow"):
    _BLOCK |= {f"{_layer}.weight": H, f"{_layer}.bias": V}
_CONV = {"conv1.weight": H, "conv2.weight": H} | {key: V for key in _BLOCK if key.startswith("norm")}
KINDS: dict[str, dict[str, Kind]] = {
    "MLP": {
        "first.weight": I,
        "first.bias": V,
        "second.weight": H,
        "second.bias": V,
        "readout.weight": O,
        "readout.bias": F,
    },
    "ResNet": {
        "stem.weight": I,
        "stem.bias": V,
        "norm.weight": V,
        "norm.bias": V,
        **{f"blocks.{n}.{name}": kind for n in (0, 1) for name, kind in _CONV.items()},
        "blocks.1.shortcut.0.weight": H,
        "blocks.1.shortcut.0.bias": V,
        "readout.weight": O,
        "readout.bias": F,
    },
    "GPT": {
        "positions": E,
        "words.weight": E,  # tied: it is also the readout's weight
        **{f"blocks.{n}.{name}": kind for n in (0, 1) for name, kind in _BLOCK.items()},
        "norm.weight": V,
        "norm.bias": V,
    },
}
MODELS: dict[str, tuple[Any, torch.Tensor]] = {
    "MLP": (MLP, rows()),
    "ResNet": (ResNet, images()),
    "GPT": (GPT, text()),
    MANY: (ManyHeads, text()),
}
KINDS[MANY] = KINDS["GPT"]


@pytest.mark.cases(10)
@pytest.mark.parametrize(
    ("name", "how"),
    # A module that stores its number of heads keeps it.
    [(name, how) for name in MODELS for how in ("factory", "module") if (name, how) != (MANY, "module")],
)
@pytest.mark.parametrize("optimizer", EXPECTED)
def test_multipliers_are_those_of_the_definitions(name: str, optimizer: str, how: str) -> None:
    factory, inputs = MODELS[name]
    surrogate = hydro.shrink(factory if how == "factory" else factory(), scale=SCALE, inputs=inputs)
    rules = surrogate.parametrization(optimizer)
    assert {parameter: rules[parameter].kind for parameter in rules} == KINDS[name]
    found = {
        parameter: (rules[parameter].lr, rules[parameter].weight_decay, rules[parameter].eps)
        for parameter in rules
    }
    assert found == {parameter: EXPECTED[optimizer][kind] for parameter, kind in KINDS[name].items()}
    assert surrogate.forward.inputs == {"readout": 4.0}
    assert surrogate.forward.attention == (
        {"blocks.0.attention": 2.0, "blocks.1.attention": 2.0} if name == "GPT" else {}
    )


def test_sgd_of_unequal_widths_takes_the_ratio_of_fans() -> None:
    """A layer whose two sides grow differently: rate × fan-out ratio / fan-in ratio."""

    class Odd(nn.Module):
        def __init__(self, width: int = 16) -> None:
            super().__init__()
            self.a, self.b, self.c = (
                nn.Linear(5, width),
                nn.Linear(width, width * width),
                nn.Linear(width * width, 3),
            )

        def forward(self, x: torch.Tensor) -> Any:
            return self.c(self.b(self.a(x)))

    surrogate = hydro.shrink(Odd, width=4)
    rules = surrogate.parametrization("sgd")
    assert (rules["b.weight"].lr, rules["b.bias"].lr) == ((1 / 16) / (1 / 4), 1 / 16)
    assert surrogate.parametrization("adam")["b.weight"].lr == 4
    assert surrogate.forward.inputs == {"c": 16.0}


class Peer:
    """The same models made with `mup`: the base at full size, and its optimizers' groups for each parameter."""

    def __init__(self, name: str) -> None:
        import mup  # it imports seaborn: not in every process that collects tests

        self.mup = mup
        self.factory, self.inputs = MODELS[name]
        self.name = name

    def build(self, width: int, seed: int = 0) -> nn.Module:
        torch.manual_seed(seed)
        if self.name in ("MLP", "ResNet"):
            return self.factory(width, readout=self.mup.MuReadout)
        model: Any = self.factory(width, tie=self.mup.MuSharedReadout)
        for block in model.blocks:
            # 1/d attention with the base's constant: sqrt(base head width) / head width.
            heads = block.attention.heads
            base_heads = heads if self.factory is GPT else heads * self.full // width
            block.attention.attention_multiplier = (self.full // base_heads) ** 0.5 / (width // heads)
        return model

    @property
    def full(self) -> int:
        return 32 if self.name == "ResNet" else 64

    def small(self, seed: int = 0) -> nn.Module:
        model = self.build(self.full // SCALE, seed)
        return self.mup.set_base_shapes(model, self.build(self.full), delta=self.build(2 * self.full))

    def optimizer(self, model: nn.Module, name: str) -> torch.optim.Optimizer:
        make = {"sgd": self.mup.MuSGD, "adam": self.mup.MuAdam, "adamw": self.mup.MuAdamW}[name]
        return make(model.parameters(), lr=1.0, weight_decay=1.0)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("optimizer", EXPECTED)
def test_rates_and_decay_equal_mups(name: str, optimizer: str) -> None:
    peer = Peer(name)
    model = peer.small()
    names = {id(parameter): key for key, parameter in model.named_parameters()}
    groups = peer.optimizer(model, optimizer).param_groups
    wanted = {
        names[id(one)]: (group["lr"], group["weight_decay"]) for group in groups for one in group["params"]
    }
    rules = hydro.shrink(peer.factory, scale=SCALE, inputs=peer.inputs).parametrization(optimizer)
    assert {key: (rules[key].lr, rules[key].weight_decay) for key in rules} == wanted


@pytest.mark.parametrize("name", MODELS)
def test_initial_values_and_outputs_equal_mups(name: str) -> None:
    """Same seed, same draws: each parameter, and the model's output, is as in `mup`."""
    peer = Peer(name)
    theirs = peer.small(seed=5)
    ours = hydro.shrink(peer.factory, scale=SCALE, inputs=peer.inputs).build(seed=5)
    with torch.no_grad():
        if name.startswith("GPT"):
            # `set_base_shapes` rescales the shared table as if it had a readout's initial values; its manual says to
            # initialise it again. Ours keeps the table's spread, as `mup.init.normal_` does.
            theirs.words.weight.div_(SCALE**-0.5)
        for (key, one), (other_key, two) in zip(
            ours.named_parameters(), theirs.named_parameters(), strict=True
        ):
            assert key == other_key
            torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-7, msg=key)
        torch.testing.assert_close(ours(peer.inputs), theirs(peer.inputs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "init", ["normal_", "xavier_uniform_", "xavier_normal_", "kaiming_normal_", "kaiming_uniform_"]
)
def test_other_initialisations_follow_mups_versions(init: str) -> None:
    """Whatever distribution the user's code draws from, the spread is that of `mup.init`, whose functions replace
    torch's."""
    import mup

    arguments = {"normal_": {"std": 0.02}}.get(init, {})

    class Initialised(MLP):
        def __init__(self, width: int = 256) -> None:
            super().__init__(width)
            for layer in (self.first, self.second, self.readout):
                getattr(nn.init, init)(layer.weight, **arguments)

    ours = hydro.shrink(Initialised, scale=SCALE, inputs=rows())
    theirs = mup.set_base_shapes(
        MLP(64, readout=mup.MuReadout), MLP(256, readout=mup.MuReadout), delta=MLP(512, readout=mup.MuReadout)
    )
    torch.manual_seed(1)
    model = ours.build(seed=0)
    for name in ("first", "second", "readout"):
        wanted = getattr(theirs, name).weight
        getattr(mup.init, init)(wanted, **arguments)
        found = getattr(model, name).weight
        assert float(found.detach().std()) == pytest.approx(float(wanted.detach().std()), rel=0.12), name


def test_torch_groups_carry_the_multipliers() -> None:
    surrogate = hydro.shrink(MLP, scale=SCALE, inputs=rows())
    model = surrogate.build(0)
    optimizer = surrogate.optimizer(model, "adamw", lr=0.5, weight_decay=0.25, eps=1e-6, betas=(0.8, 0.9))
    found = {id(one): group for group in optimizer.param_groups for one in group["params"]}
    hidden, bias = found[id(model.second.weight)], found[id(model.second.bias)]
    assert (hidden["lr"], hidden["weight_decay"], hidden["eps"], hidden["betas"]) == (
        2.0,
        0.0625,
        4e-6,
        (0.8, 0.9),
    )
    assert (bias["lr"], bias["weight_decay"]) == (0.5, 0.25)
    assert len(found) == len(list(model.parameters()))


def test_a_parametrization_of_another_model_is_refused() -> None:
    rules: Parametrization = hydro.shrink(MLP, scale=SCALE, inputs=rows()).parametrization("sgd")
    with pytest.raises(hydro.ParametrizationError, match=r"first.bias: the model has no such parameter"):
        rules.groups(nn.Linear(3, 3), lr=1.0)
    with pytest.raises(
        hydro.ParametrizationError, match=r"'lion' has no rules; there are rules for sgd, adam, adamw"
    ):
        hydro.shrink(MLP, scale=SCALE, inputs=rows()).parametrization("lion")
