"""The data frame of a result: integers stay exact beside missing ones, and its rows can be tried again."""

import pandas as pd

from headrace import optimize
from headrace.trial import Trial

LARGE = 2**53 + 9
"""No float has this value."""
WHEN = {"kind": "deep"}
SPACE = {
    "kind": {"type": "categorical", "values": ["deep", "flat"]},
    "size": {"type": "int", "low": LARGE - 1, "high": LARGE + 1, "when": WHEN},
    "rate": {"type": "float", "low": 0.0, "high": 1.0, "when": WHEN},
    "flag": {"type": "categorical", "values": [True, False], "when": WHEN},
    "mixed": {"type": "categorical", "values": [1, 2.5, "x"]},
}
TRIED = [
    {"kind": "deep", "size": LARGE, "rate": 0.5, "flag": True, "mixed": 1},
    {"kind": "flat", "mixed": 2.5},
    {"kind": "flat", "mixed": "x"},
]


def loss(t: Trial) -> float:
    return float(t.params.get("rate", 2.0))


def frame_of(enqueue: list[dict[str, object]]) -> pd.DataFrame:
    return optimize(loss, SPACE, trials=len(enqueue), minimize="loss", enqueue=enqueue).dataframe()


def test_columns_have_the_types_of_their_values() -> None:
    frame = frame_of(TRIED)
    kinds = {"kind": "string", "size": "Int64", "rate": "Float64", "flag": "boolean", "mixed": "object"}
    assert {name: str(frame[f"param.{name}"].dtype) for name in kinds} == kinds
    assert int(frame.loc[0, "param.size"]) == LARGE
    assert frame["param.size"].isna().tolist() == [False, True, True]
    assert frame["param.mixed"].tolist() == [1, 2.5, "x"]
    assert frame[frame.sound & ~frame.baseline].score.min() == 0.5
    assert str(frame.started.dtype).startswith("datetime64[us, UTC]")


def test_rows_can_be_tried_again() -> None:
    columns = frame_of(TRIED).filter(like="param.")
    again = columns.rename(columns=lambda name: name.removeprefix("param.")).to_dict("records")
    assert frame_of(again).filter(like="param.").equals(columns)
