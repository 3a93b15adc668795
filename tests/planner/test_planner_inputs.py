"""User errors: every case names the field, the value and a remedy."""

import json
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from refusals import refused

from headrace.errors import InvalidFieldError
from headrace_services.planner import asking, catalogue
from headrace_services.planner.asking import Options
from headrace_services.planner.blocks import model_from_description
from headrace_services.planner.costing import Request
from headrace_services.planner.explain import nothing_fits
from headrace_services.planner.huggingface import model_from_configuration
from headrace_services.planner.search import Search

GOOD: dict[str, Any] = {
    "vocabulary": 1000,
    "sequence": 512,
    "hidden": 256,
    "blocks": [{"count": 4, "heads": 8}],
}
DEVICE: dict[str, Any] = {
    "peak_flops": 312e12,
    "memory_bytes": 80e9,
    "memory_bandwidth": 2e12,
    "link_bandwidth": 3e11,
    "network_bandwidth": 25e9,
    "devices_per_node": 8,
    "devices": 16,
}


@pytest.mark.parametrize(
    ("name", "hint"),
    [("gpt3-175", "gpt3-175b"), ("lama3-70b", "llama3-70b"), ("deepseek141b", "deepseek-141b")],
)
def test_unknown_models_get_the_nearest_names(name: str, hint: str) -> None:
    with refused("model", f" | {hint}"):
        catalogue.model(name)


@pytest.mark.parametrize("name", ["a10-64", "a100", "h100-", "-8", "", "a100-80g-64x"])
def test_unknown_clusters_say_how_to_write_one(name: str) -> None:
    with refused("cluster", " | DEVICE-COUNT"):
        catalogue.cluster(name)


@pytest.mark.parametrize(
    ("count", "says"), [(0, "from 1 to"), (12, "nodes of 8 | 16"), (99_999_999, "from 1 to 1000000")]
)
def test_impossible_counts(count: int, says: str) -> None:
    with refused("cluster.devices", says):
        catalogue.cluster(f"a100-{count}")


@pytest.mark.parametrize(
    ("options", "field", "says"),
    [
        ({"batch": 0}, "batch", " | unit"),
        ({"batch": 10**9}, "batch", " | unit"),
        ({"schedule": "1f2b"}, "schedule", " | 1f1b"),
        ({"schedule": "interleaved"}, "chunks", " | --chunks 2"),
        ({"zero": 4}, "zero", ""),
        ({"overlap": "gradient"}, "overlap", " | gradients"),
        ({"sequence": 0}, "sequence", ""),
        ({"selective": "1-3", "attention": "flash"}, "selective", " | --attention materialised"),
        ({"selective": "1-3", "attention": "selective"}, "selective", " | --attention materialised"),
        *(
            ({"selective": layers, "attention": "materialised"}, "selective", "")
            for layers in ("0-3", "13", "5-99", "a", "5-3", "", "1,,2", "1-2-3")
        ),
    ],
)
def test_bad_options(options: dict[str, Any], field: str, says: str) -> None:
    with refused(field, says):
        asking.request("gpt3-125m", "a100-1024", Options(**{"batch": 1024, **options}))


@pytest.mark.parametrize(
    ("ask", "field", "says"),
    [
        (lambda: asking.mode("h20"), "mode", " | h2o"),
        (lambda: asking.target("jax"), "target", " | deepspeed"),
        (lambda: asking.limit(0, None), "seconds", " | unit"),
    ],
)
def test_bad_choices(ask: Callable[[], object], field: str, says: str) -> None:
    with refused(field, says):
        ask()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"hidden": -1}, "model.hidden"),
        ({"hidden": None}, "model.hidden"),
        ({"sequence": 0}, "model.sequence"),
        ({"vocabulary": "many"}, "model.vocabulary"),
        ({"blocks": []}, "model.blocks"),
        ({"blocks": [{"count": 4}]}, "model.blocks[0].heads"),
        ({"blocks": [{"count": 4, "heads": 7}]}, "model.blocks[0].heads"),
        ({"blocks": [{"count": 4, "heads": 8, "kv_heads": 3}]}, "model.blocks[0].kv_heads"),
        ({"blocks": [{"count": 4, "heads": 8, "experts": 4, "top_k": 9}]}, "model.blocks[0].top_k"),
        ({"blocks": ["x"]}, "model.blocks[0]"),
        ({"hiden": 3}, "model.hiden"),
        ({"blocks": [{"count": 1e99, "heads": 8}]}, "model.blocks[0].count"),
        ({"hidden": float("nan")}, "model.hidden"),
    ],
)
def test_bad_models(change: dict[str, Any], field: str) -> None:
    with refused(field):
        model_from_description("mine", {**GOOD, **change})


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"memory_bytes": 40e3}, "cluster.memory_bytes"),
        ({"memory_bytes": 80}, "cluster.memory_bytes"),
        ({"peak_flops": 312}, "cluster.peak_flops"),
        ({"network_bandwidth": -1}, "cluster.network_bandwidth"),
        ({"devices_per_node": None}, "cluster.devices_per_node"),
        ({"topology": "star"}, "cluster.topology"),
        ({"efficiencies": "nobody"}, "cluster.efficiencies"),
        ({"devices": "many"}, "cluster.devices"),
        ({"memory": 1}, "cluster.memory"),
    ],
)
def test_bad_clusters(tmp_path: Path, change: dict[str, Any], field: str) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({**DEVICE, **change}))
    with refused(field):
        catalogue.cluster(str(path))


@pytest.mark.parametrize("text", ["", "[]", "{", "\xff", "[" * 100_000])
def test_files_that_are_not_descriptions(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(InvalidFieldError) as error:
        catalogue.model(str(path))
    assert all(one.field and one.message and one.remedy for one in error.value.violations)
    with pytest.raises(InvalidFieldError):
        catalogue.model(str(tmp_path / "none.json"))


def test_a_good_cluster_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(DEVICE))
    assert catalogue.cluster(str(path)).nodes == 2


def test_a_cluster_file_with_constants_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    constants = {**asdict(next(iter(catalogue.profiles().values()))), "gemm": 0.5}
    path.write_text(json.dumps({**DEVICE, "efficiencies": constants}))
    device = catalogue.cluster(str(path)).device
    assert device.efficiencies.gemm == 0.5
    assert device.calibrated
    path.write_text(json.dumps({**DEVICE, "efficiencies": {"gemm": -1}}))
    with refused("efficiencies.gemm", "from 0 to"):
        catalogue.cluster(str(path))


def test_more_than_can_be_planned_is_refused_before_it_takes_all_memory() -> None:
    runs = [{"count": 1, "heads": 8, "feed_forward": 64 * number} for number in range(1, 201)]
    with pytest.raises(InvalidFieldError, match="200 kinds"):
        model_from_description("mine", {**GOOD, "blocks": runs})
    with pytest.raises(InvalidFieldError, match="count"):
        model_from_description("mine", {**GOOD, "blocks": [{"count": 1000, "heads": 8}]})


def test_the_largest_sizes_have_an_answer_and_no_traceback() -> None:
    run = {"count": 400, "heads": 100_000, "head_width": 10**6, "feed_forward": 10**7, "gated": True}
    huge = {"vocabulary": 10**7, "sequence": 10**8, "hidden": 10**6, "blocks": [run]}
    request = Request(
        model=model_from_description("huge", huge), cluster=catalogue.cluster("a100-8"), batch=8
    )
    search = Search(request)
    assert search.run().plan is None
    assert "GiB short" in str(nothing_fits(search))


@pytest.mark.parametrize("devices", [1, 6, 7, 8])
def test_the_cluster_that_a_remedy_names_can_be_written_and_fits(devices: int) -> None:
    options = Options(batch=32)
    search = Search(asking.request("llama3-70b", f"a100-{devices}", options))
    remedy = nothing_fits(search).violations[0].remedy
    named = re.fullmatch(r"(\S+) fits with batch (\d+)\.", remedy)
    assert named, remedy
    larger = asking.request("llama3-70b", named[1], replace(options, batch=int(named[2])))
    assert Search(larger).run().plan is not None


def test_a_described_cluster_is_not_called_by_a_name_that_nobody_can_write(tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text(json.dumps({**DEVICE, "devices": 8}))
    search = Search(asking.request("llama3-70b", str(tmp_path / "mine.json"), Options(batch=32)))
    remedy = nothing_fits(search).violations[0].remedy
    assert re.fullmatch(r"devices: \d+ in the cluster's description fits with batch \d+\.", remedy), remedy


def test_a_share_of_memory_that_is_too_small_is_named_before_more_devices() -> None:
    search = Search(asking.request("gpt3-13b", "a100-32", Options(batch=64, usable_memory=0.01)))
    assert nothing_fits(search).violations[0].remedy == "--usable-memory 0.94 fits here."


def test_a_batch_that_no_split_of_the_devices_divides_is_named() -> None:
    search = Search(asking.request("gpt3-125m", "a100-1024", Options(batch=3)))
    (found,) = nothing_fits(search).violations
    assert found.field == "batch"
    assert "32" in found.remedy


def test_hugging_face_configurations() -> None:
    mixtral = model_from_configuration(
        "mixtral",
        {
            "model_type": "mixtral",
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "vocab_size": 32000,
            "max_position_embeddings": 4096,
        },
        4096,
    )
    assert mixtral.layers == catalogue.model("mixtral-8x7b").layers
    gpt2 = model_from_configuration(
        "gpt2",
        {
            "model_type": "gpt2",
            "n_embd": 768,
            "n_layer": 12,
            "n_head": 12,
            "vocab_size": 50257,
            "n_ctx": 1024,
        },
        1024,
    )
    assert gpt2.parameters == pytest.approx(124e6, rel=0.01)
    with refused("model.hidden_size", "is missing"):
        model_from_configuration("x", {"model_type": "gpt2"}, 1024)
