"""All sizes of one architecture, and how each member differs from the base: shapes and uses of widths are
compared.

The base is the user's own model at its full size. It is never filled with values here: its shapes, and one forward
pass on the meta device, are enough.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from headrace_torch.hydro.errors import ParametrizationError, ShrinkError
from headrace_torch.hydro.gate import GateResult
from headrace_torch.hydro.parametrize.kinds import Growth, Kind, Shape, growth_of, length_of
from headrace_torch.hydro.parametrize.rules import (
    ATTENTION_POWER,
    INITIAL_STD,
    OUTPUT_POWER,
    RESIDUAL_POWER,
)
from headrace_torch.hydro.shrink.blocks import check_residual, residual_blocks
from headrace_torch.hydro.shrink.initial import InitialLaw, Kin, fans_of, lengths
from headrace_torch.hydro.shrink.inputs import Inputs
from headrace_torch.hydro.shrink.source import Sizes, Source, shapes_of
from headrace_torch.hydro.shrink.surrogate import ForwardMultipliers, Surrogate
from headrace_torch.hydro.shrink.usage import Event, Usage, record_usage

NARROWEST: Final = 2
_MATRIX_OWNERS: Final = (nn.Linear, _ConvNd, nn.RNNBase, nn.RNNCellBase, nn.MultiheadAttention)


@dataclass(slots=True, kw_only=True, eq=False)
class Family:
    """Makes members; measures the laws of initialisation once, at `law_sizes`. Keeps the last coordinate checks.

    With `fewer_heads`, a member whose heads have another width than the base's is rejected.
    """

    source: Source
    inputs: Inputs
    law_sizes: Sizes
    accept: frozenset[str] = frozenset()
    fewer_heads: bool = False
    gates: dict[str, GateResult] = field(default_factory=dict, init=False, repr=False)
    _laws: dict[bool, Mapping[Kin, InitialLaw | None]] = field(default_factory=dict, init=False, repr=False)
    _references: dict[int, tuple[nn.Module, Usage]] = field(default_factory=dict, init=False, repr=False)

    def member(self, sizes: Sizes) -> Surrogate:
        """Compares a model of these sizes with the base.

        Raises:
            ShrinkError: it cannot be built or run, is too narrow, has no width, changes its outputs' sizes, or
                computes with a width in a way that the rules cannot see; names the layer.
        """
        here = self.source.skeleton(sizes)
        depth = sizes.get("depth", 1)
        base_sizes = {**self.source.base, **({"depth": depth} if "depth" in sizes else {})}
        base, base_usage = self._reference(base_sizes, depth)
        growths = self._growths(here, base, base_sizes)
        usage = self._usage(here, sizes)
        if usage.output_shapes != base_usage.output_shapes:
            raise ShrinkError(
                f"the outputs are {usage.output_shapes} here and {base_usage.output_shapes} in the base model: "
                "inputs and outputs must not depend on the width"
            )
        depth_ratio = depth / self.source.base.get("depth", 1)
        blocks = self._blocks(here, sizes) if depth_ratio != 1 else ()
        inside = tuple(f"{name}." for name in blocks)
        return Surrogate(
            family=self,
            sizes=dict(sizes),
            growths=growths,
            forward=ForwardMultipliers(
                inputs={
                    **_readouts(here, base),
                    **_marked(usage, base_usage),
                },
                attention=self._attention(usage, base_usage),
                residual=dict.fromkeys(blocks, depth_ratio**RESIDUAL_POWER),
            ),
            depth_ratio=depth_ratio,
            in_blocks=frozenset(name for name in growths if name.startswith(inside))
            if inside
            else frozenset(),
        )

    def _reference(self, sizes: Sizes, depth: int) -> tuple[nn.Module, Usage]:
        """The base at a depth, and what its forward pass does."""
        if depth not in self._references:
            model = self.source.skeleton(sizes)
            self._references[depth] = (model, self._usage(model, sizes))
        return self._references[depth]

    def _usage(self, skeleton: nn.Module, sizes: Sizes) -> Usage:
        """Runs the skeleton; with values, if the forward pass needs them (for an `.item()`, for example)."""
        inputs = self.inputs.example()
        try:
            return record_usage(skeleton, inputs)
        except ShrinkError:
            if not any(one.is_meta for one in skeleton.parameters()):
                raise
        with torch.random.fork_rng(devices=[]):
            return record_usage(self.source.make(sizes), inputs)

    def _growths(self, here: nn.Module, base: nn.Module, base_sizes: Sizes) -> dict[str, Growth]:
        other_sizes = {**self.source.another_width(base_sizes)}
        if "depth" in base_sizes:
            other_sizes["depth"] = base_sizes["depth"]
        shapes, base_shapes = shapes_of(here), shapes_of(base)
        other_shapes = shapes_of(self.source.skeleton(other_sizes))
        if odd := sorted(shapes.keys() ^ base_shapes.keys()):
            raise ShrinkError(
                "is a parameter at one width only; a factory must name its layers alike", layer=odd[0]
            )
        matrices = set(_matrices(here))
        transposed = {
            f"{name}.weight" for name, module in here.named_modules() if isinstance(module, _ConvTransposeNd)
        }
        found = {}
        for name, own in shapes.items():
            shape, base_shape, other = own, base_shapes[name], other_shapes[name]
            if name in transposed:
                shape, base_shape, other = _swapped(shape), _swapped(base_shape), _swapped(other)
            found[name] = growth_of(name, shape, base_shape, other, table=name not in matrices)
            _check_size(name, shape, base_shape, other)
        for name, rows in lengths(base_shapes).items():
            found[name] = length_of(found[name], found[rows], other_shapes[rows])
        if all(one.kind is Kind.FIXED for one in found.values()):
            raise ShrinkError(
                "no parameter's size depends on the width: there is no hidden dimension to shrink"
            )
        return found

    def initial(self, growths: Mapping[str, Growth], *, depth: int) -> dict[str, float]:
        """Factors that turn the user's initial spread into the base's times the power in the rule."""
        base_depth = self.source.base.get("depth", 1)
        at_base = depth == base_depth and all(one.shape == one.base_shape for one in growths.values())
        if at_base:
            return {}
        with_depth = depth != base_depth
        if with_depth not in self._laws:
            self._laws[with_depth] = self.source.initial_laws(self.law_sizes, depth=with_depth)
        laws, kin = (
            self._laws[with_depth],
            self.source.kin({**self.law_sizes, **_depth(self.law_sizes, depth)}),
        )
        shapes = {name: one.shape for name, one in growths.items()}
        base_shapes = {name: one.base_shape for name, one in growths.items()}
        factors = {}
        for name, growth in growths.items():
            if kin[name] not in laws:
                raise ParametrizationError(
                    f"{name}: no block of a model of {dict(self.law_sizes)} has this parameter, so nothing shows "
                    "how its initial values depend on the width; shrink to a depth that has all kinds of blocks"
                )
            if (law := laws[kin[name]]) is None:
                continue
            wanted = INITIAL_STD[growth.kind].of(growth, depth_ratio=1.0)
            user = law.std(fans_of(name, shapes), depth) / law.std(fans_of(name, base_shapes), base_depth)
            if abs(wanted / user - 1) > 1e-12:
                factors[name] = wanted / user
        return factors | {name: factors[rows] for name, rows in lengths(shapes).items() if rows in factors}

    def _attention(self, usage: Usage, base_usage: Usage) -> dict[str, float]:
        """Multipliers of the modules whose forward pass calls an attention function."""
        found: dict[str, float] = {}
        marked = {event.owner for event in usage.events if event.what.startswith("query:")}
        readout = {event.owner for event in usage.events if event.what.startswith("readout:")}
        for here, base in _pairs(usage, base_usage):
            ratio = here.summed / base.summed
            if ratio == 1:
                continue
            if self.fewer_heads and (here.what == "attention" or here.what.startswith("query:")):
                raise ShrinkError(
                    f"its heads would have a width of {here.summed}, not {base.summed}: it keeps their number; let it "
                    'store their width instead, give a factory, or let them get narrower with heads="narrower"',
                    layer=here.owner,
                )
            if here.what == "attention":
                if here.summed < NARROWEST:
                    raise ShrinkError(
                        f"attention heads would have a width of {here.summed}", layer=here.owner
                    )
                if found.setdefault(here.owner, ratio**ATTENTION_POWER) != ratio**ATTENTION_POWER:
                    raise ShrinkError("its attentions have heads of different widths", layer=here.owner)
            elif here.what == "scores" and here.owner not in marked | self.accept:
                raise ShrinkError(
                    f"multiplies activations over a width ({base.summed} in the base model), of unknown scale: "
                    "use scaled_dot_product_attention, mark the queries with hydro.Query, or accept it "
                    f"unchanged with accept=[{here.owner!r}]",
                    layer=here.owner,
                )
            elif (
                here.what == "product"
                and here.result == base.result
                and here.owner not in readout | self.accept
            ):
                raise ShrinkError(
                    f"multiplies with a parameter from a width ({base.summed} in the base model) to a fixed size "
                    f"({here.result}) by a function, so there is no layer to scale: use an nn.Linear (it may share its "
                    "weight), mark the input with hydro.Readout, or accept it "
                    f"unchanged with accept=[{here.owner!r}]",
                    layer=here.owner,
                )
        for name in found:
            if any(other.startswith(f"{name}.") for other in found):
                raise ShrinkError("computes attention, and so does a layer inside it", layer=name)
        return {"" if name == "(model)" else name: value for name, value in found.items() if value != 1}

    def _blocks(self, here: nn.Module, sizes: Sizes) -> tuple[str, ...]:
        deeper = self.source.skeleton({**sizes, "depth": 2 * sizes["depth"]})
        blocks = residual_blocks(here, deeper)
        check_residual(self.source.make(sizes), blocks, self.inputs.example())
        return blocks


def _depth(sizes: Sizes, depth: int) -> dict[str, int]:
    return {"depth": depth} if "depth" in sizes else {}


def _check_size(name: str, shape: Shape, base: Shape, other: Shape) -> None:
    for size, one, two in zip(shape, base, other, strict=True):
        if one != two and size < min(NARROWEST, one):
            raise ShrinkError(
                f"{name.rpartition('.')[2]} of {base} would become {shape}: a width of {size} is too narrow "
                f"(least: {NARROWEST}); shrink less",
                layer=name.rpartition(".")[0] or "(model)",
            )


def _pairs(usage: Usage, base_usage: Usage) -> Iterator[tuple[Event, Event]]:
    if [(one.owner, one.what) for one in usage.events] != [
        (one.owner, one.what) for one in base_usage.events
    ]:
        raise ShrinkError("the forward pass computes other things at another width; it cannot be compared")
    return zip(usage.events, base_usage.events, strict=True)


def _marked(usage: Usage, base_usage: Usage) -> dict[str, float]:
    """Multipliers of the modules that mark queries and inputs of readouts."""
    found = {}
    for here, base in _pairs(usage, base_usage):
        what, _, name = here.what.partition(":")
        if name and here.summed != base.summed:
            power = ATTENTION_POWER if what == "query" else OUTPUT_POWER
            found[name] = (here.summed / base.summed) ** power
    return found


def _readouts(here: nn.Module, base: nn.Module) -> dict[str, float]:
    """Multipliers of layers from a width to fixed sizes."""
    found = {}
    base_modules = dict(base.named_modules())
    for name, module in here.named_modules():
        if isinstance(module, nn.Linear | _ConvNd):
            shape, base_shape = tuple(module.weight.shape), tuple(base_modules[name].weight.shape)
            if isinstance(module, _ConvTransposeNd):
                shape, base_shape = _swapped(shape), _swapped(base_shape)
            if shape[0] == base_shape[0] and shape[1] != base_shape[1]:
                found[name] = (shape[1] / base_shape[1]) ** OUTPUT_POWER
    return found


def _matrices(model: nn.Module) -> Iterator[str]:
    """Parameters that multiply, by the layer that owns them; a tied one that is also looked up is a table."""
    tables = {id(one.weight) for one in model.modules() if isinstance(one, nn.Embedding | nn.EmbeddingBag)}
    owners = dict(model.named_modules())
    for name, parameter in model.named_parameters():
        owner, _, leaf = name.rpartition(".")
        if "weight" in leaf and isinstance(owners[owner], _MATRIX_OWNERS) and id(parameter) not in tables:
            yield name


def _swapped(shape: Shape) -> Shape:
    return (shape[1], shape[0], *shape[2:])


def accepted(accept: Collection[str]) -> frozenset[str]:
    """Names as given, checked to be a collection of names and not one string."""
    if isinstance(accept, str):
        raise ShrinkError(f"accept must be a list of layers' names, not the string {accept!r}")
    return frozenset(accept)
