"""Seconds of one layer for one micro-batch on one device. Arguments may be floats or arrays.

Computing, moving and launching are priced separately. A product of n rows runs at its peak share times n/(n + n₀),
and likewise for its widths. Element-wise kernels move a small multiple of the activations that they save. A pass
is never shorter than the launches of its kernels. The two are combined in a fourth-power mean, which is smooth
where a maximum has an edge, so that fitting can follow it.
"""

from dataclasses import dataclass

from headrace_services.planner.cluster import Cluster
from headrace_services.planner.collectives import Group, all_reduce_s, all_to_all_s, hidden_s
from headrace_services.planner.model import AttentionKernel, Gemm, Layer, LayerKind, LayerProfile, Split

BYTES = 2
"""Of a number in 16-bit training."""
TRAFFIC_REPLICATED = 2.0
TRAFFIC_SPLIT = 1.5
"""Bytes that element-wise kernels move in a forward pass, per saved byte: each is written once and read about
once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The shape in which a layer processes a micro-batch."""

    micro_batch: float
    sequence: float
    tensor: Group
    expert: Group
    sequence_parallel: bool = True
    attention: AttentionKernel = AttentionKernel.FLASH

    @property
    def tokens(self) -> float:
        """Tokens of a micro-batch."""
        return self.micro_batch * self.sequence

    @property
    def t(self) -> float:
        """The tensor-parallel degree."""
        return self.tensor.ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTimes:
    """Seconds of a layer's passes for one micro-batch, with their communication."""

    forward_s: float
    backward_s: float
    recompute_s: float
    """Added to the backward pass if the layer is recomputed: one more forward pass."""
    weight_s: float
    """The part of the backward pass that computes weight gradients, which zero-bubble schedules move."""
    communication_s: float
    """The exposed part of tensor- and expert-parallel communication in the forward and backward pass."""

    def scaled(self, factor: float) -> "LayerTimes":
        """All times multiplied by a factor."""
        return LayerTimes(
            forward_s=factor * self.forward_s,
            backward_s=factor * self.backward_s,
            recompute_s=factor * self.recompute_s,
            weight_s=factor * self.weight_s,
            communication_s=factor * self.communication_s,
        )


def layer_times(layer: Layer, shape: Shape, cluster: Cluster) -> LayerTimes:
    """The times of one layer: as profiled, else from its formulas, or as measured if exactly this shape was."""
    if layer.profile is not None:
        return _profiled_times(layer.profile, shape.micro_batch)
    return formula_times(layer, shape, cluster).scaled(measured_factor(layer, shape, cluster))


def _profiled_times(profile: LayerProfile, micro_batch: float) -> LayerTimes:
    forward = profile.seconds(profile.forward_s, micro_batch)
    return LayerTimes(
        forward_s=forward,
        backward_s=profile.seconds(profile.backward_s, micro_batch),
        recompute_s=forward if profile.recomputable else 0.0,
        weight_s=profile.seconds(profile.weight_s, micro_batch),
        communication_s=0.0,
    )


def measured_factor(layer: Layer, shape: Shape, cluster: Cluster) -> float:
    """The factor by which a layer takes longer than its formula; 1 for a shape that was not measured."""
    factor = 1.0
    for one in cluster.device.efficiencies.shapes:
        if one.kind != layer.kind.value:
            continue
        if layer.kind is LayerKind.BLOCK and one.attention != shape.attention.value:
            continue
        if one.sequence_parallel != shape.sequence_parallel and one.tensor > 1:
            continue
        here = (layer.hidden == one.hidden) & (layer.parameters_split == one.parameters)
        here = here & (layer.heads == one.heads) & (shape.sequence == one.sequence)
        here = here & (shape.t == one.tensor) & (shape.micro_batch == one.micro_batch)
        factor = factor + here * (one.factor - 1.0)
    return factor


def formula_times(layer: Layer, shape: Shape, cluster: Cluster) -> LayerTimes:
    """The times of one layer. A backward pass takes two forward passes; the scores of SELECTIVE are computed once
    more."""
    match layer.kind:
        case LayerKind.EMBEDDING:
            once = 2 * BYTES * shape.tokens * layer.hidden / _memory(cluster)
            return LayerTimes(
                forward_s=once, backward_s=once, recompute_s=0.0, weight_s=0.0, communication_s=0.0
            )
        case LayerKind.HEAD:
            return _head_times(layer, shape, cluster)
        case LayerKind.BLOCK:
            return _block_times(layer, shape, cluster)


def _block_times(layer: Layer, shape: Shape, cluster: Cluster) -> LayerTimes:
    constants = cluster.device.efficiencies
    products = sum((gemm_s(gemm, shape, cluster) for gemm in layer.gemms), 0.0)
    scores = _attention_s(layer, shape, cluster)
    compute = products + scores + _elementwise_s(layer, shape, cluster)
    reduce = tensor_reduce_s(layer, shape, cluster)
    exchange = expert_exchange_s(layer, shape, cluster)
    behind = hidden_s(products, constants.overlap_tensor, cluster)
    forward_exposed = _positive(2 * reduce - behind) + 2 * exchange
    backward_exposed = _positive(2 * reduce - 2 * behind) + 2 * exchange
    least = _launch_s(layer, shape, cluster)
    forward = _at_least(compute + forward_exposed, least)
    again = scores if shape.attention is AttentionKernel.SELECTIVE else 0.0
    backward = _at_least(2 * compute + again + backward_exposed, constants.launch_backward * least)
    return LayerTimes(
        forward_s=forward,
        backward_s=backward,
        recompute_s=forward,
        weight_s=products,
        communication_s=forward_exposed + backward_exposed,
    )


def _head_times(layer: Layer, shape: Shape, cluster: Cluster) -> LayerTimes:
    constants = cluster.device.efficiencies
    product = sum((gemm_s(gemm, shape, cluster) for gemm in layer.gemms), 0.0)
    loss = constants.head_traffic * shape.tokens * layer.vocabulary / shape.t / _memory(cluster)
    whole = _at_least(3 * product + loss, constants.head_s)
    return LayerTimes(
        forward_s=whole / 3,
        backward_s=whole * 2 / 3,
        recompute_s=0.0,
        weight_s=product,
        communication_s=0.0,
    )


def gemm_s(gemm: Gemm, shape: Shape, cluster: Cluster) -> float:
    """Seconds of one product. Experts are computed one by one, each with its share of the tokens of e ranks."""
    constants = cluster.device.efficiencies
    inner = gemm.inner / shape.t if gemm.split is Split.INNER else gemm.inner
    outer = gemm.outer / shape.t if gemm.split is Split.OUTER else gemm.outer
    if gemm.grouped:
        outer = outer + gemm.grouped * _positive(1 / gemm.kv_heads - 1 / shape.t)
    rows = shape.tokens * gemm.rows
    rows_each = rows * shape.expert.ranks / gemm.experts if gemm.experts > 1 else rows
    # Multiplied out: the loss relative to the peak is (1 + n₀/n)(1 + w₀/inner)(1 + w₀/outer).
    flops = 2 * rows / rows_each * (rows_each + constants.gemm_rows)
    flops = flops * (inner + constants.gemm_width) * (outer + constants.gemm_width)
    return flops / (cluster.device.peak_flops * constants.gemm)


def tensor_reduce_s(layer: Layer, shape: Shape, cluster: Cluster) -> float:
    """One of the two all-reduces of 2bSh bytes per pass (Shoeybi et al. 2019, section 3).

    With sequence parallelism it is a reduce-scatter and an all-gather of the same volume and time."""
    device, constants = cluster.device, cluster.device.efficiencies
    return all_reduce_s(
        BYTES * shape.tokens * layer.hidden,
        shape.tensor,
        link=device.link_bandwidth * constants.link,
        network=(device.network_bandwidth if shape.tensor.ring is None else shape.tensor.ring)
        * constants.network,
        latency_s=constants.collective_s,
        node_latency_s=constants.collective_s,
    )


def expert_exchange_s(layer: Layer, shape: Shape, cluster: Cluster) -> float:
    """One of the two all-to-alls per pass: 2·b·S·h·top_k·capacity bytes, split over tensor ranks."""
    if not layer.experts or shape.expert.ranks <= 1:
        return 0.0
    volume = BYTES * shape.tokens * layer.hidden * layer.top_k * layer.capacity / shape.t
    return all_to_all_s(volume, shape.expert, cluster)


def _attention_s(layer: Layer, shape: Shape, cluster: Cluster) -> float:
    constants = cluster.device.efficiencies
    flops = 2 * shape.tokens * shape.sequence * (layer.score_width + layer.value_width) / shape.t
    seconds = flops / (cluster.device.peak_flops * constants.attention)
    if shape.attention is AttentionKernel.FLASH:
        return seconds
    numbers = shape.tokens * shape.sequence * layer.heads / shape.t
    return seconds + numbers * (14 + 16 * _unfused(layer, shape)) / _memory(cluster)


def _elementwise_s(layer: Layer, shape: Shape, cluster: Cluster) -> float:
    replicated = layer.saved_replicated / shape.t if shape.sequence_parallel else layer.saved_replicated
    per_token = TRAFFIC_REPLICATED * replicated + TRAFFIC_SPLIT * layer.saved_split / shape.t
    return shape.tokens * per_token / _memory(cluster)


def _launch_s(layer: Layer, shape: Shape, cluster: Cluster) -> float:
    constants = cluster.device.efficiencies
    several = (shape.t > 1) * (constants.launch_tensor_s + constants.launch_rank_s * shape.t)
    unfused: float = 0.0
    if shape.attention is not AttentionKernel.FLASH:
        unfused = _unfused(layer, shape) * constants.launch_unfused_s
    return constants.launch_s + several + unfused


def _unfused(layer: Layer, shape: Shape) -> float:
    """1 if Megatron-LM's fused softmax does not apply: it requires b·heads/t to be a multiple of 4."""
    return ((shape.micro_batch * layer.heads / shape.t) % 4 != 0) * 1.0


def _positive(seconds: float) -> float:
    return seconds * (seconds > 0)


def _at_least(seconds: float, least: float) -> float:
    smooth: float = (seconds**4 + least**4) ** 0.25
    return smooth


def _memory(cluster: Cluster) -> float:
    return cluster.device.memory_bandwidth * cluster.device.efficiencies.memory
