"""`headrace plan … --plot`: the chart and the page agree with the plan."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from plan_command import run
from refusals import refused

from headrace.cli.failure import CommandError
from headrace.client.missing import MissingExtraError
from headrace_services.planner import picture

SVG = "{http://www.w3.org/2000/svg}"
RECOMPUTES = ["llama3-70b", "h100-64", "--batch", "512"]


def _stage_memory(root: ET.Element) -> list[dict[str, float]]:
    """Widths of the memory bars in pixels, top to bottom, by component."""
    rows: dict[str, dict[str, float]] = {}
    for rect in root.iter(f"{SVG}rect"):
        title = rect.find(f"{SVG}title")
        if title is not None and (title.text or "").endswith("GiB"):
            what = (title.text or "").split(":")[0]
            rows.setdefault(rect.attrib["y"], {})[what] = float(rect.attrib["width"])
    return [rows[y] for y in sorted(rows, key=float)]


def test_the_picture_shows_layers_recomputation_memory_and_schedule(tmp_path: Path) -> None:
    file = tmp_path / "plan.svg"
    record = json.loads(run(*RECOMPUTES, "--plot", str(file), "--json"))
    root = ET.fromstring(file.read_text())
    cells = [
        title.text or "" for title in root.iter(f"{SVG}title") if re.match(r"layer \d+: ", title.text or "")
    ]
    layers = [layer for stage in record["stages"] for chunk in stage["chunks"] for layer in chunk]
    assert [int(cell.split()[1].rstrip(":")) for cell in cells] == layers
    again = [int(cell.split()[1].rstrip(":")) for cell in cells if cell.endswith(", recomputed")]
    assert again == [layer for stage in record["stages"] for layer in stage["recomputed"]]
    assert again, "a plan that recomputes nothing proves little"
    bars = _stage_memory(root)
    assert len(bars) == len(record["stages"])
    for bar, stage in zip(bars, record["stages"], strict=True):
        memory = stage["memory"]
        scale = bar["parameters and optimizer"] / memory["static_bytes"]
        assert bar["activations"] == pytest.approx(memory["activation_bytes"] * scale, abs=0.1)
    texts = [element.text or "" for element in root.iter(f"{SVG}text")]
    for number in range(len(bars)):
        assert sum(text.startswith(f"stage {number} ") for text in texts) == 2, (
            "among the stages and in the timeline"
        )
    height = float(root.attrib["viewBox"].split()[3])
    moved = next(root.iter(f"{SVG}g")).attrib["transform"]
    below = float(moved.split()[1].rstrip(")"))
    lowest = max(float(rect.attrib["y"]) for rect in next(root.iter(f"{SVG}g")).iter(f"{SVG}rect"))
    assert below + lowest < height, "nothing is drawn below the picture's edge"


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "zero-bubble"])
def test_the_page_is_whole_and_fetches_nothing(tmp_path: Path, schedule: str) -> None:
    file = tmp_path / "deep" / "plan.html"
    chunks = ["--chunks", "2"] if schedule == "interleaved" else []
    words = ["gpt3-175b", "a100-64", "--batch", "64", "--schedule", schedule, *chunks]
    record = json.loads(run(*words, "--plot", str(file), "--json"))
    text = file.read_text()
    for figure in ("stages", "memory", "schedule", "memory-timeline"):
        assert f'id="figure-{figure}"' in text
    assert not re.search(r"<(?:script|link|img)[^>]+(?:src|href)=", text)
    for word in ("gpt3-175b on a100-80g-64", f"{record['iteration_s']:.4g} s", "what a plan may use"):
        assert word in text
    passes = sorted(set(re.findall(r"(forward|backward|weight gradients) of micro-batch", text)))
    assert passes == ["backward", "forward", *(["weight gradients"] if schedule == "zero-bubble" else [])]


def test_a_curve_of_memory_peaks_where_the_plan_says() -> None:
    from headrace_services.planner import asking
    from headrace_services.planner.picture.figures import memory_timeline

    request = asking.request("gpt3-175b", "a100-64", asking.Options(batch=64))
    found = asking.search(request, asking.method("exact"), None).run().plan
    assert found is not None
    figure = memory_timeline(found)
    for number, stage in enumerate(found.stages):
        curves = [trace.y for trace in figure.data if trace.name == f"stage {number}"]
        peak = max(max(curve) for curve in curves)
        assert peak * 2**30 == pytest.approx(stage.memory.total_bytes, rel=1e-6)


@pytest.mark.parametrize("name", ["plan.png", "plan", "/dev/null/plan.svg"])
def test_a_file_that_cannot_be_drawn_is_refused_before_the_search(name: str) -> None:
    with refused("plot"):
        run("megatron-1t", "a100-3072", "--batch", "6144", "--plot", name)


def test_a_page_without_its_packages_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("headrace.client.missing.find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match="page"):
        picture.drawable(tmp_path / "plan.html")
    picture.drawable(tmp_path / "plan.svg")


@pytest.mark.parametrize("words", [["--compare"], ["--address", "127.0.0.1:1"]])
def test_a_picture_goes_with_a_plan_made_here(words: list[str], tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="--plot"):
        run(*RECOMPUTES, "--plot", str(tmp_path / "plan.svg"), *words)
