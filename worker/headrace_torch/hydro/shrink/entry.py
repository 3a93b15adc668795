"""`shrink`: from a factory, or from a module."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal

from torch import Tensor, nn

from headrace_torch.hydro.errors import ShrinkError
from headrace_torch.hydro.shrink.family import Family, accepted
from headrace_torch.hydro.shrink.inputs import given_inputs, guess_inputs
from headrace_torch.hydro.shrink.rebuild import ModuleSource
from headrace_torch.hydro.shrink.source import FactorySource, base_sizes
from headrace_torch.hydro.shrink.surrogate import Surrogate


def shrink(
    model: Callable[..., nn.Module] | nn.Module,
    *,
    width: int | None = None,
    depth: int | None = None,
    scale: int | None = None,
    target: Mapping[str, int] | None = None,
    inputs: Tensor | Sequence[Tensor] | None = None,
    keep: Collection[str] = (),
    accept: Collection[str] = (),
    heads: Literal["narrower", "fewer"] = "narrower",
) -> Surrogate:
    """Makes a small model whose best hyperparameters are those of the user's.

    With a factory, models of two widths are compared on the meta device, which is exact. A module is rebuilt layer
    by layer, and a layer that cannot be scaled raises an error with its name; a factory is the better choice if
    there is one.

    Args:
        model: a factory with an argument `width` and perhaps `depth`, or a module.
        width: the surrogate's width, for a factory.
        depth: the surrogate's depth, for a factory; None keeps the target's.
        scale: how many times narrower than the target, instead of a width.
        target: the target's sizes; None means the factory's defaults.
        inputs: one batch as forward() takes it; None guesses one from the layers.
        keep: for a module: names of layers whose width stays unchanged.
        accept: layers that compute with a width in a function, and are correct as they are.
        heads: for a module: what happens to attention's heads. "fewer" keeps their width, as families of models do
            that grow by adding heads; it needs `nn.MultiheadAttention`, or attention that stores the width of its
            heads.

    Raises:
        ShrinkError: the model cannot be scaled that way; names the layer.
        ParametrizationError: no rule fits a parameter.
    """
    if scale is not None and (isinstance(scale, bool) or scale < 1):
        raise ShrinkError(f"scale must be an integer of at least 1, not {scale}")
    if heads not in ("narrower", "fewer"):
        raise ShrinkError(f'heads is "narrower" or "fewer", not {heads!r}')
    fewer = heads == "fewer"
    given = None if inputs is None else given_inputs(inputs)
    if isinstance(model, nn.Module):
        if width is not None or depth is not None or target is not None:
            raise ShrinkError("a module is shrunk by scale=; width, depth and target are for a factory")
        if scale is None:
            raise ShrinkError("give the factor: shrink(module, scale=8)")
        source = ModuleSource.of(model, given, keep=accepted(keep), scale=scale, fewer_heads=fewer)
        sizes = {"scale": scale}
        return Family(
            source=source,
            inputs=source.inputs,
            law_sizes=sizes,
            accept=accepted(accept),
            fewer_heads=fewer,
        ).member(sizes)
    if keep:
        raise ShrinkError("keep is for a module; a factory itself decides what does not depend on the width")
    if fewer:
        raise ShrinkError("heads is for a module; a factory itself decides how its heads grow")
    base = base_sizes(model, target)
    sizes = {**base, **_wanted(base, width=width, depth=depth, scale=scale)}
    factory = FactorySource(factory=model, base=base)
    found = given or guess_inputs(factory.skeleton(base))
    family = Family(source=factory, inputs=found, law_sizes=sizes, accept=accepted(accept))
    return family.member(sizes)


def _wanted(
    base: Mapping[str, int], *, width: int | None, depth: int | None, scale: int | None
) -> dict[str, int]:
    if (width is None) == (scale is None) and (width is not None or depth is None):
        raise ShrinkError(
            "give the size: either width= (the surrogate's) or scale= (how many times narrower)"
        )
    wanted: dict[str, int] = {}
    if width is not None:
        wanted["width"] = width
    elif scale is not None:
        if base["width"] % scale:
            raise ShrinkError(f"the target's width {base['width']} cannot be divided by the scale {scale}")
        wanted["width"] = base["width"] // scale
    if depth is not None:
        if "depth" not in base:
            raise ShrinkError("the factory has no argument named depth")
        wanted["depth"] = depth
    for name, value in wanted.items():
        if value < 1:
            raise ShrinkError(f"{name} must be at least 1, not {value}")
    return wanted
