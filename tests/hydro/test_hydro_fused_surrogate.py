"""Shrinking and fusing together: members of a fused surrogate train like separate copies of it, multipliers
included."""

from typing import Any

import pytest
import torch
from hydro_models import GPT, Mobile, ResNet, images, text
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from headrace_torch import hydro

MEMBERS: list[dict[str, Any]] = [
    {"lr": 1e-3, "seed": 1},
    {"lr": 4e-3, "seed": 2, "weight_decay": 0.1},
    {"lr": 2e-3, "seed": 1, "clip": 0.5},
]
MODELS: dict[str, tuple[Any, dict[str, int], Tensor]] = {
    "GPT": (GPT, {"width": 16, "depth": 1}, text()),
    "ResNet": (ResNet, {"width": 8}, images()),
    "Mobile": (Mobile, {"width": 8}, images()),
}


def loss_of(model: nn.Module, batch: Any) -> Tensor:
    logits = model(batch[0])
    return cross_entropy(logits.flatten(0, -2), batch[1])


@pytest.mark.cases(2)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("optimizer", "engine"), [("adamw", "grouped"), ("sgd", "vmap"), ("adam", "auto")])
def test_members_of_a_fused_surrogate_train_as_alone(name: str, optimizer: Any, engine: Any) -> None:
    factory, sizes, inputs = MODELS[name]
    torch.set_default_dtype(torch.float64)
    try:
        inputs = inputs.double() if inputs.is_floating_point() else inputs
        surrogate = hydro.shrink(factory, inputs=inputs, **sizes)
        rows = surrogate.build(0)(inputs).flatten(0, -2).shape[0]
        batch = (inputs, torch.arange(rows) % 7)
        with hydro.fuse(surrogate, MEMBERS, optimizer, engine=engine, workers=0, gate=False) as group:
            fused = torch.stack([group.step(batch, loss_of) for _ in range(8)], dim=1)
        for member, losses in zip(MEMBERS, fused, strict=True):
            wanted = torch.tensor(alone(surrogate, member, optimizer, batch))
            torch.testing.assert_close(losses.double(), wanted, rtol=1e-9, atol=0)
    finally:
        torch.set_default_dtype(torch.float32)


def alone(surrogate: hydro.Surrogate, member: dict[str, Any], optimizer: str, batch: Any) -> list[float]:
    model = surrogate.build(seed=member["seed"])
    own = surrogate.optimizer(model, optimizer, lr=member["lr"], weight_decay=member.get("weight_decay"))
    losses = []
    for _ in range(8):
        own.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        if "clip" in member:
            nn.utils.clip_grad_norm_(model.parameters(), member["clip"])
        own.step()
        losses.append(float(loss.detach()))
    return losses
