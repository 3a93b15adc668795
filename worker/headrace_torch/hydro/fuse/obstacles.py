"""What can be fused, and what cannot and why: the one place that says so.

    refuse       rejects what no engine can train as torch.optim would, before anything is made
    ENGINES      the engines, and what each gives a member separately
    Need         what a model may need a member to have separately; `inspection` finds out, and says where
    why_not      compares the two: why an engine must not run a model

What is in no table is found by trial: an op that `torch.vmap` cannot map raises, and `probe` compares every engine
with `reference`, which is the user's module under torch.optim.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Literal

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from headrace_torch.hydro.fuse.errors import FuseError

EngineName = Literal["vmap", "grouped", "separate", "pool"]


class Need(StrEnum):
    """What a member must have separately."""

    ATTRIBUTES = (
        "attributes"  # Python state: what differs between members, or what a step changes with effect
    )
    MEMORY = "memory"  # Python state of the model that a step changes, without effect on the next one
    RECORD = "record"  # what a call changes outside of the model: what the loss keeps, a class, a global
    HOOKS = "hooks"  # a hook on a parameter sees one member's gradient
    REFERENCES = "references"  # a parameter that the forward pass reaches past the module's registry
    PARAMETERS = "parameters"  # that the forward pass itself writes
    BATCH = "batch"  # that the forward pass writes
    DRAWS = "draws"  # from generators of Python or numpy


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What an engine promises; all promise the reference's numbers.

    Attributes:
        gives: what each member has separately.
        fused: whether one forward and backward pass serves all members.
        how: how it works, in one line.
    """

    gives: frozenset[Need]
    fused: bool
    how: str


# One call serves all members of a fused pass that remember the same: it counts as a call of each member.
_FUSED: Final = frozenset({Need.MEMORY, Need.RECORD})
ENGINES: Final[Mapping[EngineName, Promise]] = {
    "grouped": Promise(gives=_FUSED, fused=True, how="torch.vmap, with one dense kernel for all members"),
    "vmap": Promise(gives=_FUSED, fused=True, how="torch.vmap over stacked parameters"),
    "separate": Promise(
        gives=frozenset(Need),
        fused=False,
        how="a module for each member, one after the other, in this process",
    ),
    "pool": Promise(
        gives=frozenset({Need.REFERENCES, Need.PARAMETERS, Need.DRAWS}),
        fused=False,
        how="worker processes that keep nothing between steps",
    ),
}


def why_not(engine: EngineName, needs: Mapping[Need, str]) -> str:
    """Why an engine must not run a model with these needs; empty if it may."""
    gives = ENGINES[engine].gives
    return next((reason for need, reason in needs.items() if need not in gives), "")


def refuse(model: nn.Module) -> None:
    """Rejects a model that no engine trains as torch.optim would.

    Raises:
        FuseError: names the layer and the remedy.
    """
    for name, one in model.named_modules():
        layer = f"layer {name} ({type(one).__name__})" if name else f"the model ({type(one).__name__})"
        if isinstance(one, torch.jit.ScriptModule):
            raise FuseError(
                f"{layer} is scripted or traced, which hides its parameters: pass the Python module"
            )
        if hasattr(one, "_orig_mod"):
            raise FuseError(f"{layer} is compiled: pass the module that torch.compile was given")
        if vars(one).get("_compiled_call_impl") is not None:
            raise FuseError(f"{layer} is compiled in place: pass it without compile()")
        if old := [
            hook for hook in one._forward_pre_hooks.values() if isinstance(hook, WeightNorm | SpectralNorm)
        ]:
            kind = "weight_norm" if isinstance(old[0], WeightNorm) else "spectral_norm"
            raise FuseError(
                f"{layer} has the old torch.nn.utils.{kind}, whose weight cannot be copied: use "
                f"torch.nn.utils.parametrizations.{kind}"
            )
        if getattr(one, "sparse", False) is True and isinstance(one, nn.Embedding | nn.EmbeddingBag):
            raise FuseError(
                f"{layer} has sparse gradients, and a group keeps one dense row per member: make it with sparse=False"
            )
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise FuseError(f"parameter {name} has no size yet: call the lazy model once before fuse")
        if parameter.grad_fn is not None:
            raise FuseError(f"parameter {name} is computed from others, so no optimizer can train it")


def refuse_loss(loss_fn: Any) -> None:
    """Rejects a loss with its own parameters, which nothing would train.

    Raises:
        FuseError: names the parameter.
    """
    if isinstance(loss_fn, nn.Module):
        for name, one in loss_fn.named_parameters():
            if one.requires_grad:
                raise FuseError(f"the loss has a trainable parameter, {name}: make it part of the model")
