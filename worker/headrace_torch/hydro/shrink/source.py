"""Where models of any size come from: a factory of the user's, or a module that is rebuilt at other widths.

A source makes models; the rules that make them comparable are the same for both (see `surrogate`).
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import nn

from headrace_torch.hydro.errors import ShrinkError
from headrace_torch.hydro.parametrize.kinds import Shape
from headrace_torch.hydro.shrink.blame import failing_construction
from headrace_torch.hydro.shrink.initial import (
    DEPTH_LAWS,
    LAWS,
    InitialLaw,
    Kin,
    fans_of,
    kin_of,
    lengths,
    match_law,
    spread,
)

Sizes = Mapping[str, int]


class Source(Protocol):
    """Makes models of one architecture."""

    @property
    def base(self) -> Sizes:
        """The sizes of the user's model."""

    def make(self, sizes: Sizes) -> nn.Module:
        """A new model with the user's initial values at these sizes."""

    def skeleton(self, sizes: Sizes) -> nn.Module:
        """A model of these sizes for its shapes; on the meta device if the user's code allows that."""

    def another_width(self, sizes: Sizes) -> Sizes:
        """Sizes whose width differs from the base's: distinguishes widths from fixed sizes."""

    def kin(self, sizes: Sizes) -> Mapping[str, Kin]:
        """Which parameters of a model of these sizes are siblings, here and in models of other sizes."""

    def initial_laws(self, sizes: Sizes, *, depth: bool) -> Mapping[Kin, InitialLaw | None]:
        """How initial values depend on the width, and on the depth if requested, by kin; None for constants.

        It is measured at these sizes and at larger ones.
        """


@dataclass(slots=True, kw_only=True)
class FactorySource:
    """A user's factory with an argument `width`, and optionally `depth`."""

    factory: Callable[..., nn.Module]
    base: Sizes
    _alike: nn.Module | None = field(default=None, init=False, repr=False)

    def make(self, sizes: Sizes) -> nn.Module:
        try:
            model = self.factory(**sizes)
        except Exception as error:
            said = ", ".join(f"{name}={value}" for name, value in sizes.items())
            layer = failing_construction(error, self._alike) if self._alike is not None else ""
            raise ShrinkError(f"cannot be built with {said}: {error}", layer=layer) from error
        if not isinstance(model, nn.Module):
            raise ShrinkError(f"the factory must return an nn.Module, not {type(model).__name__}")
        return model

    def skeleton(self, sizes: Sizes) -> nn.Module:
        if self._alike is None and sizes != self.base:
            self._alike = self.skeleton(self.base)
        try:
            with torch.device("meta"):
                model = self.make(sizes)
        except ShrinkError:
            # The factory may compute with values, which the meta device does not have; if that is not the cause,
            # this raises again.
            with torch.random.fork_rng(devices=[]):
                model = self.make(sizes)
        if sizes == self.base and self._alike is None:
            self._alike = model
        return model

    def another_width(self, sizes: Sizes) -> Sizes:  # noqa: ARG002 - a factory can make any width
        return {**self.base, "width": 2 * self.base["width"]}

    def kin(self, sizes: Sizes) -> Mapping[str, Kin]:
        depth = {"depth": sizes["depth"]} if "depth" in sizes else {}
        base = {**self.base, **depth}
        return kin_of(self.skeleton(base), self.skeleton({**self.another_width(base), **depth}))

    def initial_laws(self, sizes: Sizes, *, depth: bool) -> Mapping[Kin, InitialLaw | None]:
        small = dict(sizes)
        wide = {**small, "width": 4 * small["width"]}
        shapes, wide_shapes = shapes_of(self.skeleton(small)), shapes_of(self.skeleton(wide))
        every = self.kin(small)
        here, there = spread(lambda: self.make(small), every), spread(lambda: self.make(wide), every)
        deeper = self._depth_laws(small, here) if depth else {}
        laws: dict[Kin, InitialLaw | None] = {}
        follow = lengths(shapes)
        for name in shapes:
            kin = every[name]
            if kin in laws:
                continue
            if name in follow or here[kin] == 0 or there[kin] == 0:
                laws[kin] = None
                continue
            fans, wide_fans = fans_of(name, shapes), fans_of(name, wide_shapes)
            predicted = {key: law(*wide_fans) / law(*fans) for key, law in LAWS.items()}
            width_law = match_law(name, there[kin] / here[kin], predicted, axis="width")
            laws[kin] = InitialLaw(width=width_law, depth=deeper.get(kin, "constant"))
        return laws

    def _depth_laws(self, small: Sizes, here: Mapping[Kin, float]) -> dict[Kin, str]:
        deep = {**small, "depth": 4 * small["depth"]}
        there = spread(lambda: self.make(deep), self.kin(deep))
        predicted = {key: law(deep["depth"]) / law(small["depth"]) for key, law in DEPTH_LAWS.items()}
        return {
            kin: match_law(kin.path, there[kin] / value, predicted, axis="depth")
            for kin, value in here.items()
            if value and there.get(kin)
        }


def base_sizes(factory: Callable[..., nn.Module], given: Sizes | None) -> dict[str, int]:
    """The target's sizes: what the user gave, else the defaults of the factory's arguments `width` and `depth`.

    Raises:
        ShrinkError: the factory has no argument `width`, or nothing says how wide the target is.
    """
    parameters = inspect.signature(factory).parameters
    takes_any = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
    if "width" not in parameters and not takes_any:
        raise ShrinkError(
            f"the factory {_name(factory)} has no argument named width, only {', '.join(parameters) or 'none'}"
        )
    sizes: dict[str, int] = {}
    for name in ("width", "depth"):
        if given and name in given:
            sizes[name] = given[name]
        elif name in parameters and isinstance(parameters[name].default, int):
            sizes[name] = parameters[name].default
    if given and (unknown := given.keys() - {"width", "depth"}):
        raise ShrinkError(f"target has {min(unknown)!r}; its sizes are width and depth")
    if "width" not in sizes:
        raise ShrinkError(
            f"the factory {_name(factory)} has no default width: give the target's with target={{'width': …}}"
        )
    if "depth" not in sizes and "depth" in parameters:
        raise ShrinkError(
            f"the factory {_name(factory)} has no default depth: give the target's with target={{'depth': …}}"
        )
    for name, value in sizes.items():
        if value < 1:
            raise ShrinkError(f"the target's {name} must be at least 1, not {value}")
    return sizes


def shapes_of(model: nn.Module) -> dict[str, Shape]:
    """Shapes of the parameters by name."""
    return {name: tuple(one.shape) for name, one in model.named_parameters()}


def _name(factory: Any) -> str:
    return getattr(factory, "__qualname__", type(factory).__name__)
