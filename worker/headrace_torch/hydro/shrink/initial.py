"""Initial values: how the user's own initialisation depends on width, and what to multiply it by.

The rules give each parameter's standard deviation relative to the base model's. The surrogate is initialised by
the user's code, at the surrogate's size, and that code has its own law: torch's default falls with the square root
of the fan-in, `normal_(std=0.02)` is constant, GPT-2's output projections fall with the root of the depth. The law
is not assumed but measured, on two small models of different size, and the laws are far enough apart to be
identified with certainty. The base model itself is never built.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import type_before_parametrizations

from headrace_torch.hydro.errors import ParametrizationError
from headrace_torch.hydro.parametrize.kinds import Shape

Fans = tuple[float, float]

# Standard deviation up to a constant, from (fan-in, fan-out).
LAWS: Final[dict[str, Callable[[float, float], float]]] = {
    "constant": lambda _fan_in, _fan_out: 1.0,
    "1/sqrt(fan_in)": lambda fan_in, _fan_out: fan_in**-0.5,
    "1/sqrt(fan_out)": lambda _fan_in, fan_out: fan_out**-0.5,
    "1/sqrt(fan_in+fan_out)": lambda fan_in, fan_out: (fan_in + fan_out) ** -0.5,
    "1/fan_in": lambda fan_in, _fan_out: fan_in**-1.0,
}
DEPTH_LAWS: Final[dict[str, Callable[[float], float]]] = {
    "constant": lambda _depth: 1.0,
    "1/sqrt(depth)": lambda depth: depth**-0.5,
    "1/depth": lambda depth: depth**-1.0,
}
# Among this many samples a ratio of two spreads is known within 6 % (one sigma); the laws differ by a factor of 2.
SAMPLES = 300
REBUILDS = 64
# The names of a layer's weight: plain, computed from one parameter or, with weight norm, from two; the old weight
# norm.
_WEIGHTS: Final = (
    "weight",
    "parametrizations.weight.original",
    "parametrizations.weight.original1",
    "weight_v",
)
TOLERANCE = 0.3  # in the logarithm of the ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialLaw:
    """How the user's initialisation of a parameter depends on its fans and on the depth."""

    width: str = "constant"
    depth: str = "constant"

    def std(self, fans: Fans, depth: float) -> float:
        """Up to a constant factor."""
        return LAWS[self.width](*fans) * DEPTH_LAWS[self.depth](depth)


def fans_of(name: str, shapes: Mapping[str, Shape]) -> Fans:
    """Fan-in and fan-out as torch counts them; a bias has those of the weight beside it."""
    shape = shapes[name]
    if len(shape) < 2:
        beside = [name[: -len("bias")] + one for one in _WEIGHTS] if name.endswith("bias") else []
        weight = next((shapes[one] for one in beside if len(shapes.get(one, ())) > 1), None)
        if weight is None:
            size = float(math.prod(shape))
            return size, size
        shape = weight
    field = float(math.prod(shape[2:]))
    return shape[1] * field, shape[0] * field


def lengths(shapes: Mapping[str, Shape]) -> dict[str, str]:
    """Parameters of weight norm that are the lengths of another parameter's rows, with that parameter's name.

    Covers both `torch.nn.utils.parametrizations.weight_norm` and the old `torch.nn.utils.weight_norm`. At the
    start a length is that of its row, however that was initialised.
    """
    found = {}
    for name, shape in shapes.items():
        for length, rows in (("parametrizations.weight.original0", "original1"), ("weight_g", "weight_v")):
            other = name[: -len(rows)] + rows
            if f".{name}".endswith(f".{length}") and shape == (
                *shapes.get(other, ())[:1],
                *(1 for _ in shapes.get(other, ())[1:]),
            ):
                found[name] = other
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Kin:
    """What siblings share: the same parameter of another block is a sibling; that of another layer in a row is
    not.

    Attributes:
        module: the type of the module that holds it.
        path: its name without numbers.
        shapes: its shapes at the base's width and at another: which sizes grow, and from what.
        fans: its fans, likewise; those of a bias are its weight's, whose shape its initial values may follow.
    """

    module: type[nn.Module]
    path: str
    shapes: tuple[Shape, Shape]
    fans: tuple[Fans, Fans]


def kin_of(model: nn.Module, other: nn.Module) -> dict[str, Kin]:
    """Every parameter's kin, from the base model and one of another width and equal depth."""
    owners = dict(model.named_modules())
    here, there = (
        {name: tuple(one.shape) for name, one in each.named_parameters()} for each in (model, other)
    )
    return {
        name: Kin(
            module=type_before_parametrizations(owners[name.rpartition(".")[0]]),
            path=".".join("*" if part.isdecimal() else part for part in name.split(".")),
            shapes=(here[name], there[name]),
            fans=(fans_of(name, here), fans_of(name, there)),
        )
        for name in here
    }


def spread(make: Callable[[], nn.Module], kin: Mapping[str, Kin]) -> dict[Kin, float]:
    """Root mean square of initial values by kin, over as many models as needed; 0 for constants."""
    totals: dict[Kin, list[Tensor]] = {}
    for number in range(REBUILDS):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(number)
            model = make()
        for name, parameter in model.named_parameters():
            totals.setdefault(kin[name], []).append(parameter.detach().double().flatten())
        # Values that do not vary between two models of different seeds are constant, and need no more of them.
        if number and all(_constant(found) or sum(map(len, found)) >= SAMPLES for found in totals.values()):
            break
    return {
        one: 0.0 if _constant(found) else float(torch.cat(found).square().mean().sqrt())
        for one, found in totals.items()
    }


def _constant(found: list[Tensor]) -> bool:
    return all(bool((one == one[:1]).all()) for one in found)


def match_law(name: str, ratio: float, predicted: Mapping[str, float], *, axis: str) -> str:
    """The law whose predicted ratio of spreads is nearest to the measured one.

    Raises:
        ParametrizationError: none is near.
    """
    best = min(predicted, key=lambda law: abs(math.log(ratio / predicted[law])))
    if abs(math.log(ratio / predicted[best])) > TOLERANCE:
        raise ParametrizationError(
            f"{name}: its initial values change by ×{ratio:.3g} with the {axis}, which no known law does "
            f"({', '.join(f'{law}: ×{value:.3g}' for law, value in predicted.items())}); initialise it by one of these"
        )
    return best
