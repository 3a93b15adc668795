"""`headrace simulate` as a user runs it."""

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import typer
from typer.testing import CliRunner

from headrace.cli.failure import CommandError
from headrace_services.scheduler.simulator.command import simulate
from headrace_services.scheduler.simulator.engine import SimulationError
from headrace_services.scheduler.simulator.recorded import CurveFileError
from headrace_services.scheduler.simulator.variants import PolicyTextError

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "seed_figure" / "study.yaml")
SMALL = """
name: small
objective: {metric: accuracy, goal: maximize}
space: {x: {type: float, low: 0, high: 1}}
policy: {kind: asha, eta: 3, rungs: [1, 3, 9]}
trials: 9
steps: 9
"""


def run(*words: str) -> str:
    app = typer.Typer()
    app.command()(simulate)
    result = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text(SMALL)
    return str(path)


@pytest.fixture
def runs(tmp_path):
    rows = [
        f"{run},{10.0 * step},{run / 10 + step / 100},accuracy,maximize"
        for run in range(9)
        for step in range(1, 10)
    ]
    path = tmp_path / "runs.csv"
    path.write_text("\n".join(["curve,seconds,value,metric,goal", *rows, ""]))
    return str(path)


def test_simulated_time_has_no_end(small):
    """Steps may be tokens, and their seconds exceed the years of a calendar."""
    assert "9 trials" in run(small, "--workers", "1", "--seconds-per-step", "1e11")


def test_an_assumed_cluster_is_reported(small):
    said = "(assumed: give --workers or --types)"
    assert f"on 4 workers {said}" in run(small)
    assert said not in run(small, "--workers", "4")
    assert said not in run(small, "--types", "h100:1x4")


def test_the_seeds_figure():
    text = run(EXAMPLE)
    table = [line.split() for line in text.splitlines() if line.startswith(("run_all ", "rung_median "))]
    assert table[0][:6] == ["run_all", "1200", "1200", "300", "40", "0"]
    assert table[1][:6] == ["rung_median", "730", "730", "195", "11", "29"]
    assert "the same winner, trial 39" in text
    assert "worker-4  █" in text


def test_json_has_the_same_figures():
    record = json.loads(run(EXAMPLE, "--json"))
    assert [one["policy"] for one in record["runs"]] == ["run_all", "rung_median"]
    assert [(one["steps"], one["wall_s"]) for one in record["runs"]] == [(1200, 300), (730, 195)]


def test_values_to_maximize_rise(small, tmp_path):
    """Accuracies rise. No user of such a metric has ever seen a loss with its sign reversed."""
    runs = {one["policy"]: one for one in json.loads(run(small, "--seed", "3", "--json"))["runs"]}
    lower = tmp_path / "lower.yaml"
    lower.write_text(SMALL.replace("accuracy", "loss").replace("maximize", "minimize"))
    mirrored = {one["policy"]: one for one in json.loads(run(str(lower), "--seed", "3", "--json"))["runs"]}
    for policy, one in runs.items():
        assert 0 < one["best_value"] < 1.2
        assert 0 < one["winner_value"] < 1.2
        assert one["best_value"] == pytest.approx(1.2 - mirrored[policy]["best_value"])
        assert (one["steps"], one["winner"]) == (mirrored[policy]["steps"], mirrored[policy]["winner"])
    table = [line.split() for line in run(small, "--seed", "3").splitlines()]
    values = [float(row[-2]) for row in table if row[:1] in (["run_all"], ["asha"])]
    assert len(values) == 2
    assert min(values) > 0


def test_recorded_runs_take_their_own_time(small, runs):
    record = json.loads(run(small, "--curves", runs, "--in-order", "--workers", "1", "--json"))
    first = record["runs"][0]
    assert first["wall_s"] == 9 * 90.0
    assert (first["best"], first["winner"]) == (8, 8)
    assert first["best_value"] == pytest.approx(0.89)


def test_policies_side_by_side_and_the_tradeoff(small, tmp_path):
    plot = tmp_path / "tradeoff.html"
    text = run(small, "--compare", "study,asha-stopping,median", "--seeds", "3", "--plot", str(plot))
    labels = [line.split()[0] for line in text.splitlines()[3:7]]
    assert labels == ["run_all", "study", "asha-stopping", "median"]
    assert "95% intervals" in text
    page = plot.read_text()
    assert page.startswith("<!doctype html>")
    assert page.count("<svg") == 1


def test_a_sweep_is_of_the_studys_own_policy(small):
    record = json.loads(run(small, "--sweep", "eta=2,4", "--seeds", "2", "--json"))
    assert [row["label"] for row in record["policies"]] == ["run_all", "eta=2", "eta=4"]
    assert record["seeds"] == [0, 1]
    costs = [row["cost"]["mean"] for row in record["policies"]]
    assert costs[0] == 1.0
    assert costs[2] < costs[1] < 1.0


def test_the_gantt_has_a_bar_for_every_stay(small, tmp_path):
    plot = tmp_path / "gantt.svg"
    record = json.loads(run(small, "--workers", "2", "--plot", str(plot), "--json"))
    root = ET.parse(plot).getroot()
    tips = [tip.text or "" for tip in root.iter("{http://www.w3.org/2000/svg}title")]
    asha = record["runs"][1]
    stays = [tip for tip in tips if tip.startswith("trial ")]
    assert len(stays) == asha["trials"] + asha["resumes"]


def test_types_failures_and_costs(small):
    words = [
        "--types",
        "fast:1x2@2,slow:1x2",
        "--mttf",
        "6",
        "--repair",
        "1",
        "--checkpoint-gb",
        "2",
        "--seed",
        "5",
    ]
    text = run(small, *words)
    assert "on 2 workers with 4 slots" in text
    assert "fast-1/0" in text
    assert "machines failed under" in text


@pytest.mark.parametrize(
    ("words", "error", "said"),
    [
        (["--types", "a100"], CommandError, "is not of the form NAME:WORKERS"),
        (["--types", "a100:0"], CommandError, "has a zero"),
        (["--plot", "x.png"], CommandError, "neither .svg nor .html"),
        (["--compare", "ahsa"], PolicyTextError, "'ahsa'"),
        (["--compare", "asha:eta"], PolicyTextError, "'eta' in 'asha:eta' is not a setting"),
        (["--compare", "asha:eta=1"], PolicyTextError, "eta"),
        (["--compare", "asha,median", "--sweep", "eta=2"], CommandError, "names several"),
        (["--sweep", "eta"], PolicyTextError, "is not a setting with values"),
        (["--curves", "none.csv"], CurveFileError, "No such file"),
        (["--curve-steps", "epochs"], CommandError, "neither reports nor column"),
    ],
)
def test_what_is_wrong_is_reported(small, words, error, said):
    with pytest.raises(error, match=said):
        run(small, *words)


def test_a_study_that_fits_nowhere_is_reported(small, tmp_path):
    study = tmp_path / "gang.yaml"
    study.write_text(SMALL + "resources: {gpus: 8}\n")
    with pytest.raises(SimulationError, match="do its resources fit on one of the 2 machines"):
        run(str(study), "--types", "a100:2x4")
    assert "asha" in run(str(study), "--workers", "1"), "a worker has the slots that a trial asks for"


def test_runs_of_another_metric_or_goal_are_refused(small, runs, tmp_path):
    study = tmp_path / "other.yaml"
    study.write_text(SMALL.replace("accuracy", "loss"))
    with pytest.raises(CommandError, match=r"recorded 'accuracy', the study's objective is 'loss'"):
        run(str(study), "--curves", runs)
    study.write_text(SMALL.replace("maximize", "minimize"))
    with pytest.raises(
        CommandError, match=r"the runs maximize their metric, but the study is to minimize it"
    ):
        run(str(study), "--curves", runs)


def test_a_policy_takes_over_the_studys_rungs_where_it_has_any(small):
    from headrace.spec import load_study_file
    from headrace_services.scheduler.simulator.variants import compared

    spec = load_study_file(small).spec
    found = {one.label: one.spec for one in compared(spec, "study,median,hyperband,asha:min_steps=3,run_all")}
    assert found["median"].rungs() == found["hyperband"].rungs() == (1, 3, 9)
    assert found["asha:min_steps=3"].rungs() == (3, 9)
    assert found["run_all"].rungs() == (9,)
    assert found["study"] == spec


def test_a_study_that_is_too_large_is_refused_before_it_is_simulated(tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text(SMALL.replace("trials: 9", "trials: 1000000"))
    with pytest.raises(CommandError) as refusal:
        run(str(path))
    assert "3000000 reports" in str(refusal.value)
    assert "fewer trials" in refusal.value.remedy


@pytest.mark.full
def test_a_cluster_that_is_too_large_is_refused(small):
    with pytest.raises(CommandError, match="at most 100000"):
        run(small, "--types", ",".join(f"t{place}:90000" for place in range(3)))


@pytest.fixture
def fused(tmp_path):
    path = tmp_path / "fused.yaml"
    path.write_text(SMALL + "trial: {callable: 'train:train'}\nresources: {gpus: 0}\nfuse: auto\n")
    return str(path)


def test_a_bundle_s_step_takes_longer_as_it_says(fused):
    words = (fused, "--compare", "run_all", "--workers", "1", "--seconds-per-step", "10", "--json")
    free, dear = (json.loads(run(*words, *more))["runs"][0]["wall_s"] for more in ((), ("--bundle", "2:2")))
    assert dear > 1.5 * free


@pytest.mark.parametrize("text", ["8", "1:2", "8:0.5", "eight:1", "8:nan", "8:1,,9:2"])
def test_a_bundle_s_step_that_makes_no_sense_is_refused(fused, text):
    with pytest.raises(CommandError, match=r"--bundle: '.*' is not a number of members"):
        run(fused, "--bundle", text)


def test_a_bundle_s_step_needs_a_study_that_fuses(small):
    with pytest.raises(CommandError, match="the study has no fuse"):
        run(small, "--bundle", "8:1")
