"""Resources, elastic grants, weights and priorities: what is valid, how a file spells it, and the protobuf round
trip."""

from pathlib import Path
from typing import Any

import pytest
from spec_samples import SOUND, assert_refused, spoiled

from headrace.spec import from_proto, parse_spec, to_proto
from headrace.spec.file import parse_study_text

ELASTIC = {"grants": [{"from_step": 3, "slots": 2}, {"from_step": 9, "slots": 4}], "spare": 8}

FROM_A_SHARE = {"grants": [{"from_step": 3, "gpu_milli": 500}, {"from_step": 9, "slots": 2}], "spare": 4}


@pytest.mark.parametrize(
    "changes",
    [
        {"resources": {"gpus": 4, "gpu_types": ["H200"], "cpus": 16, "processes": "per_slot"}},
        {"resources": {"gpu_milli": 250, "gpu_memory_bytes": 1 << 33}},
        {"resources": {"cpus": 2}, "elastic": ELASTIC, "weight": 2.5, "priority": -3},
        {"resources": {"gpu_milli": 250}, "elastic": FROM_A_SHARE},
    ],
)
def test_they_come_back_from_protobuf_and_json(changes: dict[str, Any]) -> None:
    spec = parse_spec(spoiled(**changes))
    assert from_proto(to_proto(spec)) == spec
    assert parse_spec(spec.model_dump(mode="json")) == spec


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"resources": {"gpus": 1, "gpu_milli": 250}}, "resources.gpu_milli", "excludes gpus"),
        ({"resources": {"gpu_milli": 1000}}, "resources.gpu_milli", "at most 999"),
        ({"resources": {"gpu_types": ["H200"]}}, "resources.gpu_types", "without a GPU"),
        ({"resources": {"exclusive": True}}, "resources.exclusive", "without a GPU"),
        ({"resources": {"gpus": 1, "processes": "many"}}, "resources.processes", ""),
        ({"weight": 0}, "weight", "above 0"),
        ({"weight": 1e-310}, "weight", "from 1e-06 to 1e+06 | 1 is ordinary"),
        ({"priority": 1001}, "priority", "at most 1000"),
        (
            {"elastic": {"grants": [{"from_step": 27, "slots": 2}]}},
            "elastic.grants[0].from_step",
            "full budget",
        ),
        (
            {"elastic": {"grants": [{"from_step": 3, "slots": 2}, {"from_step": 3, "slots": 4}]}},
            "elastic.grants[1].from_step",
            "does not come after 3",
        ),
        (
            {"elastic": {"grants": [{"from_step": 3, "gpu_milli": 500}]}, "resources": {"cpus": 2}},
            "elastic.grants[0].gpu_milli",
            "is a share of a GPU, and the study's resources ask for none",
        ),
        (
            {"elastic": {"grants": [{"from_step": 3, "slots": 1, "gpu_milli": 500}]}},
            "elastic.grants[0].gpu_milli",
            "excludes slots",
        ),
        ({"elastic": {"grants": [{"from_step": 3}]}}, "elastic.grants[0].slots", "is required"),
        (
            {"elastic": {"grants": [{"from_step": 3, "slots": 0}]}},
            "elastic.grants[0].slots",
            "at least 1",
        ),
        ({"elastic": {"grant": []}}, "elastic.grant", "not a known key"),
    ],
)
def test_what_makes_no_sense_is_named(changes: dict[str, Any], field: str, words: str) -> None:
    assert_refused(spoiled(**changes), field, words)


def test_a_file_may_write_a_share_as_a_fraction_and_memory_with_its_unit(tmp_path: Path) -> None:
    text = f"""
name: shared
objective: {{metric: val_loss, goal: minimize}}
space: {{lr: {{type: float, low: 0.1, high: 1.0}}}}
trials: 3
steps: {SOUND["max_steps"]}
resources: {{gpus: 0.25, gpu_memory_bytes: 16GiB}}
elastic: {{grants: [{{from_step: 3, slots: 0.5}}, {{from_step: 9, slots: 2}}]}}
"""
    _, spec = parse_study_text(text, folder=tmp_path)
    assert (spec.resources.gpus, spec.resources.gpu_milli) == (0, 250)
    assert spec.resources.gpu_memory_bytes == 16 << 30
    assert (spec.resources.slots, spec.resources.milli, spec.resources.on_gpu) == (1, 250, True)
    assert spec.elastic is not None
    assert [row.part for row in spec.elastic.grants] == [(1, 500), (2, 1000)]


def test_the_table_holds_from_its_step_on() -> None:
    elastic = parse_spec(spoiled(elastic=ELASTIC)).elastic
    assert elastic is not None
    held = [elastic.row_at(step) for step in (0, 2, 3, 8, 9, 20)]
    assert [row and row.slots for row in held] == [None, None, 2, 2, 4, 4]
