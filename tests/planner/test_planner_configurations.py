"""Public `config.json` files: their models have the published sizes, and what they leave open is asked for or
reported."""

import json
from pathlib import Path
from typing import Any

import pytest
from plan_command import said
from refusals import refused

from headrace_services.planner import asking, catalogue
from headrace_services.planner.costing import Request
from headrace_services.planner.degrees import Degrees
from headrace_services.planner.huggingface import model_from_configuration
from headrace_services.planner.modes import FULL
from headrace_services.planner.search import Search

PUBLIC: dict[str, Any] = json.loads(Path(__file__).with_name("configurations.json").read_text())
LLAMA: dict[str, Any] = PUBLIC["meta-llama/Llama-2-7b-hf"]["config"]
GEMMA: dict[str, Any] = PUBLIC["google/gemma-2-9b"]["config"]
DEEPSEEK: dict[str, Any] = PUBLIC["deepseek-ai/DeepSeek-V3"]["config"]


@pytest.mark.parametrize("name", PUBLIC)
def test_models_have_their_published_size(name: str) -> None:
    """Within 1%: embedding, blocks and head. What a family has in addition (biases, positions) is less than that."""
    model = model_from_configuration(name, PUBLIC[name]["config"], 1024)
    assert model.parameters == pytest.approx(PUBLIC[name]["published"], rel=0.01)


def test_a_sequence_is_asked_for(tmp_path: Path) -> None:
    """A configuration names the longest sequence that its model accepts; nobody should train on 131072 by mistake."""
    with refused("sequence", "131072"):
        model_from_configuration("mine", PUBLIC["meta-llama/Llama-3.2-1B"]["config"], None)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    with refused("sequence"):
        asking.request(str(path), "a100-8", asking.Options())
    assert asking.request(str(path), "a100-8", asking.Options(sequence=2048)).model.sequence == 2048
    assert asking.request("gpt3-13b", "a100-8", asking.Options()).model.sequence == 2048


@pytest.mark.parametrize(
    ("known", "change", "field"),
    [
        (LLAMA, {"model_type": "bert"}, "model_type"),
        (LLAMA, {"model_type": "t5", "is_encoder_decoder": True}, "model_type"),
        (LLAMA, {"vision_config": {"hidden_size": 3}}, "vision_config"),
        (LLAMA, {"model_type": "mamba", "state_size": 16}, "state_size"),
        (LLAMA, {"num_hidden_layers": "many"}, "num_hidden_layers"),
        (LLAMA, {"num_key_value_heads": 3.5}, "num_key_value_heads"),
        (LLAMA, {"tie_word_embeddings": "no"}, "tie_word_embeddings"),
        (LLAMA, {"hidden_size": None}, "hidden_size"),
        (DEEPSEEK, {"first_k_dense_replace": "three"}, "first_k_dense_replace"),
        (DEEPSEEK, {"n_routed_experts": "many"}, "n_routed_experts"),
        (DEEPSEEK, {"mlp_only_layers": 3}, "mlp_only_layers"),
        (DEEPSEEK, {"kv_lora_rank": -1}, "kv_lora_rank"),
    ],
)
def test_what_is_no_decoder_or_no_number_is_refused(
    known: dict[str, Any], change: dict[str, Any], field: str
) -> None:
    with refused(f"model.{field}"):
        model_from_configuration("mine", {**known, **change}, 1024)


def test_what_is_left_out_is_reported() -> None:
    assert not model_from_configuration("llama", LLAMA, 1024).notes
    (note,) = model_from_configuration("deepseek", DEEPSEEK, 1024).notes
    assert "num_nextn_predict_layers" in note
    (note,) = model_from_configuration("gemma", GEMMA, 1024).notes
    assert "sliding_window" in note
    notes = model_from_configuration(
        "mine", {**LLAMA, "model_type": "newllama", "extra_experts": 4}, 64
    ).notes
    assert any("newllama" in one for one in notes)
    assert any("extra_experts" in one for one in notes)


def test_a_plan_prints_what_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(GEMMA))
    assert "sliding_window" in said(str(path), "a100-32", "--batch", "32", "--sequence", "2048")


def test_a_tied_matrix_stands_once_on_one_stage_and_twice_on_two() -> None:
    model = model_from_configuration("gemma", GEMMA, 1024)
    matrix = 256000 * 3584
    assert model.layers[-1].parameters_split == matrix

    def held(s: int) -> int:
        request = Request(model=model, cluster=catalogue.cluster(f"b200-{s}"), batch=2)
        search = Search(request)
        candidate = search.candidate(FULL, Degrees(d=1, m=1, o=1, s=s, mu=2))
        assert candidate is not None
        return sum(stage.memory.static_bytes for stage in search.assembled(candidate).stages)

    assert held(2) - held(1) == pytest.approx(18 * matrix, abs=100)
