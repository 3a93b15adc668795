"""Weight norm: a length follows its rows, in its initial value and in its rate. A module with it is refused by
name."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hydro_models import rows
from torch import Tensor, nn

from headrace_torch import hydro
from headrace_torch.hydro.parametrize.rules import INITIAL_STD

NEW = nn.utils.parametrizations.weight_norm
OLD = nn.utils.weight_norm
NAMES: dict[Any, tuple[str, str]] = {
    NEW: ("parametrizations.weight.original0", "parametrizations.weight.original1"),
    OLD: ("weight_g", "weight_v"),
}
pytestmark = pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")


class Normed(nn.Module):
    """Every layer is normed, also the readout, whose rows follow a law of their own."""

    def __init__(
        self, width: int = 64, norm: Callable[[nn.Module], nn.Module] = NEW, std: float = 0.0
    ) -> None:
        super().__init__()
        readout = nn.Linear(width, 5)
        if std:
            nn.init.normal_(readout.weight, std=std)
        self.first, self.second = norm(nn.Linear(20, width)), norm(nn.Linear(width, width))
        self.readout = norm(readout)

    def forward(self, x: Tensor) -> Tensor:
        return self.readout(torch.relu(self.second(torch.relu(self.first(x)))))


@pytest.mark.parametrize("norm", [NEW, OLD])
@pytest.mark.parametrize("std", [0.0, 0.05])
def test_lengths_are_those_of_their_rows_at_any_width(norm: Any, std: float) -> None:
    surrogate = hydro.shrink(lambda width=64: Normed(width, norm, std), width=16, inputs=rows())
    length, direction = NAMES[norm]
    spreads = []
    for member in (surrogate, surrogate.target()):
        found = dict(member.build(0).named_parameters())
        for layer in ("first", "second", "readout"):
            norms = found[f"{layer}.{direction}"].norm(dim=1)
            torch.testing.assert_close(found[f"{layer}.{length}"].flatten(), norms)
        spreads.append(float(found[f"readout.{direction}"].detach().std()))
    assert spreads[0] == pytest.approx(spreads[1], rel=0.2)  # a readout's entries keep their size


@pytest.mark.parametrize("norm", [NEW, OLD])
def test_a_readouts_length_has_a_rate_of_its_own(norm: Any) -> None:
    """If n entries move by the same amount at any width, their length moves by the root of n."""
    surrogate = hydro.shrink(lambda width=64: Normed(width, norm), width=16, inputs=rows())
    length, _ = NAMES[norm]
    adam, sgd = surrogate.parametrization("adam"), surrogate.parametrization("sgd")
    assert adam[f"readout.{length}"].kind == "length"
    assert adam[f"readout.{length}"].lr == pytest.approx(0.5)
    assert adam[f"readout.{length}"].eps == pytest.approx(2)
    assert sgd[f"readout.{length}"].lr == pytest.approx(0.25)
    assert INITIAL_STD[hydro.Kind.LENGTH].of(adam[f"readout.{length}"].growth, depth_ratio=1) == 0.5
    assert adam[f"second.{length}"].lr == 1
    assert surrogate.target().parametrization("adam").is_identity


@pytest.mark.parametrize("norm", [NEW, OLD])
def test_a_module_with_weight_norm_is_refused_by_name(norm: Any) -> None:
    with pytest.raises(hydro.ShrinkError, match=r"first: its weight is computed .* give a factory"):
        hydro.shrink(Normed(64, norm), scale=4, inputs=rows())
