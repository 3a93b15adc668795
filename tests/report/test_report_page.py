"""The report: what it shows, that it needs nothing else, and that nothing in a study can escape from its markup."""

import json
import math
import re
from dataclasses import replace
from datetime import timedelta
from html.parser import HTMLParser
from typing import Any

import pytest
from fake_study_service import FakeStudyService
from scripted_study import SPEC, Script, race

from headrace import Client, MissingExtraError
from headrace.client import Importance, ParameterImportance
from headrace.report import build_report
from headrace.report.curves import learning_curves
from headrace.report.data import StudyData, gather
from headrace.report.gantt import gantt
from headrace.report.importance import importance_bars
from headrace.report.loads import device_loads
from headrace.report.page import render
from headrace.report.parallel import parallel_coordinates
from headrace.report.rungs import rung_occupancy
from headrace.report.table import trial_table
from headrace.spec import FloatDomain, Goal, Objective, params_to_proto, parse_spec, to_proto
from headrace.v1 import study_pb2, trial_pb2

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>&'\"<b>"


class Reader(HTMLParser):
    """The tags of a page, and its text outside scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.inside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("script", "style", "title"):
            self.inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self.inside and self.inside[-1] == tag:
            self.inside.pop()

    def handle_data(self, data: str) -> None:
        if not self.inside:
            self.text.append(data)


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    return reader


@pytest.fixture(scope="module")
def script() -> Script:
    return race()


@pytest.fixture
def data(fake: FakeStudyService, client: Client, script: Script) -> StudyData:
    fake.add(script)
    return gather(client.study("digits"))


def test_the_page_shows_the_figures_and_needs_nothing_else(
    fake: FakeStudyService, client: Client, script: Script
) -> None:
    fake.add(script)
    page = build_report(client.study("digits"))
    reader = read(page)
    text = " ".join(" ".join(reader.text).split())
    for part in (
        "best val_loss 0.36774 trial 22 at step 27",
        "baseline val_loss 0.6059 the default configuration, completed at step 27",
        "steps 155 of 756 to run every trial to the end; 79 % saved",
        "4 completed, 23 stopped early, 1 failed",
        "1 min 24 s",
        "ValueError: loss is nan <b>[bold]",
    ):
        assert part in text
    assert not [attrs for tag, attrs in reader.tags if tag in ("link", "img", "iframe") or attrs.get("src")]
    for name in ("curves", "parallel", "gantt", "rungs"):
        assert f'id="figure-{name}"' in page


def test_curves_have_one_line_a_trial_rungs_best_and_baseline(data: StudyData) -> None:
    figure = learning_curves(data)
    names = {trace.name for trace in figure.data}
    assert {"stopped early", "completed", "baseline", "best (trial 22)"} <= names
    baseline = next(trace for trace in figure.data if trace.name == "baseline")
    assert baseline.line.dash == "dash"
    assert len(baseline.x) == 27
    assert [shape.x0 for shape in figure.layout.shapes] == [1, 3, 9, 27]
    stopped = next(trace for trace in figure.data if trace.name == "stopped early")
    assert "the study ended while it waited" in stopped.text[0]
    gaps = sum(x is None for trace in figure.data for x in trace.x)
    assert gaps == 28 - 1 - 2  # all but trial 13, which never reported, the best and the baseline
    assert "lower is better" in figure.layout.yaxis.title.text


def test_parallel_coordinates_have_a_place_for_absent_parameters(data: StudyData) -> None:
    (trace,) = parallel_coordinates(data).data
    labels = [dimension.label for dimension in trace.dimensions]
    assert labels == ["optimizer", "lr", "width", "momentum", "steps", "val_loss"]
    momentum = trace.dimensions[3]
    assert momentum.ticktext[0] == "none"
    assert list(momentum["values"]).count(momentum.tickvals[0]) == sum(
        "momentum" not in t.params for t in data.trials
    )
    assert list(trace.dimensions[0].ticktext) == ["adam", "sgd"]
    assert trace.line.reversescale is True


@pytest.mark.parametrize("names", [2, 5, 11, 16])
@pytest.mark.parametrize("letters", [4, 13, 40])
def test_the_names_of_the_axes_do_not_overlap(data: StudyData, names: int, letters: int) -> None:
    """Measured with 7 px per letter of 13 px, at the page's width; slanted names are separated by their height."""
    space = {f"{'p' * (letters - 2)}{number:02}": FloatDomain(low=0.0, high=1.0) for number in range(names)}
    spec = data.study.spec.model_copy(update={"space": space})
    trials = tuple(replace(trial, params=dict.fromkeys(space, 0.5)) for trial in data.trials)
    figure = parallel_coordinates(replace(data, study=replace(data.study, spec=spec), trials=trials))
    (trace,) = figure.data
    axes = len(trace.dimensions)
    margin, scale_px = figure.layout.margin, 110
    width = (figure.layout.width or 1150) - margin.l - margin.r - scale_px
    apart = width / (axes - 1)
    longest = max(len(dimension.label) for dimension in trace.dimensions) * 7.0
    slant = math.radians(-(trace.labelangle or 0))
    if slant:
        assert apart * math.sin(slant) > 16
        above_axis = 43  # where Plotly puts the middle of a name
        assert longest / 2 * math.sin(slant) < above_axis, (
            "a name reaches down into the values of its neighbour"
        )
        assert longest / 2 * math.sin(slant) + above_axis < margin.t
    else:
        assert longest < apart


def test_all_objectives_have_an_axis_and_a_column(data: StudyData) -> None:
    spec = data.study.spec.model_copy(
        update={"further_objectives": (Objective(metric="accuracy", goal=Goal.MAXIMIZE),)}
    )
    trials = tuple(replace(trial, objective_values=dict(trial.metrics)) for trial in data.trials)
    several = replace(data, study=replace(data.study, spec=spec), trials=trials)
    (trace,) = parallel_coordinates(several).data
    assert [dimension.label for dimension in trace.dimensions][-2:] == ["val_loss", "accuracy"]
    measured = [t for t in trials if t.best_value is not None]
    assert sorted(trace.dimensions[-1]["values"]) == pytest.approx(
        sorted(t.metrics["accuracy"] for t in measured)
    )
    assert ">accuracy</th>" in trial_table(several)
    assert "the values that count: those of its last report" in render(several)


def test_the_gantt_shows_every_stay_on_its_slot(data: StudyData) -> None:
    figure = gantt(data)
    assert figure is not None
    stays = data.stays()
    bars = [trace for trace in figure.data if trace.type == "bar"]
    assert sum(len(trace.x) for trace in bars) == len(stays)
    assert {trace.name for trace in bars} == {"completed", "paused", "failed"}
    pauses = next(trace for trace in figure.data if trace.name == "pause")
    assert len(pauses.x) == sum(stay.ending == "paused" for stay in stays)
    assert set(figure.layout.yaxis.categoryarray) == {"node-1 · slot 0", "node-1 · slot 1"}
    for slot in (0, 1):
        mine = sorted((s.start, s.end) for s in stays if s.slots == (slot,))
        assert len(mine) > 10


def test_rungs_are_counted(data: StudyData) -> None:
    figure = rung_occupancy(data)
    totals = [sum(trace.x[i] for trace in figure.data) for i in range(4)]
    assert totals == [rung.recorded for rung in data.study.rungs]


def test_a_study_that_continues_is_reported_up_to_now(
    fake: FakeStudyService, client: Client, script: Script
) -> None:
    fake.add(script, shown=60)
    fake.batch, fake.watch_moves_on = 7, False
    found = gather(client.study("digits"))
    assert 60 <= len(found.events) < 80
    page = build_report(client.study("digits"))
    assert "live" in " ".join(read(page).text)


def test_a_study_without_any_report(fake: FakeStudyService, client: Client, script: Script) -> None:
    fake.add(race("empty", trials=2), shown=1)
    fake.batch = 1
    text = " ".join(read(build_report(client.study("empty"))).text)
    assert "No trial has a value yet." in text
    assert "No trial was placed on a worker." in text


def hostile_study() -> Script:
    script = race("hostile", trials=4)
    spec = parse_spec(
        {
            **SPEC,
            "space": {"act": {"type": "categorical", "values": [HOSTILE, "plain"]}},
            "baseline": {"act": "plain"},
        }
    )
    for moment in script.moments:
        moment.study.spec.CopyFrom(to_proto(spec))
        moment.study.detail = HOSTILE
        status = moment.study.status
        for trial in [*moment.trials, *([status.best] if status.HasField("best") else []), status.baseline]:
            trial.parameters.CopyFrom(params_to_proto({"act": HOSTILE}))
            trial.detail = HOSTILE
            trial.worker = f"workers/{HOSTILE}" if trial.state == trial_pb2.TRIAL_STATE_RUNNING else ""
    for event in script.events:
        event.message = HOSTILE
        if event.HasField("trial_created"):
            event.trial_created.parameters.CopyFrom(params_to_proto({"act": HOSTILE}))
        if event.HasField("trial_moved"):
            event.trial_moved.detail = HOSTILE
            event.trial_moved.worker = f"workers/{HOSTILE}"
    return script


def test_nothing_in_a_study_breaks_out_of_the_page(fake: FakeStudyService, client: Client) -> None:
    fake.add(hostile_study())
    page = build_report(client.study("hostile"))
    reader = read(page)
    assert "alert(1)</script>" not in page
    assert not [attrs for _, attrs in reader.tags if any(name.startswith("on") for name in attrs)]
    assert not [tag for tag, _ in reader.tags if tag in ("img", "b")]
    assert HOSTILE in " ".join(reader.text)
    calls = re.findall(r'Plotly\.newPlot\(\s*"figure-\w+",\s*(\[.*?\]),\s*\{"', page, re.DOTALL)
    assert len(calls) == 4
    for call in calls:
        assert "<" not in call
        for trace in json.loads(call):
            for dimension in trace.get("dimensions", ()):
                del dimension["ticktext"]  # plain text by Plotly's own rule
            assert not re.search(r"<[^>]*alert", json.dumps(trace, ensure_ascii=False))


def of_a_transfer(name: str, **changes: Any) -> Script:
    script = race(name, trials=4)
    spec = to_proto(parse_spec({**SPEC, **changes}))
    for moment in script.moments:
        moment.study.spec.CopyFrom(spec)
    return script


def test_the_schedule_shows_the_other_study_of_a_transfer(fake: FakeStudyService, client: Client) -> None:
    fake.add(of_a_transfer("small", transfer={"callable": "train:target", "top": 2}))
    best_of = {"kind": "best_of", "study": "small"}
    fake.add(of_a_transfer("small-target", sampler=best_of))
    fake.add(of_a_transfer("later", sampler=best_of))
    for name, other in (("small", "small-target"), ("small-target", "small")):
        found = gather(client.study(name))
        figure = gantt(found)
        assert figure is not None
        assert found.other is not None
        (trace,) = [trace for trace in figure.data if trace.name == f"study {other}"]
        assert len(trace.base) == len(found.other.stays) == len(client_stays(client, other)) > 0
        assert [note.text for note in figure.layout.annotations] == ["search ended"]
        assert f"Trials of study {other} are shown too" in render(found)
    assert gather(client.study("later")).other is None  # it is not part of the search
    client.study("small-target").delete()
    assert gather(client.study("small")).other is None


def client_stays(client: Client, name: str) -> list[Any]:
    return gather(client.study(name)).stays()


def test_without_plotly_one_clear_error(
    fake: FakeStudyService, client: Client, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "plotly", None)
    fake.add(script)
    with pytest.raises(MissingExtraError, match=r"headrace\[report\]"):
        build_report(client.study("digits"))


def test_the_data_frame_has_a_row_a_trial(
    fake: FakeStudyService, client: Client, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.add(script)
    frame = client.study("digits").dataframe()
    assert frame.shape[0] == 28
    assert frame.loc[22, "best_value"] == pytest.approx(0.36774, abs=1e-5)
    assert frame.loc[22, "param.optimizer"] == "adam"
    assert (frame["ended"] - frame["created"]).dt.total_seconds().min() >= 0
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(MissingExtraError, match=r"headrace\[report\]"):
        client.study("digits").dataframe()


def test_a_row_of_several_objectives_has_the_values_of_one_step(data: StudyData) -> None:
    """The values of the trial's last report, as in `headrace trials`, and no step next to them."""
    spec = data.study.spec.model_copy(
        update={"further_objectives": (Objective(metric="cost", goal=Goal.MINIMIZE),)}
    )
    last = {"val_loss": 0.9, "cost": 5.0}
    trial = replace(data.by_number[1], best_value=0.01, best_step=1, step=2, objective_values=last)
    study = replace(data.study, spec=spec, front=(trial,))
    several = replace(data, study=study, trials=(trial,))
    (row,) = re.findall(r"<tr class=.*?</tr>", trial_table(several))
    cells = re.findall(r"<td[^>]*>(.*?)</td>", row)
    assert cells[2:5] == ["2", "0.9", "5"]
    assert "at step" not in trial_table(several)
    assert '<tr class="best">' in row, "those on the Pareto front are marked"
    (trace,) = parallel_coordinates(several).data
    assert list(trace.dimensions[-2]["values"]) == [0.9]


def test_the_importance_of_parameters_is_a_bar_each(data: StudyData) -> None:
    parts = tuple(
        ParameterImportance(parameter=name, share=share, trials=11)
        for name, share in (("</script><b>", 0.7), ("lr", 0.3))
    )
    found = Importance(metric="val_loss", step=3, trials=11, parameters=parts, reason="")
    (bars,) = importance_bars(found).data
    assert list(bars.x) == [70.0, 30.0]
    assert list(bars.y) == ["&lt;/script&gt;&lt;b&gt;", "lr"]
    reader = read(render(replace(data, importances=(found,))))
    assert "of the 11 trials that reached step 3" in " ".join(reader.text)
    assert "figure-importance-0" in [attrs.get("id") for _, attrs in reader.tags]
    missing = replace(found, parameters=(), reason="at most 3 trials reached the same rung")
    page = render(replace(data, importances=(missing,)))
    assert "Not known: at most 3 trials reached the same rung." in " ".join(read(page).text)


def test_devices_of_the_study_are_drawn_with_their_loads(
    fake: FakeStudyService, client: Client, script: Script
) -> None:
    fake.add(script)
    began = script.final.study.create_time.ToDatetime()
    used = {(stay.worker, index) for stay in gather(client.study("digits")).stays() for index in stay.slots}
    name, index = min(used)
    worker = study_pb2.WorkerStatus(name=f"workers/{name}", connected=True)
    for place in (index, 99):  # nothing of the study was on slot 99
        slot = worker.slots.add(index=place, device="H200")
        for minute in (-30, 0, 1):  # the first one was before the study
            load = slot.loads.add(utilization=0.25, memory_used_bytes=2**31)
            load.minute.FromDatetime(began + timedelta(minutes=minute))
    fake.workers.append(worker)
    found = gather(client.study("digits"))
    (device,) = found.devices
    assert (device.worker, device.index, len(device.loads)) == (name, index, len(device.loads))
    assert all(load.minute.replace(tzinfo=None) >= began - timedelta(minutes=1) for load in device.loads)
    figure = device_loads(found)
    assert figure is not None
    busy, memory = figure.data
    assert set(busy.y) == {25.0}
    assert set(memory.y) == {2.0}
    assert "How busy the devices were" in " ".join(read(render(found)).text)
    assert device_loads(replace(found, devices=())) is None
