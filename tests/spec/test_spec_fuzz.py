"""Whatever input they get, the readers of a spec answer with a spec or with violations, and quickly."""

import copy
from pathlib import Path

import pytest
import yaml
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from spec_samples import SOUND
from tiers import drawn, processor_time

from headrace.errors import InvalidFieldError
from headrace.spec import from_proto, parse_spec, to_proto
from headrace.spec.file import parse_study_text
from headrace.v1 import spec_pb2 as pb

FRIENDLY = {
    "name": "digits",
    "objective": {"metric": "val_loss", "goal": "minimize"},
    "trial": {"command": ["run", "{lr}"], "working_dir": "x", "env": {"A": 1}, "grace_s": 3},
    "space": {
        "optimizer": {"type": "categorical", "values": ["sgd", "adam"]},
        "lr": {"type": "float", "low": 1e-5, "high": 0.1, "log": True},
        "momentum": {"type": "float", "low": 0.0, "high": 0.99, "when": {"optimizer": ["sgd"]}},
    },
    "policy": {"kind": "asha", "eta": 3, "rungs": [1, 3, 9, 27]},
    "sampler": {"kind": "grid", "points": {"lr": 3, "momentum": 2}},
    "trials": 27,
    "steps": 27,
    "enqueue": [{"optimizer": "adam", "lr": 0.01}],
    "resources": {"gpus": 1, "labels": {"a": "b"}},
    "baseline": {"optimizer": "sgd", "lr": 0.001, "momentum": 0.9},
}
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([0, 1, 2**31, 2**63, -1, 10**400]),
    st.floats(),
    st.text(max_size=6),
    st.sampled_from(
        ["lr", "optimizer", "momentum", "sgd", "asha", "grid", "float", "kind", "{lr", "{}", "a:b"]
    ),
)
JUNK = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(
                ["lr", "low", "type", "kind", "values", "when", "conditions", "parameter", "name", "x"]
            ),
            inner,
            max_size=3,
        ),
    ),
    max_leaves=6,
)
FUZZ = settings(max_examples=drawn(first=120, full=400), suppress_health_check=[HealthCheck.too_slow])


def places(data, path=()):
    """The paths of everything inside the data."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from places(value, (*path, key))


@st.composite
def spoiled(draw, sound):
    """The valid data with up to four places replaced, removed, renamed or added."""
    data = copy.deepcopy(sound)
    for _ in range(draw(st.integers(1, 4))):
        all_places = list(places(data))
        if not all_places:
            break
        *parents, key = draw(st.sampled_from(all_places))
        place = data
        for parent in parents:
            place = place[parent]
        match draw(st.sampled_from(["replace", "replace", "remove", "rename", "add"])):
            case "replace":
                place[key] = draw(JUNK)
            case "remove":
                del place[key]
            case "rename" if isinstance(place, dict):
                place[draw(st.text(max_size=5))] = place.pop(key)
            case _ if isinstance(place, dict):
                place[draw(st.sampled_from(["x", "lr", "when", "step", "log", "min_steps", "brackets"]))] = (
                    draw(JUNK)
                )
            case _:
                place.append(draw(JUNK))
    return data


def answer(read):
    """The spec that was read, or None with violations that are complete."""
    try:
        return read()
    except InvalidFieldError as error:
        violations = error.violations
    assert violations
    assert all(violation.message and violation.remedy for violation in violations)
    return None


@FUZZ
@given(spoiled(SOUND))
def test_plain_data(data):
    spec = answer(lambda: parse_spec(data))
    assert spec is None or from_proto(to_proto(spec)) == spec


@FUZZ
@given(data=spoiled(FRIENDLY))
def test_files(data):
    try:
        text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
    except (UnicodeError, ValueError):  # a lone surrogate, or an integer of too many digits
        return
    answer(lambda: parse_study_text(text, folder=Path("/studies")))


@FUZZ
@given(st.text(max_size=60))
def test_any_text(text):
    answer(lambda: parse_study_text(text, folder=Path("/studies")))


@FUZZ
@given(changes=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=3))
def test_broken_messages(changes):
    encoded = bytearray(to_proto(parse_spec(SOUND)).SerializeToString())
    for place, byte in changes:
        encoded[place % len(encoded)] = byte
    try:
        message = pb.StudySpec.FromString(bytes(encoded))
    except DecodeError:
        return
    spec = answer(lambda: from_proto(message))
    assert spec is None or from_proto(to_proto(spec)) == spec


@pytest.mark.timeout(120)
def test_large_inputs_are_answered_quickly():
    values = list(range(100_000))
    with processor_time(at_most_s=10):
        parse_spec({**SOUND, "space": {"x": {"type": "categorical", "values": values}}, "baseline": None})
        for count in (999, 20_000):
            space = {f"p{k}": {"type": "int", "low": 1, "high": 2} for k in range(count)}
            try:
                parse_spec({**SOUND, "space": space, "baseline": None})
            except InvalidFieldError:
                assert count > 1000
