"""Models from a Hugging Face `config.json`: maps its field names to ours, for decoders that differ only in
numbers.

What a configuration omits has a default that depends on the family (`FAMILIES`). A setting that the cost model
cannot express is rejected if it changes what is computed, and noted if it only adds to it.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import resources
from itertools import groupby
from types import MappingProxyType
from typing import Any, Final

from headrace_services.planner.blocks import model_from_description
from headrace_services.planner.checking import Checker
from headrace_services.planner.model import Model


@dataclass(frozen=True, slots=True)
class Family:
    """What the configurations of a model type leave implicit."""

    gated: bool = True
    """Whether the feed-forward has a gate, which is a third matrix."""
    tied: bool = False
    """Whether the head shares the embedding's matrix unless `tie_word_embeddings` says otherwise."""


_TABLE: Final[Mapping[str, Any]] = json.loads(
    resources.files(__package__).joinpath("data", "huggingface.json").read_text("utf-8")
)
FAMILIES: Final[Mapping[str, Family]] = MappingProxyType(
    {kind: Family(**said) for kind, said in _TABLE["families"].items()}
)
"""By `model_type`. Other types are treated as a gated, untied decoder, and the model says so."""
_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "hidden": ("hidden_size", "n_embd", "n_embed", "d_model"),
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "vocabulary": ("vocab_size",),
    "feed_forward": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"),
    "experts": ("n_routed_experts", "num_local_experts", "num_experts"),
    "top_k": ("num_experts_per_tok",),
    "expert_feed_forward": ("moe_intermediate_size",),
}
_LONGEST: Final = (
    "max_position_embeddings",
    "n_positions",
    "n_ctx",
    "max_sequence_length",
    "max_seq_len",
    "seq_length",
)
_PARTS: Final = ("text_config", "vision_config", "audio_config", "encoder", "decoder")


def is_configuration(description: Mapping[str, Any]) -> bool:
    """Whether a JSON object is such a configuration rather than a description of ours."""
    return "blocks" not in description and ("model_type" in description or "architectures" in description)


def model_from_configuration(name: str, configuration: Mapping[str, Any], sequence: int | None) -> Model:
    """The model of a configuration, trained on sequences of this length. Raises InvalidFieldError.

    A configuration says only the longest sequence that its model takes, which is not what it is trained on; so the
    length must be given."""
    check = Checker("model")
    _decoder(check, configuration)
    check.done()
    kind = str(configuration.get("model_type"))
    family = FAMILIES.get(kind, Family())
    sizes = {ours: _whole(check, configuration, theirs, ours) for ours, theirs in _NAMES.items()}
    if sequence is None:
        longest = next((configuration[one] for one in _LONGEST if configuration.get(one)), "unknown")
        message = f"must be given: the configuration says only the longest that the model takes, {longest}"
        Checker("", check.violations).fail("sequence", None, message, "Say how many tokens a sequence has.")
    check.done()
    run: dict[str, Any] = {
        "heads": sizes["heads"],
        "gated": family.gated,
        **_attention(check, configuration),
    }
    tied = check.flag(configuration, "tie_word_embeddings", default=family.tied)
    blocks = _runs(check, configuration, sizes, run)
    check.done()
    model = model_from_description(
        name,
        {
            "source": "config.json",
            "vocabulary": sizes["vocabulary"],
            "sequence": sequence,
            "hidden": sizes["hidden"],
            "tied": tied,
            "blocks": blocks,
        },
    )
    return replace(model, notes=tuple(_notes(configuration, kind)))


def _decoder(check: Checker, configuration: Mapping[str, Any]) -> None:
    """Only decoders of attention blocks can be expressed in our terms."""
    kind = configuration.get("model_type")
    if kind in _TABLE["encoders"] or configuration.get("is_encoder_decoder"):
        check.fail("model_type", kind, "is an encoder or has one", "Only decoders can be planned.")
    for part in _PARTS:
        if isinstance(configuration.get(part), Mapping):
            check.fail(
                part, None, "is a model of its own within this one", "Give only the decoder's configuration."
            )
    for other in configuration.keys() & set(_TABLE["other_layers"]):
        message = "belongs to layers without attention, which the cost model does not know"
        check.fail(other, configuration[other], message, "Only transformers can be planned.")


def _attention(check: Checker, configuration: Mapping[str, Any]) -> dict[str, Any]:
    """Latent, grouped or plain attention in our terms."""
    if configuration.get("kv_lora_rank") is not None:
        width = check.integer(configuration, "qk_nope_head_dim", low=1, high=10**6)
        return {
            "kv_rank": check.integer(configuration, "kv_lora_rank", low=1, high=10**6),
            "query_rank": _optional(check, configuration, "q_lora_rank") or 0,
            "head_width": width,
            "rope_width": _optional(check, configuration, "qk_rope_head_dim") or 0,
            "value_width": _optional(check, configuration, "v_head_dim") or width,
        }
    found = {
        "kv_heads": _kv_heads(check, configuration),
        "head_width": _optional(check, configuration, "head_dim"),
    }
    return {ours: value for ours, value in found.items() if value is not None}


def _kv_heads(check: Checker, configuration: Mapping[str, Any]) -> int | None:
    """Falcon's `multi_query` means one head, unless its new architecture says how many (according to its modelling
    code)."""
    if configuration.get("multi_query") and not configuration.get("new_decoder_architecture"):
        return 1
    given = _optional(check, configuration, "num_key_value_heads")
    return given if given is not None else _optional(check, configuration, "num_kv_heads")


def _runs(
    check: Checker, configuration: Mapping[str, Any], sizes: Mapping[str, int | None], run: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Dense layers and mixtures in their order, with equal adjacent ones merged."""
    feed_forward = sizes["feed_forward"]
    if feed_forward is None and (ratio := _optional(check, configuration, "expansion_ratio")):
        feed_forward = ratio * (sizes["hidden"] or 1)
    dense = {**run} | ({"feed_forward": feed_forward} if feed_forward else {})
    layers = min(sizes["layers"] or 1, 10_000)
    if not sizes["experts"]:
        return [{**dense, "count": layers}]
    width = sizes["expert_feed_forward"] or feed_forward
    mixture = {**run, "experts": sizes["experts"], "top_k": sizes["top_k"], "expert_feed_forward": width}
    mixture["shared_feed_forward"] = _optional(check, configuration, "shared_expert_intermediate_size") or (
        (_optional(check, configuration, "n_shared_experts") or 0) * (width or 0)
    )
    first = _optional(check, configuration, "first_k_dense_replace") or 0
    every = _optional(check, configuration, "moe_layer_freq") or 1
    step = _optional(check, configuration, "decoder_sparse_step") or 1
    plain = configuration.get("mlp_only_layers") or []
    if not isinstance(plain, list):
        check.fail("mlp_only_layers", plain, "must be a list", "Write the numbers of the layers, or [].")
        plain = []
    sparse = [i >= first and i % every == 0 and (i + 1) % step == 0 and i not in plain for i in range(layers)]
    return [{**(mixture if one else dense), "count": len(list(same))} for one, same in groupby(sparse)]


def _notes(configuration: Mapping[str, Any], kind: str) -> Iterator[str]:
    """What the plan does not know about the model, in words."""
    if kind not in FAMILIES:
        yield f"model_type {kind} is not known: taken for a decoder with a gate and a head of its own"
    for field, meaning in _TABLE["noted"].items():
        unused = field == "sliding_window" and configuration.get("use_sliding_window") is False
        if configuration.get(field) and not unused:
            yield f"{field}: {meaning}"
    known = {name for names in _NAMES.values() for name in names}
    known |= {*_LONGEST, *_TABLE["harmless"], *_TABLE["noted"]}
    for field, value in configuration.items():
        counts = (isinstance(value, int) and not isinstance(value, bool) and value > 1) or isinstance(
            value, list | dict
        )
        if field not in known and counts and value and not field.endswith(tuple(_TABLE["harmless_ends"])):
            yield f"{field} is not known, and is left out"


def _whole(check: Checker, configuration: Mapping[str, Any], names: tuple[str, ...], ours: str) -> int | None:
    """A size under one of these names; a size without which there is no model must be present."""
    for name in names:
        if configuration.get(name) is not None:
            return check.integer(configuration, name, low=0 if ours == "experts" else 1, high=10**8)
    if ours in ("hidden", "layers", "heads", "vocabulary"):
        check.fail(names[0], None, "is missing", "Give it in config.json.")
    return None


def _optional(check: Checker, configuration: Mapping[str, Any], name: str) -> int | None:
    if configuration.get(name) is None:
        return None
    return check.integer(configuration, name, low=0, high=10**8)
