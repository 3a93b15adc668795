"""`headrace plan` as a user runs it, and the files that it writes."""

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from plan_command import run, said
from refusals import refused

from headrace.cli.failure import CommandError
from headrace.errors import InvalidFieldError

DATA = Path(__file__).parents[2] / "benchmarks" / "planner" / "data"
SMALL = ["gpt3-2.7b", "a100-16", "--batch", "32"]


def test_a_plan_as_text_and_as_json() -> None:
    text = run(*SMALL)
    for word in ("gpt3-2.7b", "a100-80g-16", "iteration", "MFU", "stage", "bubbles"):
        assert word in text
    record = json.loads(run(*SMALL, "--json"))
    degrees = record["degrees"]
    assert degrees["d"] * degrees["m"] * degrees["s"] == 16
    assert record["iteration_s"] >= record["lower_bound_s"] > 0
    assert run(*SMALL, "--json") == run("make", *SMALL, "--json"), "`make` is what the bare words mean"


def test_the_windows_of_a_plan_are_its_iteration_without_its_work() -> None:
    words = ["gpt3-175b", "a100-64", "--batch", "64", "--bubbles"]
    record = json.loads(run(*words, "--json"))
    stages = record["bubbles"]
    assert len(stages) == record["degrees"]["s"] > 1
    iteration, micro_batches = record["iteration_s"], record["degrees"]["mu"]
    rests = []
    for stage, planned in zip(stages, record["stages"], strict=True):
        work = micro_batches * (planned["forward_s"] + planned["backward_s"]) + planned["tail_s"]
        rests.append(iteration - stage["idle_s"] - work)
        assert 0 <= stage["usable_s"] <= stage["idle_s"]
        assert stage["longest_s"] <= stage["idle_s"]
    # Work that all stages do together, such as the optimizer's step.
    assert rests == pytest.approx([rests[0]] * len(rests), abs=1e-6 * iteration)
    assert 0 <= rests[0] < 0.01 * iteration
    text = run(*words)
    assert "bubbles of stage" in text
    with pytest.raises(CommandError, match="--bubbles"):
        run(*SMALL, "--compare", "--bubbles")


def test_all_modes_side_by_side() -> None:
    assert run("compare", *SMALL) == run(*SMALL, "--compare")
    records = json.loads(run("compare", *SMALL, "--json"))
    assert [one["mode"] for one in records] == [
        "h2o",
        "d-rec",
        "dapple",
        "pipedream",
        "alpa",
        "adapipe",
        "expert",
    ]
    best = records[0]["plan"]["iteration_s"]
    assert all(one["plan"] is None or one["plan"]["iteration_s"] >= best for one in records)


def test_an_explanation_names_the_losers() -> None:
    told = json.loads(run("explain", *SMALL, "--count", "4", "--json"))
    assert len(told["losers"]) == 4
    assert "tuples of degrees" in told["summary"]
    assert "why not" in run("explain", *SMALL)


@pytest.mark.parametrize(
    ("words", "field", "says"),
    [
        (["gpt3-2.7", "a100-16"], "model", " | gpt3-2.7b"),
        ([*SMALL, "--mode", "h20"], "mode", " | h2o"),
        ([*SMALL, "--seconds", "0"], "seconds", " | unit"),
        ([*SMALL, "--target", "jax", "--out", "x"], "target", " | deepspeed"),
        ([*SMALL, "--out", "/proc/nowhere"], "out", " | folder"),
        ([*SMALL, "--out", "/dev/null"], "out", " | folder"),
    ],
)
def test_what_is_wrong_is_named_with_a_remedy(words: list[str], field: str, says: str) -> None:
    with refused(field, says):
        run(*words)


def test_too_small_a_cluster_says_what_binds_and_a_fix_that_works() -> None:
    with pytest.raises(InvalidFieldError) as failed:
        run("gpt3-175b", "a100-8", "--batch", "8")
    (violation,) = failed.value.violations
    assert "GiB short" in violation.message
    assert "stage" in violation.message
    words = violation.remedy.split()
    assert (
        json.loads(run("gpt3-175b", words[0], "--batch", words[-1].rstrip("."), "--json"))["iteration_s"] > 0
    )


@pytest.mark.parametrize(
    "words",
    [
        ["--mode", "alpa"],
        ["--out", "x"],
        ["--out", "x", "--target", "megatron"],
        ["--front"],
        ["--seconds", "5"],
        ["--budget", "3"],
    ],
)
def test_a_comparison_refuses_what_it_would_ignore(words: list[str]) -> None:
    with pytest.raises(CommandError, match="--compare"):
        run(*SMALL, "--compare", *words)


@pytest.mark.parametrize("words", [["--front"], ["--compare"], ["--plot", "x.svg"], ["--selective", "1-2"]])
def test_a_server_is_not_asked_what_it_would_ignore(words: list[str]) -> None:
    with pytest.raises(CommandError, match=f"server does not take {words[0]}"):
        run(*SMALL, "--address", "127.0.0.1:1", *words)


def test_a_limit_gives_the_best_until_then_with_a_bound() -> None:
    whole = json.loads(run("gpt3-13b", "a100-64", "--batch", "64", "--json"))
    one = json.loads(run("gpt3-13b", "a100-64", "--batch", "64", "--budget", "1", "--json"))
    assert whole["complete"]
    assert not one["complete"]
    assert one["bound_s"] <= whole["analytic_s"] * (1 + 1e-9)
    assert one["iteration_s"] >= whole["iteration_s"]
    words = ["gpt3-13b", "a100-64", "--batch", "64", "--budget", "1"]
    assert "the limit ended the search" in said(*words)
    assert json.loads(run(*SMALL, "--seconds", "600", "--json"))["complete"]


def test_a_target_needs_a_folder() -> None:
    with pytest.raises(CommandError, match="--out"):
        run(*SMALL, "--target", "megatron")


@pytest.mark.parametrize("target", ["deepspeed", "megatron"])
def test_what_is_written(tmp_path: Path, target: str) -> None:
    run("gpt3-13b", "a100-32", "--batch", "64", "--target", target, "--out", str(tmp_path))
    assert {"plan.json", "timeline.json", "timeline.svg", "lowering.md"} < {
        path.name for path in tmp_path.iterdir()
    }
    assert target in (tmp_path / "lowering.md").read_text()
    if target == "deepspeed":
        compile((tmp_path / "pipeline.py").read_text(), "pipeline.py", "exec")


def test_the_trace_has_perfettos_format(tmp_path: Path) -> None:
    """The Trace Event Format: complete slices that nest exactly, metadata, counters; times in whole microseconds.

    Perfetto drops a slice that overlaps another by a nanosecond, and does not allow a thread 0 in a process.
    """
    run("gpt3-13b", "a100-32", "--batch", "64", "--schedule", "zero-bubble", "--out", str(tmp_path))
    trace = json.loads((tmp_path / "timeline.json").read_text())
    record = json.loads((tmp_path / "plan.json").read_text())
    assert trace["displayTimeUnit"] in ("ms", "ns")
    ends: dict[int, list[int]] = {}
    for event in trace["traceEvents"]:
        assert event["ph"] in ("X", "M", "C")
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        match event["ph"]:
            case "X":
                assert isinstance(event["ts"], int)
                assert isinstance(event["dur"], int)
                assert event["ts"] >= 0
                assert event["dur"] >= 0
                assert event["tid"] >= 1
                open_ = ends.setdefault(event["tid"], [])
                while open_ and event["ts"] >= open_[-1]:
                    open_.pop()
                assert all(event["ts"] + event["dur"] <= end for end in open_), "slices must nest"
                open_.append(event["ts"] + event["dur"])
            case "C":
                assert all(isinstance(value, int) for value in event["args"].values())
    slices = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    last = max(event["ts"] + event["dur"] for event in slices) / 1e6
    assert last == pytest.approx(record["iteration_s"], rel=1e-2)


def test_the_picture_is_an_svg_with_every_stage(tmp_path: Path) -> None:
    run("gpt3-175b", "a100-64", "--batch", "64", "--out", str(tmp_path))
    root = ET.fromstring((tmp_path / "timeline.svg").read_text())
    texts = [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")]
    stages = len(json.loads((tmp_path / "plan.json").read_text())["stages"])
    for stage in range(stages):
        assert any(text.startswith(f"stage {stage} ") for text in texts)
    for word in ("bubble", "collectives", "activations", "capacity"):
        assert word in texts


@pytest.mark.full
def test_calibration(tmp_path: Path) -> None:
    rows = [str(DATA / "vtrain_multi_node.csv"), str(DATA / "vtrain_single_node.csv")]
    out = tmp_path / "mine.json"
    told = json.loads(run("calibrate", *rows, "--folds", "5", "--out", str(out), "--json"))
    assert told["cross_validated"]["median"] <= 0.05
    assert told["cross_validated"]["mean"] <= 0.08
    assert json.loads(out.read_text())["mine"]["constants"] == told["constants"]


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "zero-bubble"])
def test_shares_of_a_stage_are_the_whole_iteration(tmp_path: Path, schedule: str) -> None:
    """Every stage's bar is as wide as every other's, and its bubble is what its passes leave."""
    chunks = ["--chunks", "2"] if schedule == "interleaved" else []
    run("gpt3-175b", "a100-64", "--batch", "64", "--schedule", schedule, *chunks, "--out", str(tmp_path))
    root = ET.fromstring((tmp_path / "timeline.svg").read_text())
    svg = "{http://www.w3.org/2000/svg}"
    bars: dict[str, dict[str, float]] = {}
    widths: dict[str, float] = {}
    for rect in root.iter(f"{svg}rect"):
        title = rect.find(f"{svg}title")
        if title is None or title.text is None or "micro-batch" in title.text:
            continue
        what, seconds = title.text.removesuffix(" s").split(": ")
        bars.setdefault(rect.attrib["y"], {})[what] = float(seconds)
        widths[rect.attrib["y"]] = widths.get(rect.attrib["y"], 0.0) + float(rect.attrib["width"])
    record = json.loads((tmp_path / "plan.json").read_text())
    assert len(bars) == len(record["stages"])
    assert max(widths.values()) - min(widths.values()) < 1
    for parts in bars.values():
        assert sum(parts.values()) == pytest.approx(record["iteration_s"], rel=0.01)
        assert parts["forward"] < parts["backward"] + parts.get("weight gradients", 0.0)
        assert parts["bubble"] > 0


@pytest.mark.parametrize("text", ["", "gpus,tp\n1,2\n", "gpus\nx\n"])
def test_rows_that_are_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(text)
    with pytest.raises(InvalidFieldError):
        run("calibrate", str(path))
