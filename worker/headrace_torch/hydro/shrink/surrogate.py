"""A model of other sizes whose training moves its activations as that of the user's model does.

`Surrogate` is what the rest of Hydro works with: how to build it, and by what each parameter's settings and the
forward pass are multiplied. Nothing in it depends on an optimizer until one is named.
"""

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from headrace_torch.hydro.parametrize.hooks import scale_attention, scale_input, scale_residual
from headrace_torch.hydro.parametrize.kinds import Growth
from headrace_torch.hydro.parametrize.parametrization import Parametrization, parametrize

if TYPE_CHECKING:
    from headrace_torch.hydro.shrink.family import Family


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardMultipliers:
    """The multipliers in the forward pass, by the dotted name of a module; 1 is left out."""

    inputs: Mapping[str, float]
    attention: Mapping[str, float]
    residual: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Surrogate:
    """A member of a family of models of one architecture.

    Attributes:
        family: the family that it is a member of; its base is the user's own model.
        sizes: width and depth, or the scale for a rebuilt module.
        growths: the ratios of each parameter's sizes to the base model's.
        forward: multipliers in the forward pass.
        depth_ratio: blocks here over blocks of the base model.
        in_blocks: parameters inside residual blocks.
    """

    family: "Family"
    sizes: Mapping[str, int]
    growths: Mapping[str, Growth]
    forward: ForwardMultipliers
    depth_ratio: float
    in_blocks: frozenset[str]

    def build(self, seed: int | None = None) -> nn.Module:
        """Makes a new model of this size, a plain module with the user's types and names.

        Args:
            seed: makes the initial values repeatable, and leaves the global generator unchanged; None draws from
                it.
        """
        if seed is None:
            model = self.family.source.make(self.sizes)
        else:
            with torch.random.fork_rng():
                torch.manual_seed(seed)
                model = self.family.source.make(self.sizes)
        with torch.no_grad():
            initial = self.initial
            for name, parameter in model.named_parameters():
                if name in initial:
                    parameter.mul_(initial[name])
        modules = dict(model.named_modules())
        for name, multiplier in self.forward.inputs.items():
            scale_input(modules[name], multiplier)
        for name, multiplier in self.forward.attention.items():
            scale_attention(modules[name], multiplier)
        for name, multiplier in self.forward.residual.items():
            scale_residual(modules[name], multiplier)
        _behind[model] = self
        return model

    @property
    def initial(self) -> Mapping[str, float]:
        """The multipliers of the user's initial values, by parameter name; 1 is left out.

        The first use in a family measures how the user's initialisation depends on the width, on small models.
        """
        return self.family.initial(self.growths, depth=self.sizes.get("depth", 1))

    def parametrization(self, optimizer: str) -> Parametrization:
        """The multipliers of settings for one optimizer: "sgd", "adam" or "adamw".

        Raises:
            ParametrizationError: there are no rules for it.
        """
        return parametrize(
            self.growths, optimizer.lower(), depth_ratio=self.depth_ratio, in_blocks=self.in_blocks
        )

    def optimizer(
        self, module: nn.Module, optimizer: str, *, lr: float, **settings: Any
    ) -> torch.optim.Optimizer:
        """A torch optimizer for a model that `build` made; rates are in terms of the user's model.

        At scale 1 it is the optimizer that the user would make, with one parameter group.
        """
        return self.parametrization(optimizer).make_optimizer(module, lr=lr, **settings)

    def example_inputs(self, batch: int | None = None, seed: int = 0) -> tuple[Tensor, ...]:
        """Positional arguments for the forward pass: the user's, or drawn to fit the model."""
        return self.family.inputs.example(batch, seed)

    def at(self, **sizes: int) -> "Surrogate":
        """The same family at other sizes, for example `at(width=64)`; a size that is not named stays."""
        return self.family.member({**self.sizes, **sizes})

    def target(self) -> "Surrogate":
        """The user's own model, for which every multiplier is 1."""
        return self.family.member(self.family.source.base)

    @property
    def is_target(self) -> bool:
        """Whether this is the user's own model."""
        return dict(self.sizes) == dict(self.family.source.base)

    @property
    def scale(self) -> float:
        """How many times narrower than the user's model this is."""
        if "scale" in self.sizes:
            return float(self.sizes["scale"])
        return self.family.source.base["width"] / self.sizes["width"]

    @property
    def label(self) -> str:
        """Its sizes in words."""
        if "scale" in self.sizes:
            return f"1/{self.sizes['scale']}"
        return " × ".join(str(value) for value in self.sizes.values())


def surrogate_behind(model: nn.Module) -> Surrogate | None:
    """The surrogate from which a model was built; None for any other model, and for a copy of the object."""
    return _behind.get(model)


_behind: "weakref.WeakKeyDictionary[nn.Module, Surrogate]" = weakref.WeakKeyDictionary()
