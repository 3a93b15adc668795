"""Residual blocks: which layers a factory repeats with the depth, and whether they add to their input.

CompleteP scales what a block adds by 1/depth (Dey et al. 2025, eq. 3 with α = 1). A block is the repeated unit; if
it holds two residual branches in a row, as in a transformer, the multiplier acts on what both add together.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headrace_torch.hydro.errors import ShrinkError
from headrace_torch.hydro.shrink.blame import ROOT


def residual_blocks(here: nn.Module, deeper: nn.Module) -> tuple[str, ...]:
    """The names, in this model, of the layers of which a deeper model has more.

    Raises:
        ShrinkError: the depth changes nothing, or changes more than the length of lists of layers.
    """
    known = {name for name, _ in here.named_modules()}
    lists: dict[str, None] = {}
    for name, _ in deeper.named_modules():
        parent = name.rpartition(".")[0]
        if name not in known and parent in known:
            lists[parent] = None
    if not lists:
        raise ShrinkError("the depth changes no list of layers; is it used by the factory?")
    modules = dict(here.named_modules())
    blocks = []
    for name in lists:
        if not isinstance(modules[name], nn.ModuleList | nn.Sequential):
            raise ShrinkError(
                "gets other layers with the depth, and is no list of blocks (nn.ModuleList or nn.Sequential)",
                layer=name or ROOT,
            )
        blocks += [f"{name}.{child}" if name else child for child, _ in modules[name].named_children()]
    return tuple(blocks)


def check_residual(model: nn.Module, blocks: Sequence[str], inputs: tuple[Tensor, ...]) -> None:
    """Checks that blocks pass their input on: with all their parameters zero they must return it.

    Args:
        model: with values; they are changed.
        blocks: the names of the blocks.
        inputs: positional arguments of the forward pass.

    Raises:
        ShrinkError: one does not, so that scaling what it adds has no meaning.
    """
    modules = dict(model.named_modules())
    seen: dict[str, tuple[Any, Any]] = {}
    for name in blocks:
        with torch.no_grad():
            for parameter in modules[name].parameters():
                parameter.zero_()

        def keep(_module: nn.Module, args: tuple[Any, ...], output: Any, name: str = name) -> None:
            seen[name] = (args[0] if args else None, output)

        modules[name].register_forward_hook(keep)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        model.eval()(*inputs)
    for name in blocks:
        before, after = seen.get(name, (None, None))
        if not _passed_on(before, after):
            raise ShrinkError(
                "is repeated with the depth but does not add to its input (with all parameters zero it returns "
                "something else): the depth rules are for residual blocks; keep the depth and shrink the width only",
                layer=name,
            )


def _passed_on(before: Any, after: Any) -> bool:
    if not isinstance(before, Tensor) or not isinstance(after, Tensor) or before.shape != after.shape:
        return False
    return torch.equal(before, after) or torch.equal(before.relu(), after)
