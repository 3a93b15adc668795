"""The multipliers of one model for one optimizer, by parameter name, and optimizers made with them.

Metadata is kept beside the model, never on a tensor: a copy, a cast, a checkpoint or a vmap does not lose it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn

from headrace_torch.hydro.errors import ParametrizationError
from headrace_torch.hydro.parametrize.kinds import Growth, Kind, growth_of
from headrace_torch.hydro.parametrize.rules import rule_for

OPTIMIZERS: Final[dict[str, Any]] = {  # Any: each class has its own settings
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}
ADAM_EPS: Final = 1e-8  # torch.optim's own default
ADAMW_WEIGHT_DECAY: Final = 0.01  # torch.optim's own default


@dataclass(frozen=True, slots=True, kw_only=True)
class Multipliers:
    """The multipliers of a member's settings for one parameter."""

    kind: Kind
    growth: Growth
    lr: float
    weight_decay: float
    eps: float

    @property
    def key(self) -> tuple[float, float, float]:
        """Equal for parameters that can share a group."""
        return (self.lr, self.weight_decay, self.eps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parametrization:
    """All parameters' multipliers for one optimizer, by the names that `named_parameters()` gives them."""

    optimizer: str
    by_name: Mapping[str, Multipliers]

    def __getitem__(self, name: str) -> Multipliers:
        try:
            return self.by_name[name]
        except KeyError:
            raise ParametrizationError(
                f"{name}: the parametrization has no such parameter; it is of another model"
            ) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.by_name)

    def grouped(self, module: nn.Module) -> list[list[str]]:
        """Names the parameters of each torch group: one group per distinct set of multipliers, in the model's order.

        The state dict of an optimizer with these groups numbers parameters in this order, from 0, across all
        groups.

        Raises:
            ParametrizationError: the module's parameters are not those of this parametrization.
        """
        groups: dict[tuple[float, float, float], list[str]] = {}
        found = [name for name, _ in module.named_parameters()]
        if missing := self.by_name.keys() - set(found):
            raise ParametrizationError(f"{min(missing)}: the model has no such parameter")
        for name in found:
            groups.setdefault(self[name].key, []).append(name)
        return list(groups.values())

    def groups(
        self, module: nn.Module, *, lr: float, weight_decay: float | None = None, eps: float | None = None
    ) -> list[dict[str, Any]]:
        """Parameter groups for a torch optimizer, as `grouped` names them.

        At scale 1 there is one group with the given settings, so that the optimizer is the one that the user would
        make.

        Args:
            module: the module whose parameters the groups hold.
            lr: the rate in terms of the base model.
            weight_decay: as in torch; None means the torch optimizer's default.
            eps: as in torch, not for SGD; None means the torch optimizer's default.

        Raises:
            ParametrizationError: the module's parameters are not those of this parametrization.
        """
        decay = weight_decay
        if decay is None:
            decay = ADAMW_WEIGHT_DECAY if self.optimizer == "adamw" else 0.0
        groups: list[dict[str, Any]] = []
        for names in self.grouped(module):
            one = self[names[0]]
            group = {
                "params": [module.get_parameter(name) for name in names],
                "lr": lr * one.lr,
                "weight_decay": decay * one.weight_decay,
            }
            if self.optimizer != "sgd":
                group["eps"] = (ADAM_EPS if eps is None else eps) * one.eps
            groups.append(group)
        return groups

    def make_optimizer(
        self,
        module: nn.Module,
        *,
        lr: float,
        weight_decay: float | None = None,
        eps: float | None = None,
        **settings: Any,
    ) -> torch.optim.Optimizer:
        """The torch optimizer with these groups; further settings (momentum, betas, …) are passed on unchanged."""
        groups = self.groups(module, lr=lr, weight_decay=weight_decay, eps=eps)
        optimizer: torch.optim.Optimizer = OPTIMIZERS[self.optimizer](groups, lr=lr, **settings)
        return optimizer

    @property
    def is_identity(self) -> bool:
        """Whether all multipliers are 1: the optimizer is then the user's own."""
        return all(one.key == (1.0, 1.0, 1.0) for one in self.by_name.values())


def parametrize(
    growths: Mapping[str, Growth],
    optimizer: str,
    *,
    depth_ratio: float = 1.0,
    in_blocks: frozenset[str] = frozenset(),
) -> Parametrization:
    """Applies the rule table.

    Args:
        growths: by parameter name.
        optimizer: "sgd", "adam" or "adamw".
        depth_ratio: blocks here, over blocks of the base model.
        in_blocks: parameters inside residual blocks, to which the depth rules apply.

    Raises:
        ParametrizationError: the optimizer is not in the table.
    """
    found = {}
    for name, growth in growths.items():
        rule = rule_for(growth.kind, optimizer)
        depth = depth_ratio if name in in_blocks else 1.0
        found[name] = Multipliers(
            kind=growth.kind,
            growth=growth,
            lr=rule.lr.of(growth, depth_ratio=depth),
            weight_decay=rule.weight_decay.of(growth, depth_ratio=depth),
            eps=rule.eps.of(growth, depth_ratio=depth),
        )
    return Parametrization(optimizer=optimizer, by_name=found)


def identity(module: nn.Module, optimizer: str) -> Parametrization:
    """A model that is its own base: every multiplier is 1."""
    shapes = {name: tuple(one.shape) for name, one in module.named_parameters()}
    growths = {name: growth_of(name, shape, shape, shape, table=False) for name, shape in shapes.items()}
    return parametrize(growths, optimizer)
