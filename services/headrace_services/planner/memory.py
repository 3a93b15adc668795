"""Bytes of one layer on one device: what is there permanently, and what each micro-batch in flight saves.

In mixed precision a parameter takes 2 bytes, its gradient 4 (or 2), and Adam 12: a copy in 32 bits and two
moments. ZeRO (Rajbhandari et al. 2020, section 5) divides shares of that over o ranks. Activations follow
Korthikanti et al. 2022, table 2.
"""

from enum import IntEnum, StrEnum
from math import gcd

from headrace_services.planner.degrees import Degrees
from headrace_services.planner.layer_cost import BYTES, Shape
from headrace_services.planner.model import AttentionKernel, Layer, padded_vocabulary

OPTIMIZER_BYTES = 12
"""Bytes of Adam per parameter: a 32-bit copy, momentum and variance."""
SCORE_BYTES = 5
"""Bytes per score: 2 for the softmax, 2 for its dropout, 1 for the mask."""


class ZeroStage(IntEnum):
    """What optimizer sharding divides."""

    OPTIMIZER = 1
    GRADIENTS = 2
    PARAMETERS = 3


class Gradients(StrEnum):
    """The precision in which gradients are kept and summed over micro-batches and data ranks."""

    FP32 = "fp32"
    """Megatron-LM's default with bf16, without `--grad-reduce-in-bf16` (its distributed optimizer's guide: 18
    bytes)."""
    BF16 = "bf16"
    """DeepSpeed's default with bf16, without `grad_accum_dtype`."""

    @property
    def bytes(self) -> int:
        """The bytes of one gradient."""
        return 4 if self is Gradients.FP32 else 2


def bytes_per_parameter(zero: ZeroStage, shards: int, gradients: Gradients) -> float:
    """With 32-bit gradients, 18 unsharded, and 6 + 12/o, 2 + 16/o and 18/o at stages 1, 2 and 3; with 16-bit
    gradients, 2 less."""
    whole = BYTES + gradients.bytes + OPTIMIZER_BYTES
    kept = {ZeroStage.OPTIMIZER: BYTES + gradients.bytes, ZeroStage.GRADIENTS: BYTES, ZeroStage.PARAMETERS: 0}
    return kept[zero] + (whole - kept[zero]) / shards


def local_parameters(layer: Layer, degrees: Degrees) -> tuple[float, float]:
    """Parameters of one device before optimizer sharding: those that every data rank has, and those of its
    experts."""
    split = layer.parameters_split
    if layer.vocabulary:
        split *= padded_vocabulary(layer.vocabulary, degrees.m) / layer.vocabulary
    copied = 2 * layer.hidden * layer.kv_width * layer.copies(degrees.m)
    dense = split / degrees.m + layer.parameters_replicated + copied
    return dense, layer.parameters_expert / (degrees.m * degrees.e)


def expert_shards(degrees: Degrees) -> int:
    """Over how many ranks an expert's optimizer state is divided: only d/e ranks hold the same expert."""
    return gcd(degrees.o, degrees.d // degrees.e)


def static_bytes(layer: Layer, degrees: Degrees, zero: ZeroStage, gradients: Gradients) -> float:
    """Parameters, gradients and optimizer state of a layer on one device."""
    dense, expert = local_parameters(layer, degrees)
    shared = dense * bytes_per_parameter(zero, degrees.o, gradients)
    return shared + expert * bytes_per_parameter(zero, expert_shards(degrees), gradients)


def saved_bytes(layer: Layer, shape: Shape) -> float:
    """Activations that one micro-batch saves if the layer is not recomputed.

    For a GPT block Sbh(10 + 24/t + 5kS/(ht)); with sequence parallelism Sbh(34 + 5kS/h)/t; without the last term
    if scores are not saved (selective recomputation, flash attention).
    """
    if layer.profile is not None:
        return layer.profile.bytes(layer.profile.activation_bytes, shape.micro_batch)
    replicated = layer.saved_replicated / shape.t if shape.sequence_parallel else layer.saved_replicated
    per_token = replicated + layer.saved_split / shape.t + 2 * BYTES * layer.kv_width * layer.copies(shape.t)
    if shape.attention is AttentionKernel.MATERIALISED:
        per_token += SCORE_BYTES * layer.heads * shape.sequence / shape.t
    return shape.tokens * per_token


def checkpoint_bytes(layer: Layer, shape: Shape) -> float:
    """Activations that one micro-batch saves if the layer is recomputed: its input, 2Sbh."""
    if layer.profile is not None:
        return layer.profile.bytes(layer.profile.input_bytes, shape.micro_batch)
    return BYTES * shape.tokens * layer.hidden
