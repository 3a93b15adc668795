"""How each kind of layer changes its width: one table from a layer's class to what happens to its sizes.

A layer learns its input width from the tensor that it is called with, and scales its output width, unless it is
kept. It remains the same object, with new sizes and new parameters on the meta device.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from headrace_torch.hydro.errors import ShrinkError

NARROWEST: Final = 2


@dataclass(slots=True, kw_only=True)
class Resizing:
    """One pass over a model.

    Attributes:
        scale: how many times narrower.
        keep: layers whose output width stays.
        fewer_heads: whether heads of torch's attention keep their width, and become fewer.
        replaced: new parameters by the id of the old: a shared one is replaced once.
        done: names of resized layers, in calling order, with whether their output width was scaled.
        stuck: what is wrong with layers whose output width cannot be scaled.
    """

    scale: int
    keep: frozenset[str]
    fewer_heads: bool = False
    replaced: dict[int, nn.Parameter] = field(default_factory=dict)
    done: dict[str, bool] = field(default_factory=dict)
    stuck: dict[str, ShrinkError] = field(default_factory=dict)

    def scaled(self, size: int, *, what: str, layer: str) -> int:
        """The size divided by the scale.

        A size that does not divide, or would be too narrow, gets some other value, and its error is recorded: the
        layer may turn out to compute an output, whose size stays.
        """
        if layer in self.keep:
            return size
        try:
            return divided(size, self.scale, what=what, layer=layer)
        except ShrinkError as error:
            self.stuck[layer] = error
            rounded = -(-size // self.scale)
            return rounded if rounded >= NARROWEST and rounded != size else size + 1

    def parameter(self, owner: nn.Module, name: str, shape: tuple[int, ...], *, layer: str) -> None:
        """Gives the owner's parameter a new shape; a shared one that already has its new shape must agree."""
        old = getattr(owner, name)
        if old is None or tuple(old.shape) == shape:
            return
        if id(old) not in self.replaced:
            new = nn.Parameter(
                torch.empty(shape, dtype=old.dtype, device="meta"), requires_grad=old.requires_grad
            )
            self.replaced[id(old)] = self.replaced[id(new)] = new
        if tuple(self.replaced[id(old)].shape) != shape:
            raise ShrinkError(
                f"shares its {name} with a layer that makes it {tuple(self.replaced[id(old)].shape)}, not {shape}",
                layer=layer,
            )
        setattr(owner, name, self.replaced[id(old)])


def divided(size: int, scale: int, *, what: str, layer: str) -> int:
    """size / scale.

    Raises:
        ShrinkError: it does not divide, or would be too narrow.
    """
    if size % scale:
        raise ShrinkError(f"{what} of {size} cannot be divided by the scale {scale}", layer=layer)
    if size // scale < NARROWEST:
        raise ShrinkError(
            f"{what} of {size} would become {size // scale} at scale {scale}, which is too narrow; shrink less",
            layer=layer,
        )
    return size // scale


def _linear(layer: nn.Module, args: tuple[Any, ...], name: str, resizing: Resizing) -> bool:
    assert isinstance(layer, nn.Linear)
    incoming, before = args[0].shape[-1], layer.out_features
    shared = resizing.replaced.get(id(layer.weight))
    # A readout that shares the table of words has as many outputs as there are words.
    outgoing = (
        shared.shape[0] if shared is not None else resizing.scaled(before, what="out_features", layer=name)
    )
    resizing.parameter(layer, "weight", (outgoing, incoming), layer=name)
    resizing.parameter(layer, "bias", (outgoing,), layer=name)
    layer.in_features, layer.out_features = incoming, outgoing
    return outgoing != before


def _conv(layer: nn.Module, args: tuple[Any, ...], name: str, resizing: Resizing) -> bool:
    assert isinstance(layer, _ConvNd)
    spatial = len(layer.kernel_size)
    incoming, before = args[0].shape[-1 - spatial], layer.out_channels
    depthwise = layer.groups == layer.in_channels and layer.groups > 1
    if depthwise:
        outgoing, groups = before // layer.groups * incoming, incoming
    else:
        outgoing, groups = resizing.scaled(before, what="out_channels", layer=name), layer.groups
    if incoming % groups or outgoing % groups:
        raise ShrinkError(
            f"{layer.groups} groups do not divide {incoming} incoming and {outgoing} outgoing channels; shrink less",
            layer=name,
        )
    first, second = (incoming, outgoing) if isinstance(layer, _ConvTransposeNd) else (outgoing, incoming)
    resizing.parameter(layer, "weight", (first, second // groups, *layer.kernel_size), layer=name)
    resizing.parameter(layer, "bias", (outgoing,), layer=name)
    layer.in_channels, layer.out_channels, layer.groups = incoming, outgoing, groups
    return outgoing != before and not depthwise


def _embedding(layer: nn.Module, _args: tuple[Any, ...], name: str, resizing: Resizing) -> bool:
    assert isinstance(layer, nn.Embedding | nn.EmbeddingBag)
    before = layer.embedding_dim
    layer.embedding_dim = resizing.scaled(before, what="embedding_dim", layer=name)
    resizing.parameter(layer, "weight", (layer.num_embeddings, layer.embedding_dim), layer=name)
    return layer.embedding_dim != before


def _trailing_norm(layer: nn.Module, args: tuple[Any, ...], name: str, resizing: Resizing) -> bool:
    assert isinstance(layer, nn.LayerNorm | nn.RMSNorm)
    shape = tuple(args[0].shape[-len(layer.normalized_shape) :])
    if shape[-1] < NARROWEST:
        raise ShrinkError(f"would normalize over a width of {shape[-1]}; shrink less", layer=name)
    layer.normalized_shape = shape
    for each in ("weight", "bias"):
        if getattr(layer, each, None) is not None:
            resizing.parameter(layer, each, shape, layer=name)
    return False


def _channel_norm(layer: nn.Module, args: tuple[Any, ...], name: str, resizing: Resizing) -> bool:
    assert isinstance(layer, _NormBase)
    layer.num_features = args[0].shape[1]
    for each in ("weight", "bias"):
        resizing.parameter(layer, each, (layer.num_features,), layer=name)
    for each in ("running_mean", "running_var"):
        if (old := getattr(layer, each)) is not None:
            setattr(layer, each, torch.empty(layer.num_features, dtype=old.dtype, device="meta"))
    return False


def _group_norm(layer: nn.Module, args: tuple[Any, ...], name: str, resizing: Resizing) -> bool:
    assert isinstance(layer, nn.GroupNorm)
    channels = args[0].shape[1]
    if channels % layer.num_groups:
        raise ShrinkError(
            f"{layer.num_groups} groups do not divide {channels} channels; shrink less", layer=name
        )
    layer.num_channels = channels
    for each in ("weight", "bias"):
        resizing.parameter(layer, each, (channels,), layer=name)
    return False


def _prelu(layer: nn.Module, args: tuple[Any, ...], name: str, resizing: Resizing) -> bool:
    assert isinstance(layer, nn.PReLU)
    if layer.num_parameters > 1:
        layer.num_parameters = args[0].shape[1]
        resizing.parameter(layer, "weight", (layer.num_parameters,), layer=name)
    return False


def _attention(layer: nn.Module, args: tuple[Any, ...], name: str, resizing: Resizing) -> bool:
    assert isinstance(layer, nn.MultiheadAttention)
    query, key, value = (one.shape[-1] for one in args[:3])
    if resizing.fewer_heads:
        if query % layer.head_dim:
            raise ShrinkError(
                f"heads of a width of {layer.head_dim} do not divide an embed_dim of {query}; shrink less, or let "
                'them get narrower with heads="narrower"',
                layer=name,
            )
        layer.num_heads = query // layer.head_dim
    if query % layer.num_heads:
        raise ShrinkError(
            f"{layer.num_heads} heads do not divide an embed_dim of {query}; shrink less, or use fewer heads",
            layer=name,
        )
    if query // layer.num_heads < NARROWEST:
        raise ShrinkError(f"heads would have a width of {query // layer.num_heads}; shrink less", layer=name)
    shapes = {
        "in_proj_weight": (3 * query, query),
        "q_proj_weight": (query, query),
        "k_proj_weight": (query, key),
        "v_proj_weight": (query, value),
        "in_proj_bias": (3 * query,),
        "bias_k": (1, 1, query),
        "bias_v": (1, 1, query),
    }
    for each, shape in shapes.items():
        resizing.parameter(layer, each, shape, layer=name)
    resizing.parameter(layer.out_proj, "weight", (query, query), layer=name)
    resizing.parameter(layer.out_proj, "bias", (query,), layer=name)
    layer.out_proj.in_features = layer.out_proj.out_features = query
    layer.embed_dim, layer.kdim, layer.vdim = query, key, value
    layer.head_dim = query // layer.num_heads
    return False


Resize = Callable[[nn.Module, tuple[Any, ...], str, Resizing], bool]
# The first class that a layer is an instance of decides; each entry returns whether it scaled a width by itself.
RESIZE: Final[Mapping[type[nn.Module], Resize]] = {
    nn.Linear: _linear,
    _ConvNd: _conv,
    nn.Embedding: _embedding,
    nn.EmbeddingBag: _embedding,
    nn.LayerNorm: _trailing_norm,
    nn.RMSNorm: _trailing_norm,
    _NormBase: _channel_norm,
    nn.GroupNorm: _group_norm,
    nn.PReLU: _prelu,
    nn.MultiheadAttention: _attention,
}


def resize_for(layer: nn.Module) -> Resize | None:
    """The entry for a layer, if there is one."""
    return next((resize for kind, resize in RESIZE.items() if isinstance(layer, kind)), None)


def is_tensor(value: object) -> bool:
    """Whether a layer was called with a tensor, whose width it can learn."""
    return isinstance(value, Tensor)
