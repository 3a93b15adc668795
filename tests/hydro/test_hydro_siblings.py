"""Initial values of layers in a row are measured separately: siblings share the module's type, the path and the
shapes."""

import pytest
import torch
from hydro_models import GPT, MLP, ResNet
from torch import nn

from headrace_torch import hydro

NORMS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.modules.batchnorm._BatchNorm)


def row(width: int = 256) -> nn.Module:
    """All layers have a number as their name."""
    return nn.Sequential(
        nn.Linear(20, width),
        nn.LayerNorm(width),
        nn.GELU(),
        nn.Linear(width, width),
        nn.LayerNorm(width),
        nn.GELU(),
        nn.Linear(width, 4 * width),
        nn.GELU(),
        nn.Linear(4 * width, width),
        nn.RMSNorm(width),
        nn.Linear(width, 3),
    )


def images(width: int = 64) -> nn.Module:
    """Convolutions and norms in a row, nested."""
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(3, width, 3), nn.BatchNorm2d(width), nn.ReLU()),
        nn.Sequential(nn.Conv2d(width, width, 3), nn.GroupNorm(4, width), nn.ReLU()),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(width, 3),
    )


def sources() -> dict[str, hydro.Surrogate]:
    image = torch.randn(2, 3, 8, 8)
    return {
        "row": hydro.shrink(row, width=32),
        "row as a module": hydro.shrink(row(64), scale=4),
        "images": hydro.shrink(images, width=16, inputs=image),
        "images as a module": hydro.shrink(images(), scale=4, inputs=image),
    }


@pytest.mark.cases(2)
@pytest.mark.parametrize("name", ["row", "row as a module", "images", "images as a module"])
def test_no_norms_gain_is_ever_changed(name: str) -> None:
    surrogate = sources()[name]
    norms = [one for one in surrogate.build(0).modules() if isinstance(one, NORMS)]
    assert norms
    for one in norms:
        assert bool((one.weight == 1).all())
        if getattr(one, "bias", None) is not None:
            assert not bool(one.bias.any())


def test_parametrized_layers_have_kin() -> None:
    def normed(width: int = 64) -> nn.Module:
        norm = nn.utils.parametrizations.weight_norm
        return nn.Sequential(
            norm(nn.Linear(20, width)), nn.ReLU(), norm(nn.Linear(width, width)), nn.Linear(width, 3)
        )

    assert hydro.shrink(normed, width=16).build(0)


def test_the_gains_of_the_other_models_stay() -> None:
    for make in (MLP, ResNet, GPT):
        surrogate = hydro.shrink(make, scale=4)
        for one in surrogate.build(0).modules():
            if isinstance(one, NORMS):
                assert bool((one.weight == 1).all())


def test_each_layer_of_a_row_begins_with_the_bases_spread() -> None:
    """The rules: hidden matrices get 1/sqrt of the width ratio, everything else is as in the base."""
    surrogate = hydro.shrink(row, width=32)
    torch.manual_seed(0)
    base = {name: one.detach().square().mean().sqrt() for name, one in row().named_parameters()}
    small = dict(surrogate.build(0).named_parameters())
    found = {name: float(one.detach().square().mean().sqrt() / base[name]) for name, one in small.items()}
    for name in ("0.weight", "10.weight"):
        assert found[name] == pytest.approx(1, rel=0.2), name
    for name in ("3.weight", "6.weight", "8.weight"):
        assert found[name] == pytest.approx(8**0.5, rel=0.2), name


@pytest.mark.full
def test_a_row_begins_as_the_same_layers_with_names() -> None:
    class Named(nn.Module):
        def __init__(self, width: int = 256) -> None:
            super().__init__()
            self.first, self.norm = nn.Linear(20, width), nn.LayerNorm(width)
            self.second, self.norm2 = nn.Linear(width, width), nn.LayerNorm(width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
            self.norm3, self.readout = nn.RMSNorm(width), nn.Linear(width, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = torch.relu(self.norm2(self.second(torch.relu(self.norm(self.first(x))))))
            return self.readout(self.norm3(self.down(torch.relu(self.up(x)))))

    named, numbered = (hydro.shrink(make, width=32) for make in (Named, row))
    factors = [[one.initial.get(name, 1.0) for name in one.growths] for one in (named, numbered)]
    assert factors[0] == pytest.approx(factors[1])
    assert "3.bias" in numbered.initial
    assert "0.bias" not in numbered.initial  # its fan-in does not grow
