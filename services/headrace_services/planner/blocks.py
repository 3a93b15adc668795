"""From a user's description of a transformer to the layers of the cost model.

A description is a mapping with `vocabulary`, `sequence`, `hidden` and `blocks`, a list of runs of equal blocks.
The presets (`data/models.json`) and Hugging Face configurations use this code too, so all are checked in the same
way.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from headrace_services.planner.checking import Checker
from headrace_services.planner.model import AttentionKernel, Gemm, Layer, LayerKind, Model, Split

BLOCK_FIELDS = frozenset(
    [
        "count",
        "heads",
        "kv_heads",
        "feed_forward",
        "gated",
        "experts",
        "shared_experts",
        "shared_feed_forward",
        "top_k",
        "expert_feed_forward",
        "capacity",
        "query_rank",
        "kv_rank",
        "head_width",
        "rope_width",
        "value_width",
        "attention",
    ]
)
MOST_BLOCKS = 400
"""Level 2 keeps a table of layers × layers for every stage: 1 GB with as many stages as layers."""
MOST_KINDS = 32
"""The most kinds of blocks. The choice of what to recompute grows with every kind."""
MODEL_FIELDS = frozenset(["source", "vocabulary", "sequence", "hidden", "blocks", "name", "tied"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """The projections of one attention: their products, parameters and saved bytes per token."""

    gemms: tuple[Gemm, ...]
    kv_heads: float = 0
    kv_width: float = 0
    score_width: float
    value_width: float
    split: float
    replicated: float
    saved: float


def model_from_description(name: str, description: Mapping[str, Any]) -> Model:
    """The model of a description. Raises InvalidFieldError with every field at fault."""
    check = Checker("model")
    check.known(description, MODEL_FIELDS)
    vocabulary = check.integer(description, "vocabulary", low=1, high=10**7)
    sequence = check.integer(description, "sequence", low=1, high=10**8)
    hidden = check.integer(description, "hidden", low=1, high=10**6)
    tied = check.flag(description, "tied", default=False)
    runs = description.get("blocks")
    if not isinstance(runs, list) or not runs:
        check.fail(
            "blocks", runs, "must be a list of at least one run of blocks", "Write blocks: [{count, heads}]."
        )
        runs = []
    layers: list[Layer] = []
    for number, run in enumerate(runs):
        inner = check.below(f"blocks[{number}]")
        if not isinstance(run, Mapping):
            inner.fail("", run, "must be a mapping", "Write {count: 24, heads: 16}.")
            continue
        inner.known(run, BLOCK_FIELDS)
        count = inner.integer(run, "count", low=1, high=MOST_BLOCKS)
        block = _block(inner, run, max(hidden, 1))
        if inner.clean and check.clean:
            layers += [block] * count
    if len(set(layers)) > MOST_KINDS:
        message = f"have {len(set(layers))} kinds; at most {MOST_KINDS} are supported"
        check.fail("blocks", None, message, "Describe blocks that are nearly alike as equal.")
    if len(layers) > MOST_BLOCKS:
        check.fail("blocks", len(layers), f"are more than {MOST_BLOCKS}", "Describe fewer, larger blocks.")
    check.done()
    return Model(
        name=name,
        layers=(embedding(hidden, vocabulary), *layers, head(hidden, vocabulary)),
        sequence=sequence,
        source=str(description.get("source", "")),
        description=description,
        tied=tied,
    )


def gpt(name: str, *, hidden: int, layers: int, heads: int, sequence: int, vocabulary: int = 51200) -> Model:
    """A plain GPT: full attention, a feed-forward of four times the width."""
    run = {"count": layers, "heads": heads}
    return model_from_description(
        name, {"vocabulary": vocabulary, "sequence": sequence, "hidden": hidden, "blocks": [run]}
    )


def embedding(hidden: float, vocabulary: float) -> Layer:
    """The token embedding: a look-up, without a product."""
    return Layer(
        name="embedding",
        kind=LayerKind.EMBEDDING,
        hidden=hidden,
        parameters_split=hidden * vocabulary,
        vocabulary=vocabulary,
    )


def head(hidden: float, vocabulary: float) -> Layer:
    """The last norm, the logits and their loss. Saves 2 bytes of logits and 4 of their softmax per token and word."""
    return Layer(
        name="head",
        kind=LayerKind.HEAD,
        hidden=hidden,
        gemms=(Gemm(inner=hidden, outer=vocabulary, split=Split.OUTER),),
        parameters_split=hidden * vocabulary,
        parameters_replicated=2 * hidden,
        saved_split=6 * vocabulary,
        saved_replicated=4 * hidden,
        vocabulary=vocabulary,
    )


def dense_block(hidden: float, heads: float) -> Layer:
    """A GPT block; sizes may be arrays."""
    return _assemble(
        "block", hidden, heads, _grouped(hidden, hidden, hidden), feed_forward=4 * hidden, gated=False
    )


def _block(check: Checker, run: Mapping[str, Any], hidden: int) -> Layer:
    heads = check.integer(run, "heads", low=1, high=100_000)
    kv_heads = check.integer(run, "kv_heads", low=1, high=100_000, default=heads)
    if heads % max(kv_heads, 1):
        check.fail("kv_heads", kv_heads, f"does not divide heads {heads}", "Give a divisor of heads.")
    experts = check.integer(run, "experts", low=0, high=100_000, default=0)
    gated = check.flag(run, "gated", default=False)
    if "kv_rank" in run:
        attention = _latent(check, run, hidden, heads)
    else:
        if "head_width" not in run and hidden % max(heads, 1):
            check.fail("heads", heads, f"does not divide hidden {hidden}", "Give a divisor, or head_width.")
        width = check.integer(run, "head_width", low=1, high=10**6, default=max(hidden // max(heads, 1), 1))
        attention = _grouped(hidden, width * heads, width * kv_heads, kv_heads if kv_heads != heads else 0)
    kernel = _kernel(check, run)
    if not experts:
        feed_forward = check.integer(run, "feed_forward", low=1, high=10**7, default=4 * hidden)
        made = _assemble("block", hidden, heads, attention, feed_forward=feed_forward, gated=gated)
        divided = (("attention heads", heads), ("feed_forward", feed_forward))
        return replace(made, divided=divided, attention=kernel)
    if "shared_experts" in run and "shared_feed_forward" in run:
        message = "says the same as shared_experts"
        check.fail("shared_feed_forward", run["shared_feed_forward"], message, "Give one of them.")
    shared = check.integer(run, "shared_experts", low=0, high=1000, default=0)
    width = check.integer(run, "expert_feed_forward", low=1, high=10**7)
    top_k = check.integer(run, "top_k", low=1, high=max(experts, 1))
    made = _assemble(
        "mixture",
        hidden,
        heads,
        attention,
        feed_forward=check.integer(run, "shared_feed_forward", low=0, high=10**7, default=shared * width),
        gated=gated,
        experts=experts,
        top_k=top_k,
        expert_width=width,
        capacity=check.number(run, "capacity", low=0.01, high=100.0, default=1.0),
    )
    divided = (("attention heads", heads), ("expert_feed_forward", width))
    return replace(made, divided=divided, attention=kernel)


def _kernel(check: Checker, run: Mapping[str, Any]) -> AttentionKernel | None:
    told = run.get("attention")
    if told is None or told in list(AttentionKernel):
        return None if told is None else AttentionKernel(told)
    check.fail("attention", told, "is not an attention", f"There are {', '.join(AttentionKernel)}.")
    return None


def _grouped(hidden: float, query: float, key: float, kv_heads: int = 0) -> Attention:
    """Multi-head or grouped-query attention: widths of all query heads and of all key heads."""
    joint = Gemm(inner=hidden, outer=query + 2 * key, split=Split.OUTER)
    if kv_heads:
        joint = replace(joint, grouped=2 * key, kv_heads=kv_heads)
    return Attention(
        gemms=(joint, Gemm(inner=query, outer=hidden, split=Split.INNER)),
        kv_heads=kv_heads,
        kv_width=key if kv_heads else 0,
        score_width=query,
        value_width=query,
        split=hidden * (query + 2 * key) + query * hidden,
        replicated=0,
        saved=2 * (2 * query + 2 * key),
    )


def _latent(check: Checker, run: Mapping[str, Any], hidden: int, heads: int) -> Attention:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1): low-rank queries, keys and values."""
    kv_rank = check.integer(run, "kv_rank", low=1, high=10**6)
    query_rank = check.integer(run, "query_rank", low=0, high=10**6, default=0)
    width = check.integer(run, "head_width", low=1, high=10**6)
    rope = check.integer(run, "rope_width", low=0, high=10**6, default=0)
    value = check.integer(run, "value_width", low=1, high=10**6, default=width)
    query, keys, values = heads * (width + rope), heads * width, heads * value
    down = hidden * query_rank + hidden * (kv_rank + rope)
    gemms = [Gemm(inner=hidden, outer=query_rank + kv_rank + rope, split=Split.NONE)]
    gemms += [
        Gemm(inner=query_rank or hidden, outer=query, split=Split.OUTER),
        Gemm(inner=kv_rank, outer=keys + values, split=Split.OUTER),
        Gemm(inner=values, outer=hidden, split=Split.INNER),
    ]
    return Attention(
        gemms=tuple(gemms),
        score_width=query,
        value_width=values,
        split=(query_rank or hidden) * query + kv_rank * (keys + values) + values * hidden,
        replicated=down,
        saved=2 * (query + heads * (width + rope) + 2 * values),
    )


def _assemble(
    name: str,
    hidden: float,
    heads: float,
    attention: Attention,
    *,
    feed_forward: float,
    gated: bool,
    experts: int = 0,
    top_k: int = 0,
    expert_width: float = 0,
    capacity: float = 1.0,
) -> Layer:
    """Attention and feed-forward as one block. A gate adds one matrix and one saved product."""
    ups, saved_per_width = (2, 6) if gated else (1, 4)
    gemms = list(attention.gemms)
    split, expert, saved = attention.split, 0.0, attention.saved
    if experts == 0 or feed_forward:
        gemms += [
            Gemm(inner=hidden, outer=ups * feed_forward, split=Split.OUTER),
            Gemm(inner=feed_forward, outer=hidden, split=Split.INNER),
        ]
        split = split + (ups + 1) * hidden * feed_forward
        saved = saved + saved_per_width * feed_forward
    replicated = attention.replicated + 4 * hidden
    if experts:
        rows = top_k * capacity
        gemms += [
            Gemm(inner=hidden, outer=ups * expert_width, split=Split.OUTER, rows=rows, experts=experts),
            Gemm(inner=expert_width, outer=hidden, split=Split.INNER, rows=rows, experts=experts),
            Gemm(inner=hidden, outer=experts, split=Split.NONE),
        ]
        expert = experts * (ups + 1) * hidden * expert_width
        replicated += hidden * experts
        saved = saved + rows * (saved_per_width * expert_width + 4 * hidden)
    return Layer(
        name=name,
        kind=LayerKind.BLOCK,
        hidden=hidden,
        gemms=tuple(gemms),
        heads=heads,
        score_width=attention.score_width,
        value_width=attention.value_width,
        parameters_split=split,
        parameters_replicated=replicated,
        parameters_expert=expert,
        saved_split=saved,
        saved_replicated=10 * hidden,
        experts=experts,
        top_k=top_k,
        capacity=capacity,
        kv_heads=attention.kv_heads,
        kv_width=attention.kv_width,
    )
