"""What is trained: a chain of layers, each given by its matrix products, parameters and activations.

Layers are plain numbers, so that one formula serves both a single plan (floats) and a fit over a table of measured
rows (NumPy arrays): all arithmetic below works element by element. `blocks` checks what a user writes; nothing
here validates.
"""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class LayerKind(StrEnum):
    """The role of a layer in the chain. Only blocks can be recomputed."""

    EMBEDDING = "embedding"
    BLOCK = "block"
    HEAD = "head"


class AttentionKernel(StrEnum):
    """How attention scores are treated (Korthikanti et al. 2022, section 5; Dao et al. 2022)."""

    MATERIALISED = "materialised"
    """Scores are in memory and are saved for the backward pass."""
    SELECTIVE = "selective"
    """Scores are in memory, are not saved, and are recomputed."""
    FLASH = "flash"
    """Scores never leave the chip."""


class Split(StrEnum):
    """Which side of a weight matrix tensor parallelism splits."""

    OUTER = "outer"
    INNER = "inner"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemm:
    """A product (rows·tokens × inner) · (inner × outer)."""

    inner: float
    outer: float
    split: Split
    rows: float = 1.0
    """Rows per token: 1, or the number of experts a token visits."""
    experts: float = 1
    """Matrices that share the rows: 1, or the number of routed experts."""
    grouped: float = 0
    """The part of `outer` for keys and values with fewer heads than queries; 0 if there are as many."""
    kv_heads: float = 1
    """How many tensor ranks can divide `grouped`; further ranks hold copies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerProfile:
    """The measured costs of a layer, by micro-batch size (`layer_profile`)."""

    micro_batches: tuple[int, ...]
    """The measured sizes, ascending; each tuple below has a number for each."""
    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    weight_s: tuple[float, ...]
    """The part of the backward pass that computes weight gradients; 0 if it was not measured separately."""
    activation_bytes: tuple[float, ...]
    """Saved for the backward pass if the layer is not recomputed."""
    input_bytes: tuple[float, ...]
    """Saved if it is, and sent if a stage starts with it."""
    forward_flops: float = 0.0
    """Of one sample; 0 if unknown."""
    recomputable: bool = True

    def seconds(self, measured: tuple[float, ...], micro_batch: float) -> float:
        """Seconds of a micro-batch: interpolated between two sizes, in proportion beyond, never below the smallest
        size's."""
        return self._at(measured, max(micro_batch, self.micro_batches[0]))

    def bytes(self, measured: tuple[float, ...], micro_batch: float) -> float:
        """Bytes of a micro-batch: interpolated between two sizes, and in proportion on both sides."""
        smallest = self.micro_batches[0]
        if micro_batch < smallest:
            return measured[0] * micro_batch / smallest
        return self._at(measured, micro_batch)

    def _at(self, measured: tuple[float, ...], micro_batch: float) -> float:
        sizes = self.micro_batches
        if micro_batch >= sizes[-1]:
            return measured[-1] * micro_batch / sizes[-1]
        place = bisect_right(sizes, micro_batch) - 1
        share = (micro_batch - sizes[place]) / (sizes[place + 1] - sizes[place])
        return measured[place] + share * (measured[place + 1] - measured[place])


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One link of the chain. Activations are bytes per token, at 2 bytes per number (Korthikanti et al. 2022,
    section 4)."""

    name: str
    kind: LayerKind
    hidden: float
    gemms: tuple[Gemm, ...] = ()
    heads: float = 0
    score_width: float = 0
    """heads × width of a query head: the inner size of QKᵀ."""
    value_width: float = 0
    """heads × width of a value head."""
    parameters_split: float = 0
    """Parameters that tensor parallelism divides."""
    parameters_replicated: float = 0
    parameters_expert: float = 0
    """Parameters of routed experts: divided by tensor and by expert parallelism."""
    saved_split: float = 0
    """Activation bytes per token that tensor parallelism divides: 24h for a GPT block."""
    saved_replicated: float = 0
    """Activation bytes per token on every tensor rank, unless the sequence is split too: 10h for a GPT block."""
    experts: int = 0
    top_k: float = 0
    capacity: float = 1.0
    vocabulary: float = 0
    kv_heads: float = 0
    """Heads of keys and values if they are fewer than those of queries, else 0."""
    kv_width: float = 0
    """kv_heads × width of a head."""
    divided: tuple[tuple[str, int], ...] = ()
    """What tensor ranks must divide evenly, by name."""
    attention: AttentionKernel | None = None
    """How its scores are treated, if that differs from the other layers."""
    profile: LayerProfile | None = None
    """Its measured costs, which then replace all formulas."""

    def copies(self, t: float) -> float:
        """The share of keys and values that each of t tensor ranks holds beyond 1/t: copies, if t > kv_heads."""
        return max(1 / self.kv_heads - 1 / t, 0.0) if self.kv_heads else 0.0

    @property
    def parameters(self) -> float:
        """All parameters of the layer."""
        return self.parameters_split + self.parameters_replicated + self.parameters_expert

    @property
    def recomputable(self) -> bool:
        """Whether its activations can be dropped and recomputed."""
        return self.kind is LayerKind.BLOCK and (self.profile is None or self.profile.recomputable)

    def forward_flops(self, sequence: float) -> float:
        """FLOPs per token of one forward pass, with full (not causal) attention."""
        if self.profile is not None:
            return self.profile.forward_flops / sequence
        products = sum((2 * gemm.rows * gemm.inner * gemm.outer for gemm in self.gemms), 0.0)
        return products + 2 * sequence * (self.score_width + self.value_width)


VOCABULARY_UNIT = 128
"""Each tensor rank holds a multiple of this many words (Megatron-LM's `--make-vocab-size-divisible-by`)."""


def padded_vocabulary(vocabulary: float, t: int) -> float:
    """The vocabulary with the words added so that t tensor ranks can divide it."""
    unit = VOCABULARY_UNIT * t
    return -(-vocabulary // unit) * unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A chain of layers, first to last, with the length of its sequences in tokens."""

    name: str
    layers: tuple[Layer, ...]
    sequence: int
    source: str = ""
    description: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """What it was made from (`blocks`), for emitters."""
    tied: bool = False
    """Whether the head shares the embedding's matrix. First and last stage both hold it; a single stage holds it
    once."""
    notes: tuple[str, ...] = ()
    """What is not known about it, in words."""

    @property
    def parameters(self) -> float:
        """All parameters; a tied matrix counts once."""
        twice = sum(layer.parameters_split for layer in self.layers if layer.kind is LayerKind.HEAD)
        return sum(layer.parameters for layer in self.layers) - (twice if self.tied else 0)

    @property
    def profiled(self) -> bool:
        """Whether its layers are measured instead of described."""
        return self.layers[0].profile is not None

    @property
    def experts(self) -> int:
        """The number of routed experts of its largest mixture layer; 0 for a dense model."""
        return max(layer.experts for layer in self.layers)

    def model_flops(self, batch: int) -> float:
        """FLOPs of one iteration, forward and backward, without recomputation.

        For a GPT this is 72·B·S·L·h²·(1 + S/6h + V/12Lh) (Narayanan et al. SC'21, section 5.1, without the fourth
        pass that recomputes). Attention is counted in full, not causal; of experts, only those that a token visits
        count.
        """
        forward = sum(layer.forward_flops(self.sequence) for layer in self.layers)
        return 3.0 * forward * batch * self.sequence
