"""At scale 1 we change nothing: values, types, hooks, optimizer groups and trajectories are the user's, bit for
bit."""

from typing import Any

import pytest
import torch
from hydro_models import GPT, MLP, Mobile, ResidualMLP, ResNet, images, rows, text
from torch import Tensor, nn

from headrace_torch import hydro

MODELS: dict[str, tuple[Any, Tensor]] = {
    "MLP": (MLP, rows()),
    "ResNet": (ResNet, images()),
    "GPT": (GPT, text()),
    "Mobile": (Mobile, images()),
    "ResidualMLP": (ResidualMLP, rows()),
}
OPTIMIZERS = {
    "sgd": (torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.01}),
    "adam": (torch.optim.Adam, {"betas": (0.8, 0.95)}),
    "adamw": (torch.optim.AdamW, {"eps": 1e-6}),
    "AdamW": (torch.optim.AdamW, {}),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_target_is_the_users_model(name: str) -> None:
    factory, inputs = MODELS[name]
    target = hydro.shrink(factory, scale=2, inputs=inputs).target()
    assert target.is_target
    assert target.parametrization("adamw").is_identity
    model = target.build(seed=3)
    torch.manual_seed(3)
    own = factory()
    assert_same(model, own)
    assert not any(one._forward_hooks or one._forward_pre_hooks for one in model.modules())
    assert [type(one) for one in model.modules()] == [type(one) for one in own.modules()]


@pytest.mark.parametrize("name", MODELS)
def test_a_module_at_scale_one_is_a_copy(name: str) -> None:
    factory, inputs = MODELS[name]
    own = factory()
    before = {key: value.clone() for key, value in own.state_dict().items()}
    model = hydro.shrink(own, scale=1, inputs=inputs).build()
    assert_same(model, own)
    assert model is not own
    assert all(torch.equal(before[key], value) for key, value in own.state_dict().items())


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", ["MLP", "GPT"])
def test_training_at_scale_one_is_torch_optim(name: str, optimizer: str) -> None:
    factory, inputs = MODELS[name]
    target = hydro.shrink(factory, scale=2, inputs=inputs).target()
    kind, settings = OPTIMIZERS[optimizer]
    ours = target.build(seed=0)
    theirs = target.build(seed=0)
    our_optimizer = target.optimizer(ours, optimizer, lr=0.01, **settings)
    their_optimizer = kind(theirs.parameters(), lr=0.01, **settings)
    assert len(our_optimizer.param_groups) == 1
    for key, value in their_optimizer.param_groups[0].items():
        if key != "params":
            assert our_optimizer.param_groups[0][key] == value, key
    for model, one in ((ours, our_optimizer), (theirs, their_optimizer)):
        for _ in range(5):
            one.zero_grad()
            model(inputs).square().mean().backward()
            one.step()
    assert_same(ours, theirs)


def test_building_with_a_seed_leaves_the_global_generator_alone() -> None:
    surrogate = hydro.shrink(MLP, scale=4, inputs=rows())
    torch.manual_seed(11)
    before = torch.get_rng_state()
    one, two = surrogate.build(seed=1), surrogate.build(seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert_same(one, two)
    assert not torch.equal(
        surrogate.build(seed=2).state_dict()["first.weight"], one.state_dict()["first.weight"]
    )


def assert_same(one: nn.Module, two: nn.Module) -> None:
    ours, theirs = one.state_dict(), two.state_dict()
    assert list(ours) == list(theirs)
    for key, value in ours.items():
        assert torch.equal(value, theirs[key]), key
