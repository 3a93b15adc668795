"""Files of recorded runs: what is read, and what is said about files that cannot be."""

import gzip
import math

import pytest

from headrace_services.scheduler.simulator.recorded import COLUMN, CurveFileError, RecordedCurves, read_curves

HEAD = "curve,step,seconds,value,hyperparameters,metric,goal"
GOOD = f"""{HEAD}
a,10,1.5,0.9,"{{""lr"": 0.1, ""name"": ""adam"", ""decay"": [1, 2]}}",loss,minimize
a,20,3.0,0.8,,loss,minimize
b,10,2.0,nan,,loss,minimize
b,25,5.0,,,loss,minimize
b,40,9.0,0.5,,loss,minimize
"""


def written(tmp_path, text, name="runs.csv"):
    path = tmp_path / name
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


@pytest.mark.parametrize("name", ["runs.csv", "runs.csv.gz"])
def test_a_report_is_a_step(tmp_path, name):
    file = read_curves(written(tmp_path, GOOD, name))
    first, second = file.curves
    assert (file.metric, file.goal, file.longest) == ("loss", "minimize", 3)
    assert first.params == {"lr": 0.1, "name": "adam", "decay": "[1, 2]"}
    assert (first.steps, first.seconds, first.values) == ((1, 2), (1.5, 3.0), (0.9, 0.8))
    assert second.value(1) is not None
    assert math.isnan(second.value(1))
    assert second.value(2) is None
    assert second.points(0, 3) == ((3, 0.5),), "what has no finite value is no point"


@pytest.mark.parametrize(
    "text", ["curve,value\na,0.5\na,nan\nb,0\n", f"{HEAD}\na,1,,0.5,,,\na,2,,nan,,,\nb,1,,0,,,\n"]
)
def test_without_seconds_each_report_costs_one(tmp_path, text):
    first, second = read_curves(written(tmp_path, text)).curves
    assert (first.seconds, second.seconds) == ((1.0, 2.0), (1.0,))
    assert math.isnan(first.values[1])
    assert second.values == (0.0,), "a value of 0 is one"


def test_the_files_own_steps(tmp_path):
    _, curve = read_curves(written(tmp_path, GOOD), steps=COLUMN).curves
    assert curve.steps == (10, 25, 40)
    assert curve.report_step(0, 11) == 25, "the first report at or past the milestone"
    assert curve.report_step(25, 20) == 40, "never back"
    assert curve.report_step(0, 99) == 40
    assert curve.train_s(0, 10) == 2.0
    assert curve.train_s(10, 25) == 3.0
    assert curve.train_s(0, 5) == 1.0, "in proportion between reports"
    assert curve.last_step == 40
    assert curve.truth(99) == 0.5, "beyond its end it keeps its last value"


def test_the_order_is_drawn_by_the_seed_and_all_are_there(tmp_path):
    rows = "\n".join(f"{n},1,1.0,{n}" for n in range(50))
    file = read_curves(written(tmp_path, f"curve,step,seconds,value\n{rows}\n"))
    one, same, other = (RecordedCurves.shuffled(file, seed=seed, trials=50) for seed in (1, 1, 2))
    assert one == same != other
    assert sorted(curve.name for curve in one.order) == sorted(curve.name for curve in file.curves)
    assert RecordedCurves.shuffled(file, seed=None, trials=3).order == file.curves[:3]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("curve,seconds\na,1\n", r"line 1: has no column value"),
        (f"{HEAD}\na,1,1,0.5,,,\na,2,,0.5,,,\n", r"line 3: has no seconds"),
        (f"{HEAD}\na,1,,0.5,,,\na,2,2,0.5,,,\n", r"line 3: has seconds, and the reports above have none"),
        (f"{HEAD}\n", "has no rows"),
        (f"{HEAD}\na,1,x,0.5,,,\n", r"line 2: has the seconds 'x', which is not a number"),
        (
            f"{HEAD}\na,1,1,0.5,,,\na,2,0.5,0.5,,,\n",
            r"line 3: goes back in the steps or the seconds of curve a",
        ),
        (f"{HEAD}\na,1,1,high,,,\n", r"line 2: has the value 'high'"),
        (f"{HEAD}\na,1,1,0.5,[1],,\n", r"line 2: has hyperparameters that are not a JSON object"),
        (f"{HEAD}\na,1,1,0.5,{{,,\n", r"line 2: has hyperparameters that are not JSON"),
        (
            f"{HEAD}\na,1,1,0.5,,loss,\nb,1,1,0.5,,accuracy,\n",
            r"line 3: has the metric accuracy, above it was loss",
        ),
    ],
)
def test_what_is_wrong_is_reported_with_its_line(tmp_path, text, said):
    with pytest.raises(CurveFileError, match=said):
        read_curves(written(tmp_path, text))


def test_files_that_are_not_there_or_not_what_they_say(tmp_path):
    with pytest.raises(CurveFileError, match="No such file"):
        read_curves(tmp_path / "none.csv")
    path = tmp_path / "fake.csv.gz"
    path.write_text("not gzip")
    with pytest.raises(CurveFileError, match="cannot be read"):
        read_curves(path)
    with pytest.raises(CurveFileError, match="has no column step"):
        read_curves(written(tmp_path, "curve,seconds,value\na,1,1\n"), steps=COLUMN)
