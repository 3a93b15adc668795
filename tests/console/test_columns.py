"""Packed columns, read back by a parser that follows the documented format alone."""

import json
import math
import struct
from array import array
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from rpc_site import make_spec

from headrace.client.curves import Curves
from headrace.client.model import TerminationReason, TrialState
from headrace_services.console.columns import packed

SPACE = {
    "x": {"type": "float", "low": 1e-5, "high": 1.0, "log": True},
    "n": {"type": "int", "low": 1, "high": 2**53},
    "opt": {"type": "categorical", "values": ["adam", 1, True, 1.5, "1", "\u202e<b>"]},
}

SPACE_OF = make_spec(space=SPACE).space


def unpacked(data: bytes) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """The header and the columns."""
    (length,) = struct.unpack_from("<I", data)
    head = json.loads(data[4 : 4 + length])
    at, columns = 4 + length, {}
    for name, kind, size in head["columns"]:
        assert at % 8 == 0
        columns[name] = [*struct.unpack_from(f"<{size}{'f' if kind == 'f32' else 'i'}", data, at)]
        at += -(-4 * size // 8) * 8
    assert at == len(data)
    return head, columns


def f32(value: float) -> float:
    """As a column holds it."""
    return struct.unpack("<f", struct.pack("<f", value))[0] if abs(value) < 3e38 else value * math.inf


def same(left: list[float], right: list[float]) -> bool:
    return [str(value) for value in left] == [str(value) for value in right]


@given(
    st.lists(
        st.lists(
            st.tuples(st.integers(1, 2**62), st.floats(allow_nan=True), st.floats(allow_nan=True)), max_size=4
        ),
        max_size=6,
    ),
    st.data(),
)
def test_round_trip(trials: list[list[tuple[int, float, float]]], data: st.DataObject) -> None:
    curves = Curves(space=SPACE_OF)
    choices: list[Any] = [*SPACE["opt"]["values"], None]  # type: ignore[misc]
    opts = [data.draw(st.sampled_from(choices)) for _ in trials]
    points = [point for one in trials for point in one]
    curves.numbers.extend(range(len(trials)))
    curves.states += [TrialState.TERMINATED, TrialState.RUNNING] * len(trials)
    curves.states = curves.states[: len(trials)]
    curves.reasons += [TerminationReason.COMPLETED, None] * len(trials)
    curves.reasons = curves.reasons[: len(trials)]
    curves.scores.extend([one[-1][1] if one else math.nan for one in trials])
    for one in trials:
        curves.starts.append(curves.starts[-1] + len(one))
    curves.steps.extend([step for step, _, _ in points])
    curves.times_s.extend([abs(time) for _, _, time in points])
    curves.metrics["loss"] = array("d", [value for _, value, _ in points])
    curves.params = {"x": [0.5] * len(trials), "n": [2**53] * len(trials), "opt": opts}
    head, columns = unpacked(packed(curves))
    assert (head["trials"], head["points"]) == (len(trials), len(points))
    assert head["outcomes"] == (["completed", "running"] * len(trials))[: len(trials)]
    assert head["metrics"] == ["loss"]
    assert head["params"][0] == {"name": "x", "log": True, "whole": False}
    assert head["params"][2] == {"name": "opt", "choices": [str(one) for one in choices[:-1]]}
    assert columns["numbers"] == [*range(len(trials))]
    assert columns["starts"] == [*curves.starts]
    assert columns["steps"] == [min(step, 2**31 - 1) for step in curves.steps]
    assert same(columns["times"], [f32(value) for value in curves.times_s])
    assert same(columns["scores"], [f32(value) for value in curves.scores])
    assert same(columns["metric:loss"], [f32(value) for value in curves.metrics["loss"]])
    assert columns["param:n"] == [float(2**53)] * len(trials)
    for place, value in enumerate(opts):
        found = columns["param:opt"][place]
        if value is None:
            assert math.isnan(found)
        else:
            chosen = choices[int(found)]
            assert (chosen, type(chosen)) == (value, type(value))  # 1 is neither True nor "1"


def test_an_empty_study() -> None:
    head, columns = unpacked(packed(Curves(space=SPACE_OF)))
    assert (head["trials"], head["points"], head["outcomes"], head["metrics"]) == (0, 0, [], [])
    assert columns.pop("starts") == [0]
    assert not any(columns.values())
    assert [one["name"] for one in head["params"]] == [*SPACE]


def test_a_parameter_that_no_trial_has() -> None:
    curves = Curves(space=SPACE_OF)
    curves.numbers.append(0)
    curves.states.append(TrialState.PENDING)
    curves.reasons.append(None)
    curves.scores.append(math.nan)
    curves.starts.append(0)
    _, columns = unpacked(packed(curves))
    for name in SPACE:
        assert same(columns[f"param:{name}"], [math.nan])


def test_huge_values_become_infinite() -> None:
    curves = Curves()
    values = [1e300, -1e300, 3e38, math.inf, -math.inf, math.nan, 1e-320]
    curves.metrics["m"] = array("d", values)
    curves.steps.extend(range(len(values)))
    curves.times_s.extend([1e300] * len(values))
    _, columns = unpacked(packed(curves))
    assert same(columns["metric:m"], [math.inf, -math.inf, math.inf, math.inf, -math.inf, math.nan, 0.0])
    assert set(columns["times"]) == {math.inf}
