"""Selective recomputation per layer: some layers recompute their scores, the others save them."""

import json
from pathlib import Path
from typing import Any

import pytest
from plan_command import run
from refusals import refused

from headrace.cli.failure import CommandError
from headrace_services.planner import asking, catalogue
from headrace_services.planner.blocks import model_from_description
from headrace_services.planner.costing import Costing
from headrace_services.planner.degrees import Degrees
from headrace_services.planner.emit import emit
from headrace_services.planner.model import Model
from headrace_services.planner.plan import Plan
from headrace_services.planner.problem import Link

TUPLE = Degrees(d=4, m=2, o=4, s=2, mu=8)


def links(**options: Any) -> list[Link]:
    model = options.pop("model", None) or catalogue.model("gpt3-13b")
    asked = asking.assembled(model, catalogue.cluster("a100-16"), asking.Options(batch=64, **options))
    return Costing(asked).links(TUPLE)


def planned(model: Model, **options: Any) -> Plan:
    asked = asking.assembled(model, catalogue.cluster("a100-16"), asking.Options(batch=64, **options))
    found = asking.search(asked, asking.method("exact"), None).run().plan
    assert found is not None
    return found


def test_named_layers_are_selective_and_the_others_are_not() -> None:
    saved, again = links(attention="materialised"), links(attention="selective")
    mixed = links(attention="materialised", selective="1-3, 7")
    for i, link in enumerate(mixed):
        assert link == (again if i in {1, 2, 3, 7} else saved)[i]
    assert again[1].saved_bytes < saved[1].saved_bytes
    assert again[1].backward_s > saved[1].backward_s
    assert links(attention="materialised", selective="1-40") == again


def test_a_run_of_blocks_says_its_own_attention() -> None:
    told: dict[str, Any] = {
        "vocabulary": 51200,
        "sequence": 2048,
        "hidden": 5120,
        "blocks": [{"count": 10, "heads": 40, "attention": "selective"}, {"count": 30, "heads": 40}],
    }
    described = links(model=model_from_description("mine", told), attention="materialised")
    assert described == links(attention="materialised", selective="1-10")
    told["blocks"][0]["attention"] = "selectiv"
    with refused("model.blocks[0].attention", " | selective"):
        model_from_description("mine", told)


def test_what_fits_with_some_layers_selective_needs_less_recomputation() -> None:
    """With tight memory, recomputing the scores of half of the layers leaves room for whole activations elsewhere."""
    model = catalogue.model("gpt3-13b", 8192)
    whole = planned(model, attention="materialised")
    some = planned(model, attention="materialised", selective="1-40")
    assert len(some.recomputed) < len(whole.recomputed)
    assert some.simulated_s < whole.simulated_s
    assert "layers 1–40 have selective attention of their own" in some.notes


def test_frameworks_are_told_what_they_cannot_do() -> None:
    model = catalogue.model("gpt3-2.7b")
    mixed = planned(model, attention="materialised", selective="1-4")
    lowered = emit(mixed, "megatron")
    assert "attention of several kinds" in lowered["lowering.md"]
    assert "selective" not in lowered["megatron.args"]
    whole = emit(planned(model, attention="materialised", selective="1-32"), "megatron")
    assert "attention of several kinds" not in whole["lowering.md"]
    assert "--recompute-granularity selective" in whole["megatron.args"]
    assert "attention of several kinds" in emit(mixed, "deepspeed")["lowering.md"]


def test_the_command(tmp_path: Path) -> None:
    words = ["gpt3-13b", "a100-16", "--batch", "64", "--attention", "materialised", "--selective", "1-4"]
    notes = json.loads(run(*words, "--json"))["notes"]
    assert "layers 1–4 have selective attention of their own" in notes
    with pytest.raises(CommandError, match="--selective"):
        run(*words, "--address", "127.0.0.1:1")
