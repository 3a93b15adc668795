"""What cannot be scaled is refused before any work is done, and the message names the layer and the remedy."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from hydro_models import GPT, MLP, WORDS, Attention, ResidualMLP, images, rows, text
from torch import Tensor, nn

from headrace_torch import hydro


class Linears(nn.Module):
    def __init__(self, *widths: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(one, two) for one, two in pairwise(widths)))

    def forward(self, x: Tensor) -> Any:
        return self.layers(x)


def refused(error: pytest.ExceptionInfo[hydro.ShrinkError], layer: str, *words: str) -> None:
    assert error.value.layer == layer
    assert str(error.value).startswith(f"{layer}: ")
    for word in words:
        assert word in str(error.value), str(error.value)


def test_heads_that_do_not_divide_name_the_layer_that_was_being_built() -> None:
    with pytest.raises(hydro.ShrinkError) as error:
        hydro.shrink(GPT, width=9, inputs=text())
    refused(error, "blocks.0.attention", "width=9", "2 heads do not divide")


def test_heads_that_do_not_divide_in_torchs_attention() -> None:
    class Attends(nn.Module):
        def __init__(self, width: int = 24) -> None:
            super().__init__()
            self.into = nn.Linear(5, width)
            self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
            self.out = nn.Linear(width, 2)

        def forward(self, x: Tensor) -> Any:
            x = self.into(x)
            return self.out(self.attention(x, x, x, need_weights=False)[0])

    inputs = torch.randn(2, 3, 5)
    with pytest.raises(hydro.ShrinkError) as error:
        hydro.shrink(Attends(), scale=4, inputs=inputs)
    refused(error, "attention", "4 heads do not divide an embed_dim of 6")
    with pytest.raises(hydro.ShrinkError) as error:
        hydro.shrink(Attends, width=6, inputs=inputs)
    refused(error, "attention", "width=6")


def test_heads_that_cannot_become_fewer() -> None:
    attends = nn.TransformerEncoderLayer(24, 3, 24, batch_first=True)
    model = nn.Sequential(nn.Linear(5, 24), attends, nn.Linear(24, 2))
    inputs = torch.randn(2, 3, 5)
    with pytest.raises(hydro.ShrinkError) as error:
        hydro.shrink(model, scale=2, inputs=inputs, heads="fewer")
    refused(error, "1.self_attn", "heads of a width of 8 do not divide an embed_dim of 12", "narrower")
    with pytest.raises(hydro.ShrinkError) as error:
        hydro.shrink(GPT(), scale=2, inputs=text(), heads="fewer")
    refused(error, "blocks.0.attention", "a width of 16, not 32", "keeps their number", "give a factory")
    with pytest.raises(hydro.ShrinkError, match="a factory itself decides how its heads grow"):
        hydro.shrink(GPT, scale=2, inputs=text(), heads="fewer")
    with pytest.raises(hydro.ShrinkError, match='heads is "narrower" or "fewer", not \'less\''):
        hydro.shrink(MLP(), scale=2, heads="less")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (nn.GroupNorm(8, 16), "8 groups do not divide 4 channels"),
        (nn.Conv2d(16, 16, 1, groups=8), "8 groups do not divide 4 incoming and 4 outgoing channels"),
    ],
)
def test_groups_that_do_not_divide(layer: nn.Module, words: str) -> None:
    model = nn.Sequential(nn.Conv2d(3, 16, 1), layer, nn.Conv2d(16, 2, 1))
    with pytest.raises(hydro.ShrinkError) as error:
        hydro.shrink(model, scale=4, inputs=images())
    refused(error, "1", words)


@pytest.mark.parametrize("how", ["factory", "module"])
def test_a_width_of_one_is_too_narrow(how: str) -> None:
    model = MLP if how == "factory" else Linears(20, 64, 64, 10)
    with pytest.raises(hydro.ShrinkError) as error:
        hydro.shrink(model, scale=64)
    refused(error, "first" if how == "factory" else "layers.0", "too narrow")


def test_a_width_that_does_not_divide() -> None:
    with pytest.raises(hydro.ShrinkError) as error:
        hydro.shrink(Linears(20, 30, 32, 10), scale=4)
    refused(error, "layers.0", "30 cannot be divided by the scale 4")
    with pytest.raises(hydro.ShrinkError, match=r"width 64 cannot be divided by the scale 3"):
        hydro.shrink(MLP, scale=3)


@pytest.mark.parametrize(
    "model", [lambda width=8: nn.Linear(5 + 0 * width, 3), nn.Linear(5, 3), Linears(7, 3)]
)
def test_no_hidden_dimension(model: Any) -> None:
    with pytest.raises(hydro.ShrinkError, match="no hidden dimension"):
        hydro.shrink(model, scale=2)


def test_outputs_that_depend_on_the_width() -> None:
    with pytest.raises(
        hydro.ShrinkError, match=r"outputs are \[\(4, 8\)\] here and \[\(4, 32\)\] in the base"
    ):
        hydro.shrink(lambda width=32: nn.Sequential(nn.Linear(5, width), nn.Linear(width, width)), scale=4)


def test_layers_that_cannot_be_rebuilt_are_named() -> None:
    class Recurrent(nn.Module):
        def __init__(self, width: int = 16) -> None:
            super().__init__()
            self.cells, self.out = nn.LSTM(5, width, batch_first=True), nn.Linear(width, 2)

        def forward(self, x: Tensor) -> Any:
            return self.out(self.cells(x)[0])

    with pytest.raises(hydro.ShrinkError) as error:
        hydro.shrink(Recurrent(), scale=4, inputs=torch.randn(2, 3, 5))
    refused(error, "cells", "LSTM", "give a factory")
    surrogate = hydro.shrink(Recurrent, scale=4, inputs=torch.randn(2, 3, 5))  # with a factory it can be
    assert surrogate.parametrization("adam")["cells.weight_hh_l0"].lr == 4


def test_a_forward_pass_with_a_stored_width_is_named() -> None:
    class Stored(nn.Module):
        class Inner(nn.Module):
            def __init__(self, width: int) -> None:
                super().__init__()
                self.width, self.layer = width, nn.Linear(width, width)

            def forward(self, x: Tensor) -> Any:
                return self.layer(x).reshape(x.shape[0], self.width)

        def __init__(self) -> None:
            super().__init__()
            self.first, self.inner, self.out = nn.Linear(5, 32), self.Inner(32), nn.Linear(32, 2)

        def forward(self, x: Tensor) -> Any:
            return self.out(self.inner(self.first(x)))

    with pytest.raises(hydro.ShrinkError) as error:
        hydro.shrink(Stored(), scale=4)
    refused(error, "inner", "give a factory")


def test_scores_and_logits_by_bare_functions_need_a_marker() -> None:
    class Bare(nn.Module):
        def __init__(self, width: int = 32, by_hand: bool = True) -> None:
            super().__init__()
            self.words, self.key, self.by_hand = nn.Embedding(WORDS, width), nn.Linear(width, width), by_hand

        def forward(self, text: Tensor) -> Tensor:
            x = self.words(text)
            scores = x @ self.key(x).mT / x.shape[-1] ** 0.5 if self.by_hand else torch.zeros(1)
            return (scores.softmax(-1) @ x if self.by_hand else self.key(x)) @ self.words.weight.T

    with pytest.raises(hydro.ShrinkError) as error:
        hydro.shrink(Bare, scale=4, inputs=text())
    refused(error, "(model)", "hydro.Query")
    with pytest.raises(hydro.ShrinkError) as error:
        hydro.shrink(lambda width=32: Bare(width, by_hand=False), scale=4, inputs=text())
    refused(error, "(model)", "hydro.Readout", f"fixed size ({WORDS})")
    assert hydro.shrink(Bare, scale=4, inputs=text(), accept=["(model)"]).forward.inputs == {}


@pytest.mark.parametrize(("where", "marker"), [("scores", "hydro.Query"), ("logits", "hydro.Readout")])
def test_an_einsum_is_looked_into(where: str, marker: str) -> None:
    class Sums(nn.Module):
        def __init__(self, width: int = 32) -> None:
            super().__init__()
            self.words, self.out = nn.Embedding(WORDS, width), nn.Linear(width, 3)

        def forward(self, text: Tensor) -> Any:
            x = self.words(text)
            if where == "scores":
                x = torch.einsum("blm, bmd -> bld", torch.einsum("bld,bmd->blm", x, x).softmax(-1), x)
                return self.out(x)
            return torch.einsum("bld,vd->blv", x, self.words.weight)

    with pytest.raises(hydro.ShrinkError) as error:
        hydro.shrink(Sums, scale=4, inputs=text())
    refused(error, "(model)", marker)


def test_more_than_two_growing_sizes_have_no_rule() -> None:
    class Cube(nn.Module):
        def __init__(self, width: int = 8) -> None:
            super().__init__()
            self.cube, self.out = nn.Parameter(torch.zeros(width, width, width)), nn.Linear(width, 2)
            self.into = nn.Linear(3, width)

        def forward(self, x: Tensor) -> Any:
            return self.out(torch.einsum("bi,ijk,bj->bk", self.into(x), self.cube, self.into(x)))

    with pytest.raises(hydro.ParametrizationError, match="cube: 3 of its sizes"):
        hydro.shrink(Cube, scale=2)


def test_depth_that_is_no_list_of_residual_blocks() -> None:
    with pytest.raises(hydro.ShrinkError) as error:
        hydro.shrink(
            lambda width=32, depth=8: ResidualMLP(width, depth, residual=False), depth=2, inputs=rows()
        )
    refused(error, "blocks.0", "does not add to its input")
    with pytest.raises(hydro.ShrinkError, match="depth changes no list of layers"):
        hydro.shrink(lambda width=32, depth=8: MLP(width + 0 * depth), depth=2)
    with pytest.raises(hydro.ShrinkError, match="no argument named depth"):
        hydro.shrink(MLP, width=8, depth=2)


def test_arguments_that_make_no_sense_say_what_to_pass() -> None:
    calls: list[tuple[Any, dict[str, Any], str]] = [
        (MLP, {}, "give the size"),
        (MLP, {"width": 8, "scale": 2}, "either width="),
        (MLP, {"width": 0}, "width must be at least 1, not 0"),
        (MLP, {"scale": 0}, "scale must be an integer of at least 1"),
        (MLP, {"width": 8, "target": {"heads": 2}}, "target has 'heads'"),
        (lambda size=8: MLP(size), {"width": 8}, "no argument named width"),
        (lambda width: MLP(width), {"width": 8}, "no default width"),
        (
            lambda width, depth: MLP(width + 0 * depth),
            {"width": 8, "target": {"width": 64}},
            "no default depth",
        ),
        (lambda width=8: f"model {width}", {"width": 4}, "must return an nn.Module, not str"),
        (MLP, {"width": 8, "keep": ["first"]}, "keep is for a module"),
        (MLP(), {"width": 8}, "a module is shrunk by scale="),
        (MLP(), {}, "shrink(module, scale=8)"),
        (MLP(), {"scale": 2, "keep": ["third"]}, "keep names 'third'"),
        (MLP(), {"scale": 2, "keep": "first"}, "not the string 'first'"),
        (MLP(), {"scale": 2, "inputs": []}, "inputs must be a tensor"),
        (MLP(), {"scale": 2, "inputs": torch.zeros(2, 3)}, "the forward pass fails"),
    ]
    for model, settings, words in calls:
        with pytest.raises(hydro.ShrinkError) as error:
            hydro.shrink(model, **settings)
        assert words in str(error.value), (settings, str(error.value))


def test_inputs_that_cannot_be_guessed() -> None:
    class Odd(nn.Module):
        def __init__(self, width: int = 8) -> None:
            super().__init__()
            self.layer, self.out = nn.Linear(4, width), nn.Linear(width, 2)

        def forward(self, x: Tensor, y: Tensor) -> Any:
            return self.out(self.layer(x) * self.layer(y))

    with pytest.raises(
        hydro.ShrinkError, match=r"cannot guess what the model is called with .* pass inputs="
    ):
        hydro.shrink(Odd, scale=2)
    assert hydro.shrink(Odd, scale=2, inputs=(torch.zeros(3, 4), torch.ones(3, 4))).scale == 2


def test_a_module_is_not_touched_by_a_refusal() -> None:
    module = Attention(32, 4, 2)
    before = {name: (one.data_ptr(), one.shape) for name, one in module.named_parameters()}
    with pytest.raises(hydro.ShrinkError):
        hydro.shrink(module, scale=64, inputs=torch.randn(2, 3, 32))
    assert {name: (one.data_ptr(), one.shape) for name, one in module.named_parameters()} == before
    assert not any(one._forward_pre_hooks for one in module.modules())
