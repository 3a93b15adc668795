"""A plain module as a source of narrower models: its own forward pass, run once on the meta device, resizes its layers.

No graph is traced, so a forward pass may unpack shapes, branch on them and loop. Two things are searched for, both
by running and checking the outputs: which layers compute the outputs, whose sizes must stay, and which sizes of
the user's own `nn.Parameter`s are widths. A failure raises an error with the layer's name.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from headrace_torch.hydro.errors import ShrinkError
from headrace_torch.hydro.shrink.blame import ROOT, failing_layer
from headrace_torch.hydro.shrink.initial import InitialLaw, Kin, kin_of
from headrace_torch.hydro.shrink.inputs import Inputs, guess_inputs
from headrace_torch.hydro.shrink.resize import NARROWEST, Resizing, is_tensor, resize_for
from headrace_torch.hydro.shrink.sampling import is_constant, sample_like
from headrace_torch.hydro.shrink.source import Sizes
from headrace_torch.hydro.shrink.usage import tensors_in

BASE: Final = {"scale": 1}
ATTEMPTS: Final = 200


@dataclass(slots=True, kw_only=True)
class ModuleSource:
    """Makes narrower models of a module. The module is neither changed nor run."""

    module: nn.Module
    inputs: Inputs
    keep: frozenset[str] = frozenset()
    fewer_heads: bool = False
    probe_scale: int = 2
    base: Sizes = field(default_factory=lambda: dict(BASE))
    _skeletons: dict[int, nn.Module] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(
        cls,
        module: nn.Module,
        inputs: Inputs | None,
        *,
        keep: frozenset[str],
        scale: int,
        fewer_heads: bool = False,
    ) -> "ModuleSource":
        """Wraps a module, and guesses what it is called with if the caller does not say."""
        if unknown := sorted(keep - {name for name, _ in module.named_modules()}):
            raise ShrinkError(f"keep names {unknown[0]!r}, and the model has no such layer")
        _check_weights(module)
        found = inputs or guess_inputs(meta_copy(module))
        return cls(
            module=module,
            inputs=found,
            keep=keep,
            fewer_heads=fewer_heads,
            probe_scale=scale if scale > 1 else 2,
        )

    def make(self, sizes: Sizes) -> nn.Module:
        """A copy at scale 1; else new values, distributed like the module's own."""
        if sizes["scale"] == 1:
            return copy.deepcopy(self.module)
        skeleton = self.skeleton(sizes)
        memo: dict[int, Any] = {}
        originals = dict(self.module.named_parameters())
        for name, parameter in skeleton.named_parameters():
            values = sample_like(originals[name], tuple(parameter.shape))
            memo[id(parameter)] = nn.Parameter(values, requires_grad=parameter.requires_grad)
        buffers = dict(self.module.named_buffers())
        for name, buffer in skeleton.named_buffers():
            memo[id(buffer)] = _new_buffer(name, buffers[name], tuple(buffer.shape))
        return copy.deepcopy(skeleton, memo)

    def skeleton(self, sizes: Sizes) -> nn.Module:
        scale = sizes["scale"]
        if scale not in self._skeletons:
            self._skeletons[scale] = meta_copy(self.module) if scale == 1 else self._rebuilt(scale)
        return copy.deepcopy(self._skeletons[scale])

    def another_width(self, sizes: Sizes) -> Sizes:  # noqa: ARG002 - one width other than the base's is known to work
        return {"scale": self.probe_scale}

    def kin(self, sizes: Sizes) -> Mapping[str, Kin]:  # noqa: ARG002
        """Each parameter alone: a module is not pooled, because its own values can be measured."""
        found = kin_of(self.module, self.module)
        return {name: replace(one, path=name) for name, one in found.items()}

    def initial_laws(self, sizes: Sizes, *, depth: bool) -> Mapping[Kin, InitialLaw | None]:  # noqa: ARG002
        """New values have the base's spread, so nothing is left to measure."""
        every = self.kin(sizes)
        return {
            every[name]: None if is_constant(parameter) else InitialLaw()
            for name, parameter in self.module.named_parameters()
        }

    def _rebuilt(self, scale: int) -> nn.Module:
        inputs = self.inputs.example()
        wanted = _output_shapes(meta_copy(self.module), inputs)
        own = _own_parameters(self.module)
        choices = {name: _choices(tuple(one.shape), scale) for name, one in own.items()}
        model, resizing = _settled(self, scale, self.keep, choices, inputs)
        keep = self.keep
        while wrong := _differing(_output_shapes(model, inputs), wanted):
            for layer in [name for name, did in reversed(resizing.done.items()) if did]:
                try:
                    attempt, now = _settled(self, scale, keep | {layer}, choices, inputs)
                except ShrinkError:
                    continue
                if len(_differing(_output_shapes(attempt, inputs), wanted)) < len(wrong):
                    model, resizing, keep = attempt, now, keep | {layer}
                    break
            else:
                raise ShrinkError(
                    f"cannot tell which layers compute the outputs {wanted}; name them with keep=, or give a factory"
                )
        for error in resizing.stuck.values():
            raise error
        _check_all_resized(model, resizing)
        return model


def _check_weights(module: nn.Module) -> None:
    """Rejects layers that compute their weights: a rebuilt layer has one weight, drawn like its own."""
    for name, one in module.named_modules():
        old = any(isinstance(hook, WeightNorm | SpectralNorm) for hook in one._forward_pre_hooks.values())
        if old or is_parametrized(one):
            raise ShrinkError(
                "its weight is computed (weight norm, spectral norm or another parametrization), so it cannot be "
                "rebuilt at another width; give a factory",
                layer=name,
            )


def meta_copy(module: nn.Module) -> nn.Module:
    """A copy on the meta device, made without copying any value; shared parameters stay shared."""
    memo: dict[int, Any] = {}
    for parameter in module.parameters():
        empty = torch.empty_like(parameter, device="meta")
        memo[id(parameter)] = nn.Parameter(empty, requires_grad=parameter.requires_grad)
    for buffer in module.buffers():
        memo[id(buffer)] = torch.empty_like(buffer, device="meta")
    return copy.deepcopy(module, memo)


def _settled(
    source: ModuleSource,
    scale: int,
    keep: frozenset[str],
    choices: dict[str, list[tuple[int, ...]]],
    inputs: tuple[Tensor, ...],
) -> tuple[nn.Module, Resizing]:
    """Runs until the widths of the user's own parameters fit; a choice that fails is dropped from `choices`."""
    for _ in range(ATTEMPTS):
        model = meta_copy(source.module)
        resizing = Resizing(scale=scale, keep=keep, fewer_heads=source.fewer_heads)
        for name, options in choices.items():
            owner = model.get_submodule(name.rpartition(".")[0])
            leaf = name.rpartition(".")[2]
            old = getattr(owner, leaf)
            shape = tuple(size // scale if dim in options[0] else size for dim, size in enumerate(old.shape))
            resizing.parameter(owner, leaf, shape, layer=name)
        try:
            _resize_while_running(model, resizing, inputs)
        except ShrinkError as error:
            suspect = _suspect(choices, error.layer)
            if suspect is None:
                raise
            choices[suspect] = choices[suspect][1:]
        else:
            return model, resizing
    raise ShrinkError(
        f"no widths of its own parameters were found that fit, in {ATTEMPTS} attempts; give a factory"
    )


def _suspect(choices: Mapping[str, Sequence[tuple[int, ...]]], layer: str) -> str | None:
    """A parameter with choices left whose owner is the failing layer, or is around or before it."""
    names = [name for name, options in choices.items() if len(options) > 1]
    for name in names:
        if (name.rpartition(".")[0] or ROOT) == layer:
            return name
    for name in names:
        owner = name.rpartition(".")[0]
        if not owner or layer.startswith(f"{owner}."):
            return name
    return None


def _resize_while_running(model: nn.Module, resizing: Resizing, inputs: tuple[Tensor, ...]) -> None:
    for name, layer in model.named_modules():
        if (resize := resize_for(layer)) is None:
            continue

        def before(layer: nn.Module, args: tuple[Any, ...], name: str = name, resize: Any = resize) -> None:
            if name not in resizing.done:
                if not args or not is_tensor(args[0]):
                    raise ShrinkError("is called without a tensor by position; give a factory", layer=name)
                resizing.done[name] = resize(layer, args, name, resizing)

        layer.register_forward_pre_hook(before)
    try:
        with torch.device("meta"), torch.no_grad():
            model(*(one.to("meta") for one in inputs))
    except ShrinkError:
        raise
    except Exception as error:
        raise ShrinkError(
            f"cannot run at 1/{resizing.scale} of its width: {error}; it may compute with a width that it stored, "
            "or need values: give a factory instead of a module",
            layer=failing_layer(error, model),
        ) from error
    finally:
        for layer in model.modules():
            layer._forward_pre_hooks.clear()


def _output_shapes(model: nn.Module, inputs: tuple[Tensor, ...]) -> list[tuple[int, ...]]:
    try:
        with torch.device("meta"), torch.no_grad():
            output = model(*(one.to("meta") for one in inputs))
    except Exception as error:
        raise ShrinkError(
            f"the forward pass fails on the meta device: {error}; if it needs values, give a factory",
            layer=failing_layer(error, model),
        ) from error
    return [tuple(one.shape) for one in tensors_in(output)]


def _differing(found: list[tuple[int, ...]], wanted: list[tuple[int, ...]]) -> list[int]:
    if len(found) != len(wanted):
        raise ShrinkError(
            f"has {len(found)} outputs when narrow and {len(wanted)} at full size; give a factory"
        )
    return [index for index, (one, two) in enumerate(zip(found, wanted, strict=True)) if one != two]


def _own_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters of classes that the table does not know: the user's own; other layers of torch's are rejected."""
    found = {}
    owners = dict(module.named_modules())
    inside = tuple(f"{name}." for name, one in owners.items() if isinstance(one, nn.MultiheadAttention))
    for name, parameter in module.named_parameters():
        owner = owners[name.rpartition(".")[0]]
        if resize_for(owner) is not None or (inside and name.startswith(inside)):
            continue
        if type(owner).__module__.startswith("torch.nn."):
            raise ShrinkError(
                f"a {type(owner).__name__} cannot be rebuilt at another width; give a factory",
                layer=name.rpartition(".")[0] or ROOT,
            )
        found[name] = parameter
    return found


def _choices(shape: tuple[int, ...], scale: int) -> list[tuple[int, ...]]:
    """Which sizes may be widths, likeliest first: the last one, all, each other one, none."""
    able = [dim for dim, size in enumerate(shape) if size % scale == 0 and size // scale >= NARROWEST]
    ordered: list[tuple[int, ...]] = []
    for choice in [(len(shape) - 1,), tuple(able), *((dim,) for dim in able)]:
        if choice and set(choice) <= set(able) and choice not in ordered:
            ordered.append(choice)
    return [*ordered, ()]


def _check_all_resized(model: nn.Module, resizing: Resizing) -> None:
    inside = tuple(
        f"{name}." for name, one in model.named_modules() if isinstance(one, nn.MultiheadAttention)
    )
    for name, layer in model.named_modules():
        has_parameters = any(True for _ in layer.parameters(recurse=False))
        if (
            name not in resizing.done
            and has_parameters
            and resize_for(layer)
            and not name.startswith(inside or "\0")
        ):
            raise ShrinkError(
                "is not used by the forward pass of these inputs, so its widths are unknown; give a factory",
                layer=name,
            )


def _new_buffer(name: str, original: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The user's buffer if its size stays; running statistics start over if it does not."""
    if tuple(original.shape) == shape:
        return original.detach().clone()
    fill = 1.0 if name.endswith("running_var") else 0.0
    return torch.full(shape, fill, dtype=original.dtype)
