"""What the command line writes to files: `headrace export`, and the data frame beside it."""

import csv
import io
import json
from datetime import datetime
from pathlib import Path

import pytest
from commands_run import Invoke
from fake_study_service import FakeStudyService
from scripted_study import Script, race

from headrace.client import Client
from headrace.v1 import trial_pb2


def test_export_as_csv_and_json(fake: FakeStudyService, invoke: Invoke, script: Script, tmp_path) -> None:  # type: ignore[no-untyped-def]
    rows = list(csv.DictReader(io.StringIO(invoke("export", "digits").out)))
    assert len(rows) == 28
    assert rows[3]["param.momentum"] == "0.51"
    assert rows[2]["param.momentum"] == ""
    assert rows[0]["baseline"] == "true"
    assert datetime.fromisoformat(rows[0]["created"]).tzinfo is not None
    assert "T" in rows[0]["created"]
    assert float(rows[22]["param.lr"]) == pytest.approx(0.06210169418915616, rel=0)
    same = json.loads(invoke("export", "digits", "--format", "json").out)
    assert list(same[0]) == list(rows[0])
    assert same[2]["param.momentum"] is None
    out = tmp_path / "reports.csv"
    assert invoke("export", "digits", "--reports", "-o", str(out)).code == 0
    reports = list(csv.DictReader(io.StringIO(out.read_text())))
    assert len(reports) == len(script.reports)
    assert {"trial", "step", "metric.val_loss", "metric.accuracy"} <= set(reports[0])
    assert invoke("export", "digits", "-o", str(tmp_path / "no" / "such" / "folder.csv")).code == 1


def test_an_export_is_what_its_file_is_called(fake: FakeStudyService, invoke: Invoke, tmp_path: Path) -> None:
    result = invoke("export", "digits", "-o", str(tmp_path / "digits.xlsx"))
    assert result.code == 2
    assert "ends in .xlsx, but an export is CSV or JSON" in result.err
    assert not list(tmp_path.iterdir())
    for name, options in (("a.json", []), ("b.txt", ["--format", "json"]), ("c", ["--format", "json"])):
        assert invoke("export", "digits", "-o", str(tmp_path / name), *options).code == 0
        assert len(json.loads((tmp_path / name).read_text())) == 28
    assert invoke("export", "digits", "-o", str(tmp_path / "plain")).code == 0
    assert (tmp_path / "plain").read_text().startswith("study,trial,")


def test_every_metric_is_a_column_of_an_export_and_of_the_data_frame(
    fake: FakeStudyService, invoke: Invoke
) -> None:
    script = fake.add(race())
    del script.final.trials[1].metrics["accuracy"]
    rows = list(csv.DictReader(io.StringIO(invoke("export", "digits").out)))
    assert float(rows[2]["metric.accuracy"]) == script.final.trials[2].metrics["accuracy"]
    assert rows[1]["metric.accuracy"] == ""
    same = json.loads(invoke("export", "digits", "--format", "json").out)
    assert same[1]["metric.accuracy"] is None
    assert same[1]["metric.val_loss"] == same[1]["value"]
    with Client(fake.address) as client:
        frame = client.study("digits").dataframe()
    assert frame["metric.val_loss"].equals(frame["value"].rename("metric.val_loss"))


def test_an_export_and_the_data_frame_tell_trials_that_failed_or_diverged(
    fake: FakeStudyService, invoke: Invoke
) -> None:
    """Their best values stay, because the trials reported them."""
    trials = fake.add(race()).final.trials
    trials[1].termination_reason = trial_pb2.TERMINATION_REASON_FAILED
    trials[2].value = float("nan")
    rows = list(csv.DictReader(io.StringIO(invoke("export", "digits").out)))
    assert [row["sound"] for row in rows[:4]] == ["true", "false", "false", "true"]
    assert rows[1]["best_value"]
    with Client(fake.address) as client:
        frame = client.study("digits").dataframe()
    assert frame.index[frame.sound == False][:2].tolist() == [1, 2]  # noqa: E712 - a column
