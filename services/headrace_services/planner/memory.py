"""Bytes of one layer on one device: what stands there all the time, and what each micro-batch in flight saves.

Parameters, gradients and Adam's moments take 16 bytes a parameter in mixed precision; ZeRO (Rajbhandari et al. 2020,
section 5) divides shares of that over o ranks. Activations follow Korthikanti et al. 2022, table 2.
"""

from enum import IntEnum
from math import gcd

from headrace_services.planner.degrees import Degrees
from headrace_services.planner.layer_cost import BYTES, AttentionKernel, Shape
from headrace_services.planner.model import Layer

PARAMETER_BYTES = 16
SCORE_BYTES = 5
"""Per score: 2 for the softmax, 2 for its dropout, 1 for the mask."""


class ZeroStage(IntEnum):
    """What optimizer sharding divides."""

    OPTIMIZER = 1
    GRADIENTS = 2
    PARAMETERS = 3


def bytes_per_parameter(zero: ZeroStage, shards: int) -> float:
    """16 unsharded; 4 + 12/o, 2 + 14/o and 16/o at stages 1, 2 and 3."""
    kept = {ZeroStage.OPTIMIZER: 4, ZeroStage.GRADIENTS: 2, ZeroStage.PARAMETERS: 0}[zero]
    return kept + (PARAMETER_BYTES - kept) / shards


def local_parameters(layer: Layer, degrees: Degrees) -> tuple[float, float]:
    """Parameters of one device before optimizer sharding: those of every data rank, and those of its experts."""
    dense = layer.parameters_split / degrees.m + layer.parameters_replicated
    return dense, layer.parameters_expert / (degrees.m * degrees.e)


def expert_shards(degrees: Degrees) -> int:
    """Over how many ranks an expert's optimizer state is divided: only d/e ranks hold the same expert."""
    return gcd(degrees.o, degrees.d // degrees.e)


def static_bytes(layer: Layer, degrees: Degrees, zero: ZeroStage) -> float:
    """Parameters, gradients and optimizer state of a layer on one device."""
    dense, expert = local_parameters(layer, degrees)
    shared = dense * bytes_per_parameter(zero, degrees.o)
    return shared + expert * bytes_per_parameter(zero, expert_shards(degrees))


def saved_bytes(layer: Layer, shape: Shape) -> float:
    """Activations that one micro-batch saves when the layer is not recomputed.

    For a GPT block Sbh(10 + 24/t + 5kS/(ht)); with sequence parallelism Sbh(34 + 5kS/h)/t; without the last term where
    scores are not saved (selective recomputation, flash attention)."""
    replicated = layer.saved_replicated / shape.t if shape.sequence_parallel else layer.saved_replicated
    per_token = replicated + layer.saved_split / shape.t
    if shape.attention is AttentionKernel.MATERIALISED:
        per_token += SCORE_BYTES * layer.heads * shape.sequence / shape.t
    return shape.tokens * per_token


def checkpoint_bytes(layer: Layer, shape: Shape) -> float:
    """Activations that one micro-batch saves when the layer is recomputed: its input, 2Sbh."""
    return BYTES * shape.tokens * layer.hidden
