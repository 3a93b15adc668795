"""What a checkpoint may contain comes back unchanged; what would come back as something else is refused."""

import json
from collections import Counter, OrderedDict, defaultdict
from typing import Any

import numpy as np
import pytest

from headrace.trial.codec import decode, encode


@pytest.mark.parametrize("for_json", [False, True])
@pytest.mark.parametrize(
    "value",
    [
        {"a": (1, 2.5), 3: {None, "x"}},
        Counter("abca"),
        Counter({("t", 1): 2}),
        defaultdict(list, {1: [2]}),
        defaultdict(int),
        {"inner": defaultdict(dict, a={"b": Counter(x=1)})},
        np.arange(6, dtype="<i2").reshape(2, 3),
        np.array(["2026-01-31"], dtype="datetime64[D]"),
        np.float32(0.1),
        b"\0\xff",
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_comes_back_as_it_was(value: Any, for_json: bool) -> None:
    plain = encode(value, "state", for_json=for_json)
    back = decode(json.loads(json.dumps(plain)) if for_json else plain)
    assert _described(back) == _described(value)


def test_a_counter_and_a_defaultdict_answer_for_missing_keys_after_a_resume() -> None:
    back = decode(encode({"seen": Counter(a=1), "by": defaultdict(list)}, "state", for_json=True))
    back["seen"]["b"] += 1
    back["by"]["b"].append(1)
    assert back == {"seen": {"a": 1, "b": 1}, "by": {"b": [1]}}


@pytest.mark.parametrize(
    "value",
    [
        np.ma.masked_array([1, 2], mask=[True, False]),
        np.zeros(2, dtype=[("a", "f4"), ("b", "i4")]),
        np.zeros(2, dtype=[("a", "f4")])[0],
        np.array([object()]),
    ],
    ids=["masked", "fields", "a row with fields", "objects"],
)
def test_an_array_that_is_more_than_its_bytes_is_refused_by_name(value: Any) -> None:
    with pytest.raises(TypeError, match=r"^state\.rows is a numpy\S*, which a checkpoint cannot hold"):
        encode({"rows": value}, "state", for_json=False)


def test_other_kinds_of_dict_come_back_as_one() -> None:
    assert type(decode(encode(OrderedDict(a=1), "state", for_json=False))) is OrderedDict
    made = defaultdict(lambda: 3, a=1)
    assert _described(decode(encode(made, "state", for_json=False))) == _described({"a": 1})


def _described(value: Any) -> Any:
    """Everything that equality ignores: types, and a defaultdict's factory."""
    if isinstance(value, dict):
        items = [(_described(key), _described(item)) for key, item in value.items()]
        return (type(value), getattr(value, "default_factory", None), items)
    if isinstance(value, list | tuple):
        return (type(value), [_described(item) for item in value])
    if isinstance(value, np.ndarray | np.generic):
        return (type(value), value.dtype, value.shape, value.tobytes())
    return (type(value), value)
