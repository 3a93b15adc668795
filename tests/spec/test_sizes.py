"""Resources by a parameter: how a file writes them, the round trip over protobuf and JSON, and full coverage of
the space."""

from typing import Any

import pytest
from spec_samples import assert_refused

from headrace.errors import InvalidFieldError
from headrace.spec import StudySpec, from_proto, parse_spec, to_proto

SPACE: dict[str, Any] = {
    "batch": {"type": "categorical", "values": [64, 256, 1024]},
    "width": {"type": "int", "low": 16, "high": 4096, "log": True},
    "lr": {"type": "float", "low": 0.1, "high": 1.0},
    "optimizer": {"type": "categorical", "values": ["adam", "sgd", "true"]},
    "momentum": {"type": "int", "low": 1, "high": 2, "when": {"optimizer": "sgd"}},
}


def study_with(resources: Any, **changes: Any) -> dict[str, Any]:
    fields = {"objective": {"metric": "loss", "goal": "minimize"}, "space": SPACE, "trials": 8, "steps": 9}
    return {**fields, "resources": resources, **changes}


def study(resources: Any, **changes: Any) -> StudySpec:
    return parse_spec(study_with(resources, **changes))


@pytest.mark.parametrize(
    ("resources", "sizes"),
    [
        (
            {"gpus": {"by": "batch", "64": 0.25, "256": 2, "1024": 4}},
            [(1, 250, 0), (2, 1000, 0), (4, 1000, 0)],
        ),
        ({"gpus": {"by": "batch", 64: 1, "else": 2}, "cpus": 8}, [(1, 1000, 8), (2, 1000, 8)]),
        ({"cpus": {"by": "width", "from": {16: 1, "512": 4}}}, [(1, 1000, 1), (4, 1000, 4)]),
        ({"gpus": {"by": "lr", "from": {"1e-1": 1, "0.5": 2}}}, [(1, 1000, 0), (2, 1000, 0)]),
        (
            {"gpus": {"by": "optimizer", "adam": 1, "sgd": 2, "true": 3}},
            [(1, 1000, 0), (2, 1000, 0), (3, 1000, 0)],
        ),
        (
            {"gpus": {"by": "batch", 64: 1, "else": 2}, "cpus": {"by": "batch", 64: 4, "else": 16}},
            [(1, 1000, 4), (2, 1000, 16)],
        ),
        ({"gpus": {"by": "momentum", 1: 1, 2: 2, "else": 1}}, [(1, 1000, 0), (2, 1000, 0)]),
    ],
)
def test_what_trials_may_take(resources: Any, sizes: list[tuple[int, int, int]]) -> None:
    spec = study(resources)
    assert [(one.slots, one.milli, one.cpus) for one in spec.resources.each] == sizes
    assert from_proto(to_proto(spec)) == spec
    assert StudySpec.stored(spec.model_dump(mode="json")) == spec
    assert study(spec.resources.model_dump(mode="json")) == spec


@pytest.mark.parametrize(
    ("resources", "path", "words"),
    [
        ({"gpus": {"by": "bach", 64: 1}}, "resources.gpus.by", "is not a parameter"),
        ({"gpus": {64: 1}}, "resources.gpus.by", "is required"),
        ({"gpus": {"by": "batch", 64: 1, 1024: 4}}, "resources.gpus", "has no size for batch = 256"),
        ({"gpus": {"by": "width", 16: 1}}, "resources.gpus", "has no size for width = 17, 18"),
        ({"gpus": {"by": "lr", "0.5": 1}}, "resources.gpus.by", "is continuous"),
        ({"gpus": {"by": "batch", 64: 1, 65: 1, "else": 1}}, "resources.gpus.65", "is not a value of batch"),
        ({"gpus": {"by": "batch", 64: 1, "64.0": 1, "else": 1}}, "resources.gpus.64.0", "is listed twice"),
        ({"gpus": {"by": "batch", "from": {1: 1, 2000: 2}}}, "resources.gpus.from.2000", "is above 1024"),
        ({"gpus": {"by": "batch", "from": {128: 1}}}, "resources.gpus", "has no size for batch from 64"),
        (
            {"gpus": {"by": "batch", "from": {64: 1, 32: 2}}},
            "resources.gpus.from.32",
            "does not come after 64",
        ),
        ({"gpus": {"by": "batch", "from": {"a": 1}}}, "resources.gpus.from.a", "must be a number"),
        ({"gpus": {"by": "batch", "from": 3}}, "resources.gpus.from", "must be a mapping"),
        ({"gpus": {"by": "batch", "from": {64: 1}, 256: 2}}, "resources.gpus.256", "stands beside `from`"),
        ({"gpus": {"by": "optimizer", "from": {1: 1}}}, "resources.gpus.by", "no numbers"),
        ({"gpus": {"by": "momentum", 1: 1, 2: 2}}, "resources.gpus.by", "do not meet its conditions"),
        ({"gpus": {"by": "batch", 64: 0, "else": 1}}, "resources.gpus.64", "is no GPU"),
        ({"gpus": {"by": "batch", 64: "two", "else": 1}}, "resources.gpus.64", "must be a whole number"),
        ({"gpus": {"by": "batch", 64: 1, "else": 5000}}, "resources.gpus.else", "at most 1024"),
        ({"cpus": {"by": "batch", 64: 1, "else": 5000}}, "resources.cpus.else", "at most 1024"),
        (
            {"gpus": {"by": "batch", 64: 1, "else": 2}, "cpus": {"by": "width", 64: 1, "else": 2}},
            "resources.cpus",
            "has other values than gpus",
        ),
        ({"by": {"parameter": "batch", "rows": []}}, "resources.by.rows", "is empty"),
        ({"by": {"parameter": "batch", "row": []}}, "resources.by.row", "is not a known key"),
        ({"gpus": {"by": "batch", "else": 1}, "by": {}}, "resources.by", "stands beside a table under gpus"),
    ],
)
def test_what_makes_no_sense_is_named(resources: Any, path: str, words: str) -> None:
    assert_refused(study_with(resources), path, words, alone=False)


def test_a_population_never_changes_a_size() -> None:
    by_batch = {"gpus": {"by": "batch", 64: 1, "else": 2}}
    assert study(by_batch, policy={"kind": "pbt", "mutable": ["lr"]})
    with pytest.raises(InvalidFieldError, match="a trial keeps its size"):
        study(by_batch, policy={"kind": "pbt", "mutable": ["lr", "batch"]})
    by_momentum = {"gpus": {"by": "momentum", 1: 1, "else": 2}}
    with pytest.raises(InvalidFieldError, match="comes and goes with its conditions"):
        study(by_momentum, policy="pbt")
