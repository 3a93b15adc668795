"""The result of shrinking factories and modules: shapes, ties, types, values, multipliers in the forward pass."""

import copy
import pickle
from typing import Any

import pytest
import torch
from hydro_models import (
    CLASSES,
    CONTEXT,
    GPT,
    MLP,
    WORDS,
    ManyHeads,
    Mobile,
    ResidualMLP,
    ResNet,
    images,
    rows,
    text,
)
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import scaled_dot_product_attention

from headrace_torch import hydro

MODELS: dict[str, tuple[Any, Tensor]] = {
    "MLP": (MLP, rows()),
    "ResNet": (ResNet, images()),
    "GPT": (GPT, text()),
    "Mobile": (Mobile, images()),
}


@pytest.mark.cases(2)
@pytest.mark.parametrize("name", MODELS)
def test_a_module_shrinks_to_what_its_factory_makes(name: str) -> None:
    """Rebuilding layer by layer gives the same shapes, ties and multipliers as calling the factory."""
    factory, inputs = MODELS[name]
    module = factory()
    by_factory, by_module = (
        hydro.shrink(factory, scale=4, inputs=inputs),
        hydro.shrink(module, scale=4, inputs=inputs),
    )
    one, two = by_factory.build(0), by_module.build(0)
    assert shapes(one) == shapes(two)
    assert by_factory.forward == by_module.forward
    for optimizer in ("sgd", "adamw"):
        ours, theirs = by_factory.parametrization(optimizer), by_module.parametrization(optimizer)
        assert {key: ours[key].key for key in ours} == {key: theirs[key].key for key in theirs}
    assert two(inputs).shape == module(inputs).shape
    assert {key: type(layer) for key, layer in two.named_modules()} == {
        key: type(layer) for key, layer in module.named_modules()
    }


def test_tied_weights_stay_tied_in_every_copy() -> None:
    for source in (GPT, GPT()):
        model: Any = hydro.shrink(source, scale=4, inputs=text()).build(0)
        for one in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert one.readout.weight is one.words.weight
            assert one.readout.weight.shape == (WORDS, 16)


def test_inputs_are_guessed_from_the_layers() -> None:
    for factory, _ in MODELS.values():
        surrogate = hydro.shrink(factory, scale=4)
        example = surrogate.example_inputs(batch=3, seed=1)
        assert surrogate.build(0)(*example).shape[0] == 3
        assert torch.equal(example[0], surrogate.example_inputs(batch=3, seed=1)[0])
        assert not torch.equal(example[0], surrogate.example_inputs(batch=3, seed=2)[0])


def test_given_inputs_are_the_example() -> None:
    surrogate = hydro.shrink(MLP, scale=4, inputs=rows())
    assert surrogate.example_inputs()[0] is surrogate.family.inputs.given[0]
    assert surrogate.example_inputs(batch=40)[0].shape == (40, 20)


def test_a_modules_new_values_are_distributed_like_its_own() -> None:
    torch.manual_seed(0)
    module = GPT(width=128)
    model = hydro.shrink(module, scale=4, inputs=text()).build(0)
    own, new = dict(module.named_parameters()), dict(model.named_parameters())
    for name, factor in (
        ("words.weight", 1),
        ("positions", 1),
        ("blocks.0.wide.weight", 2),
        ("blocks.1.narrow.weight", 2),
    ):
        assert float(new[name].detach().std()) == pytest.approx(
            factor * float(own[name].detach().std()), rel=0.1
        ), name
    limit = float(own["blocks.0.wide.weight"].detach().abs().max())
    assert float(new["blocks.0.wide.weight"].detach().abs().max()) <= 2.05 * limit  # uniform stays uniform
    assert torch.equal(new["norm.weight"], torch.ones(32))


def test_an_autoencoder_keeps_its_outputs_and_a_two_headed_model_both() -> None:
    class Auto(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down, self.inner, self.up = nn.Linear(48, 32), nn.Linear(32, 16), nn.Linear(16, 48)
            self.score = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            code = self.inner(self.down(x).relu())
            return self.up(code), self.score(code)

    surrogate = hydro.shrink(Auto(), scale=4)
    assert shapes(surrogate.build(0)) == {
        "down.weight": (8, 48),
        "down.bias": (8,),
        "inner.weight": (4, 8),
        "inner.bias": (4,),
        "up.weight": (48, 4),
        "up.bias": (48,),
        "score.0.weight": (4, 4),
        "score.0.bias": (4,),
        "score.2.weight": (1, 4),
        "score.2.bias": (1,),
    }
    assert surrogate.forward.inputs == {"up": 4.0, "score.2": 4.0}


def test_layers_named_to_keep_keep_their_width() -> None:
    surrogate = hydro.shrink(MLP(), scale=4, inputs=rows(), keep=["second"])
    model: Any = surrogate.build(0)
    assert model.first.weight.shape == (16, 20)
    assert model.second.weight.shape == (128, 16)
    assert surrogate.forward.inputs == {"second": 4.0}


@pytest.mark.full
def test_torchs_own_attention_and_encoder_layers() -> None:
    inputs = torch.randn(2, 5, 6)
    by_factory, by_module = (
        hydro.shrink(Encoder, width=8, inputs=inputs),
        hydro.shrink(Encoder(), scale=4, inputs=inputs),
    )
    assert by_factory.forward == by_module.forward
    assert by_factory.forward.attention == {
        "layers.layers.0.self_attn": 2.0,
        "layers.layers.1.self_attn": 2.0,
    }
    assert shapes(by_factory.build(0)) == shapes(by_module.build(0))
    model = by_module.build(0)
    with torch.no_grad():
        torch.testing.assert_close(
            model.eval()(inputs), model.train()(inputs)
        )  # no fast path that bypasses the hooks


def test_the_attention_multiplier_is_that_of_one_over_d() -> None:
    """Small heads see logits of sqrt(d_base)/d · q·k, the base model's heads those of its own 1/sqrt(d_base)."""
    surrogate = hydro.shrink(GPT, width=16, inputs=text())
    model: Any = surrogate.build(0)
    attention = model.blocks[0].attention
    x = torch.randn(2, 5, 16)
    with torch.no_grad():
        q = attention.query(x).view(2, 5, 2, 8).transpose(1, 2)
        k = attention.key(x).view(2, 5, 1, 8).transpose(1, 2)
        v = attention.value(x).view(2, 5, 1, 8).transpose(1, 2)
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True, scale=32**0.5 / 8, enable_gqa=True)
        wanted = attention.out(mixed.transpose(1, 2).reshape(2, 5, 16))
        torch.testing.assert_close(attention(x), wanted)


def test_heads_that_grow_in_number_need_no_multiplier() -> None:
    surrogate = hydro.shrink(ManyHeads, width=16, inputs=text())
    assert surrogate.forward.attention == {}
    assert surrogate.forward.inputs == {"readout": 4.0}


class Encoder(nn.Module):
    """torch's own layers; with `head_width`, as many heads as fit."""

    def __init__(self, width: int = 32, head_width: int | None = None) -> None:
        super().__init__()
        self.into = nn.Linear(6, width)
        heads = 4 if head_width is None else width // head_width
        layer = nn.TransformerEncoderLayer(width, heads, 2 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.readout = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Any:
        return self.readout(self.layers(self.into(x)))


class Grouped(nn.Module):
    """User-defined attention that stores the width of its heads; two query heads share keys and values."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.head_width, self.words = 8, nn.Embedding(WORDS, width)
        self.query, self.key_value = nn.Linear(width, width), nn.Linear(width, width)
        self.out, self.readout = nn.Linear(width, width), nn.Linear(width, WORDS)

    def forward(self, text: Tensor) -> Any:
        x = self.words(text)
        q = self.query(x).unflatten(-1, (-1, self.head_width)).transpose(1, 2)
        k, v = self.key_value(x).unflatten(-1, (2, -1, self.head_width)).permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.readout(self.out(mixed.transpose(1, 2).flatten(2)))


@pytest.mark.full
def test_a_modules_heads_become_fewer_if_asked() -> None:
    """Like the factory that grows by heads: same shapes and rates, no multiplier, and `heads` in each layer."""
    inputs = torch.randn(2, 5, 6)
    by_factory = hydro.shrink(lambda width=32: Encoder(width, head_width=8), scale=2, inputs=inputs)
    module = Encoder()
    by_module = hydro.shrink(module, scale=2, inputs=inputs, heads="fewer")
    assert by_module.forward == by_factory.forward
    assert by_module.forward.attention == {}
    one: Any
    two: Any
    one, two = by_factory.build(0), by_module.build(0)
    assert shapes(one) == shapes(two)
    assert [(layer.self_attn.num_heads, layer.self_attn.head_dim) for layer in two.layers.layers] == [
        (2, 8)
    ] * 2
    assert module.layers.layers[0].self_attn.num_heads == 4
    two.load_state_dict(one.state_dict())
    torch.testing.assert_close(two(inputs), one(inputs))
    assert by_module.at(scale=4).build(0).layers.layers[0].self_attn.num_heads == 1  # type: ignore[union-attr,index]
    narrower: Any = hydro.shrink(module, scale=2, inputs=inputs)
    assert narrower.forward.attention == dict.fromkeys(
        ("layers.layers.0.self_attn", "layers.layers.1.self_attn"), 2**0.5
    )
    assert narrower.build(0).layers.layers[0].self_attn.num_heads == 4


def test_attention_that_stores_the_width_of_its_heads_keeps_it() -> None:
    by_module = hydro.shrink(Grouped(), scale=4, inputs=text(), heads="fewer")
    assert by_module.forward == hydro.shrink(Grouped, scale=4, inputs=text()).forward
    assert by_module.forward.attention == {}
    assert by_module.build(0)(text()).shape == (4, CONTEXT, WORDS)


def test_hooks_survive_functional_calls_and_an_error_in_the_forward_pass() -> None:
    surrogate = hydro.shrink(GPT, scale=4, inputs=text())
    model = surrogate.build(0)
    wanted = model(text())
    again = functional_call(model, {key: value.clone() for key, value in model.named_parameters()}, (text(),))
    torch.testing.assert_close(again, wanted)
    with pytest.raises(RuntimeError):
        model.blocks[0].attention(torch.randn(1, 3, 7))  # type: ignore[index,union-attr]
    torch.testing.assert_close(model(text()), wanted)
    q = torch.randn(1, 1, 3, 4)  # no multiplier outside the model
    torch.testing.assert_close(
        scaled_dot_product_attention(q, q, q), scaled_dot_product_attention(q, q, q, scale=0.5)
    )


def test_markers_scale_what_functions_compute() -> None:
    class Marked(nn.Module):
        def __init__(self, width: int = 32) -> None:
            super().__init__()
            self.words, self.query, self.readout = nn.Embedding(WORDS, width), hydro.Query(), hydro.Readout()
            self.key = nn.Linear(width, width)

        def forward(self, text: Tensor) -> Tensor:
            x = self.words(text)
            scores = self.query(x) @ self.key(x).mT / x.shape[-1] ** 0.5
            return self.readout(scores.softmax(-1) @ x) @ self.words.weight.T

    surrogate = hydro.shrink(Marked, scale=4, inputs=text())
    assert surrogate.forward.inputs == {"query": 2.0, "readout": 4.0}


def test_depth_rules_scale_what_blocks_add() -> None:
    surrogate = hydro.shrink(ResidualMLP, depth=2, inputs=rows())
    assert surrogate.forward.residual == {"blocks.0": 4.0, "blocks.1": 4.0}
    adam, sgd = surrogate.parametrization("adam"), surrogate.parametrization("sgd")
    assert adam["blocks.0.inner.weight"].key == (1.0, 1.0, 4.0)
    assert sgd["blocks.0.inner.weight"].key == (0.25, 4.0, 1.0)
    assert adam["readout.weight"].key == (1.0, 1.0, 1.0)
    model: Any = surrogate.build(0)
    x = torch.randn(3, 32)
    added = model.blocks[0].forward(x) - x
    torch.testing.assert_close(model.blocks[0](x), x + 4 * added, rtol=1e-5, atol=1e-5)
    both = hydro.shrink(ResidualMLP, width=8, depth=2, inputs=rows())
    assert both.parametrization("adam")["blocks.1.outer.weight"].key == (4.0, 0.25, 16.0)


def test_initial_values_that_depend_on_depth_keep_the_bases_spread() -> None:
    class Scaled(ResidualMLP):
        def __init__(self, width: int = 32, depth: int = 8) -> None:
            super().__init__(width, depth)
            for block in self.blocks:
                nn.init.normal_(block.outer.weight, std=0.1 / depth**0.5)  # type: ignore[union-attr,arg-type]

    surrogate = hydro.shrink(Scaled, depth=2, inputs=rows())
    assert surrogate.initial["blocks.0.outer.weight"] == pytest.approx(0.5)
    assert "blocks.0.inner.weight" not in surrogate.initial


def test_a_forward_pass_that_needs_values() -> None:
    class Values(MLP):
        def forward(self, x: Tensor) -> Any:
            if float(x.abs().sum().item()) > 1e9:
                return self.readout(self.second(self.first(x)))
            return super().forward(x)

    surrogate = hydro.shrink(Values, scale=4, inputs=rows())
    assert surrogate.forward.inputs == {"readout": 4.0}
    with pytest.raises(hydro.ShrinkError, match="give a factory"):
        hydro.shrink(Values(), scale=4, inputs=rows())


def test_multipliers_hold_for_inputs_by_name() -> None:
    class Named(MLP):
        def forward(self, x: Tensor) -> Any:
            return self.readout(input=self.second(self.first(x)))

    model: Any = hydro.shrink(Named, scale=4, inputs=rows()).build(0)
    wanted = model.readout.forward(4.0 * model.second(model.first(rows())))
    torch.testing.assert_close(model(rows()), wanted)


def test_other_members_of_the_family() -> None:
    surrogate = hydro.shrink(MLP, width=16)
    assert (surrogate.scale, surrogate.at(width=32).scale, surrogate.target().scale) == (4.0, 2.0, 1.0)
    assert surrogate.at(width=128).parametrization("adam")["second.weight"].lr == 0.5
    module = hydro.shrink(MLP(), scale=4)
    assert (module.scale, module.at(scale=2).scale, module.target().is_target) == (4.0, 2.0, True)
    assert module.at(scale=2).build(0).state_dict()["first.weight"].shape == (32, 20)


def test_large_models_are_compared_without_being_built() -> None:
    """A base of half a billion parameters: shapes only, in well under a second and without memory."""
    surrogate = hydro.shrink(GPT, width=32, target={"width": 2048, "depth": 12}, depth=2, inputs=text())
    assert surrogate.parametrization("adam")["blocks.0.wide.weight"].lr == 64
    assert surrogate.build(0)(text()).shape == (4, CONTEXT, WORDS)
    assert surrogate.build(0)(text()).isfinite().all()
    assert CLASSES == 10


def shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(one.shape) for name, one in model.named_parameters()}
