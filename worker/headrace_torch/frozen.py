"""What is frozen in a module: two flags that its state dict leaves out."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch


def frozen(module: torch.nn.Module) -> dict[str, list[str]]:
    """The names of the parameters that get no gradient, and of the normalizations that collect no statistics."""
    return {
        "parameters": [name for name, one in module.named_parameters() if not one.requires_grad],
        "statistics": [name for name, one in _normalizations(module) if not one.track_running_stats],
    }


def freeze(module: torch.nn.Module, names: Mapping[str, Iterable[str]]) -> None:
    """Freezes what was frozen, and nothing else: the inverse of `frozen`."""
    parameters, statistics = set(names["parameters"]), set(names["statistics"])
    for name, parameter in module.named_parameters():
        if parameter.requires_grad is (name in parameters):
            parameter.requires_grad_(name not in parameters)
    for name, normalization in _normalizations(module):
        normalization.track_running_stats = name not in statistics


def _normalizations(module: torch.nn.Module) -> Iterable[tuple[str, Any]]:
    return ((name, one) for name, one in module.named_modules() if hasattr(one, "track_running_stats"))
