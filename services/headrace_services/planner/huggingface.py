"""Models from a Hugging Face `config.json`: its field names to ours, for the families that differ only in numbers."""

from collections.abc import Mapping
from typing import Any, Final

from headrace_services.planner.blocks import model_from_description
from headrace_services.planner.checking import Checker
from headrace_services.planner.model import Model

PLAIN_FEED_FORWARD: Final = frozenset({"gpt2", "gpt_neox", "gptj", "opt", "bloom", "falcon", "phi"})
"""Model types whose feed-forward has no gate."""
_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "heads": ("num_attention_heads", "n_head"),
    "sequence": ("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length"),
    "vocabulary": ("vocab_size",),
    "feed_forward": ("intermediate_size", "n_inner", "ffn_dim"),
    "experts": ("n_routed_experts", "num_local_experts", "num_experts"),
    "top_k": ("num_experts_per_tok",),
    "expert_feed_forward": ("moe_intermediate_size",),
}


def is_configuration(description: Mapping[str, Any]) -> bool:
    """Whether a JSON object is such a configuration rather than a description of ours."""
    return "blocks" not in description and ("model_type" in description or "architectures" in description)


def model_from_configuration(name: str, configuration: Mapping[str, Any]) -> Model:
    """The model of a configuration. Raises InvalidFieldError with every field at fault."""
    check = Checker("model")
    found = {ours: _first(configuration, theirs) for ours, theirs in _NAMES.items()}
    for field in ("hidden", "layers", "heads", "vocabulary"):
        if found[field] is None:
            check.fail(_NAMES[field][0], None, "is missing", "Give it in config.json.")
    check.done()
    gated = configuration.get("model_type") not in PLAIN_FEED_FORWARD
    run: dict[str, Any] = {"heads": found["heads"], "gated": gated}
    _copy(run, "feed_forward", found["feed_forward"])
    if "kv_lora_rank" in configuration:
        run |= {"kv_rank": configuration["kv_lora_rank"], "query_rank": configuration.get("q_lora_rank") or 0}
        run |= {
            "head_width": configuration.get("qk_nope_head_dim"),
            "rope_width": configuration.get("qk_rope_head_dim", 0),
            "value_width": configuration.get("v_head_dim"),
        }
    else:
        _copy(run, "kv_heads", configuration.get("num_key_value_heads"))
        _copy(run, "head_width", configuration.get("head_dim"))
    return model_from_description(
        name,
        {
            "source": "config.json",
            "vocabulary": found["vocabulary"],
            "sequence": found["sequence"] or 2048,
            "hidden": found["hidden"],
            "blocks": _runs(check, configuration, found, run),
        },
    )


def _runs(
    check: Checker, configuration: Mapping[str, Any], found: Mapping[str, Any], run: dict[str, Any]
) -> list[dict[str, Any]]:
    """Dense layers first, then mixtures, as in DeepSeek; all mixtures where no dense layers are named."""
    layers = check.integer(found, "layers", low=1, high=10_000)
    check.done()
    if not found["experts"]:
        return [{**run, "count": layers}]
    dense = min(int(configuration.get("first_k_dense_replace", 0) or 0), layers)
    mixture = {key: value for key, value in run.items() if key != "feed_forward"}
    mixture |= {
        "experts": found["experts"],
        "top_k": found["top_k"],
        "expert_feed_forward": found["expert_feed_forward"] or found["feed_forward"],
        "shared_experts": configuration.get("n_shared_experts") or 0,
    }
    runs = [{**run, "count": dense}] if dense else []
    return runs + ([{**mixture, "count": layers - dense}] if layers > dense else [])


def _first(configuration: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((configuration[name] for name in names if configuration.get(name) is not None), None)


def _copy(run: dict[str, Any], field: str, value: Any) -> None:
    if value is not None:
        run[field] = value
