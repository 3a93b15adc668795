"""What is frozen in a module: three flags that its state dict leaves out."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch


def frozen(module: torch.nn.Module) -> dict[str, list[str]]:
    """The names of the parameters that get no gradient, of the normalizations that collect no statistics, and of the
    modules that are in evaluation mode."""
    return {
        "parameters": [name for name, one in module.named_parameters() if not one.requires_grad],
        "statistics": [name for name, one in _normalizations(module) if not one.track_running_stats],
        "evaluated": [name for name, one in module.named_modules() if not one.training],
    }


def freeze(module: torch.nn.Module, names: Mapping[str, Iterable[str]]) -> None:
    """Freezes what was frozen, and nothing else: the inverse of `frozen`."""
    parameters, statistics, evaluated = (
        set(names[kind]) for kind in ("parameters", "statistics", "evaluated")
    )
    for name, parameter in module.named_parameters():
        if parameter.requires_grad is (name in parameters):
            parameter.requires_grad_(name not in parameters)
    for name, normalization in _normalizations(module):
        if bool(normalization.track_running_stats) is (
            name in statistics
        ):  # a scripted module's cannot be set
            normalization.track_running_stats = name not in statistics
    for name, one in module.named_modules():
        if one.training is (name in evaluated):
            one.training = name not in evaluated


def _normalizations(module: torch.nn.Module) -> Iterable[tuple[str, Any]]:
    return ((name, one) for name, one in module.named_modules() if hasattr(one, "track_running_stats"))
