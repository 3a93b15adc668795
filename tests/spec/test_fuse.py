"""Bundles in a study: what is valid, how a file spells it, and the round trip over protobuf."""

from typing import Any

import pytest
from spec_samples import LEARNING_RATE, SMALL, assert_refused

from headrace.spec import from_proto, parse_spec, to_proto

WIDTH = {"type": "categorical", "values": [8, 16, 32]}
STUDY: dict[str, Any] = {
    **SMALL,
    "space": {"lr": LEARNING_RATE, "width": WIDTH},
    "fuse": {"most": 32, "apart": ["width"]},
}


def test_fuse_goes_over_protobuf_and_json() -> None:
    spec = parse_spec(STUDY)
    assert from_proto(to_proto(spec)) == spec == type(spec).stored(spec.model_dump(mode="json"))
    assert parse_spec({key: value for key, value in STUDY.items() if key != "fuse"}).fuse is None


def test_trials_of_one_bundle_have_one_key() -> None:
    fuse = parse_spec(STUDY).fuse
    assert fuse is not None
    assert fuse.key({"lr": 0.1, "width": 8}) == fuse.key({"lr": 0.2, "width": 8})
    assert len({fuse.key({"width": width}) for width in (8, 16, 32)} | {fuse.key({})}) == 4


@pytest.mark.parametrize(
    ("changes", "field", "says"),
    [
        ({"fuse": {"most": 1}}, "fuse.most", "2"),
        ({"fuse": {"most": 2000}}, "fuse.most", "1024"),
        ({"fuse": {}}, "fuse.most", "required"),
        ({"fuse": {"most": 4, "apart": ["widht"]}}, "fuse.apart[0]", "not a parameter"),
        ({"fuse": {"most": 4, "apart": ["width", "width"]}}, "fuse.apart[1]", "twice"),
        ({"fuse": "always"}, "fuse", "auto"),
        ({"fuse": {"auto": "yes"}}, "fuse.auto", "true or false"),
        ({"fuse": {"auto": True, "most": 1}}, "fuse.most", "2"),
        ({"fuse": {"most": "all"}}, "fuse.most", "whole number"),
        ({"fuse": {"most": 4, "part": []}}, "fuse.part", "not a known key"),
        ({"trial": {"command": ["python", "train.py"]}}, "fuse", "callable"),
        ({"resources": {"gpus": 2}}, "fuse", "one slot"),
        ({"elastic": {"spare": 4}}, "elastic", "share one"),
        (
            {"resources": {"gpus": {"by": "width", 8: 1, 16: 1, 32: 1}}},
            "resources.gpus",
            "sizes of their own",
        ),
    ],
)
def test_what_cannot_be_fused_is_refused(changes: dict[str, Any], field: str, says: str) -> None:
    assert_refused({**STUDY, **changes}, field, says, alone=False)
