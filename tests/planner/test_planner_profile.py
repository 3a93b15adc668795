"""Layers as a measured profile: how a plan uses the numbers, what it refuses, and where the numbers come from."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from plan_command import run
from planner_instances import brute_force
from refusals import refused
from torch import nn

from headrace.errors import InvalidFieldError
from headrace.v1 import planner_pb2 as pb
from headrace_services.planner import asking, catalogue
from headrace_services.planner.assignment import solve
from headrace_services.planner.costing import Costing, Request
from headrace_services.planner.degrees import Degrees
from headrace_services.planner.explain import nothing_fits
from headrace_services.planner.layer_profile import model_from_profile
from headrace_services.planner.model import LayerProfile
from headrace_services.planner.plan import Plan
from headrace_services.planner.schedules import Schedule
from headrace_services.planner.service import convert
from headrace_torch.profiling import ProfileError, main, profile

CLUSTER: dict[str, Any] = {
    "peak_flops": 1e14,
    "memory_bytes": 4e9,
    "memory_bandwidth": 1e12,
    "link_bandwidth": 1e11,
    "network_bandwidth": 1e10,
    "devices_per_node": 4,
    "devices": 4,
}


def layer(seconds: float, *, activation: float = 1e8, parameters: float = 2e7, **more: Any) -> dict[str, Any]:
    """A layer measured with 1 and 4 samples."""
    return {
        "forward_s": [seconds, 3 * seconds],
        "backward_s": [2 * seconds, 6 * seconds],
        "activation_bytes": [activation, 4 * activation],
        "input_bytes": [1e6, 4e6],
        "parameter_bytes": parameters,
        **more,
    }


def described(layers: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {"micro_batches": [1, 4], "layers": layers, **more}


def request(layers: list[dict[str, Any]], batch: int = 16, **more: Any) -> Request:
    where = catalogue.checked_cluster(
        catalogue.device_from_description("small", {**CLUSTER, **more}, catalogue.profiles()), 4
    )
    options = asking.Options(batch=batch, usable_memory=1.0)
    return asking.assembled(model_from_profile("mine", described(layers)), where, options)


def planned(asked: Request) -> Plan:
    found = asking.search(asked, asking.method("exact"), None).run().plan
    assert found is not None
    return found


def test_numbers_between_and_beyond_the_measured_sizes() -> None:
    one = LayerProfile(
        micro_batches=(2, 4),
        forward_s=(3.0, 4.0),
        backward_s=(6.0, 8.0),
        weight_s=(0.0, 0.0),
        activation_bytes=(100.0, 200.0),
        input_bytes=(10.0, 20.0),
    )
    assert [one.seconds(one.forward_s, b) for b in (1, 2, 3, 4, 8)] == [3.0, 3.0, 3.5, 4.0, 8.0]
    assert [one.bytes(one.activation_bytes, b) for b in (1, 2, 3, 4, 8)] == [50.0, 100.0, 150.0, 200.0, 400.0]


def test_a_plan_has_the_measured_seconds() -> None:
    """One stage: µ passes of all layers, plus everything that is not a pass."""
    asked = request([layer(0.01, count=3), layer(0.02)])
    costing = Costing(asked)
    degrees = Degrees(d=4, m=1, o=1, s=1, mu=1)
    problem, _ = costing.problem(degrees) or (None, None)
    assert problem is not None
    assert [link.forward_s for link in problem.links] == pytest.approx([0.03, 0.03, 0.03, 0.06])
    assert [link.backward_s for link in problem.links] == pytest.approx([0.06, 0.06, 0.06, 0.12])
    assert [link.saved_bytes for link in problem.links] == [4e8] * 4
    assert [link.kept_bytes for link in problem.links] == [4e6] * 4
    assert [link.static_bytes for link in problem.links] == [18e7] * 4, "1e7 parameters, 18 bytes each"
    found = planned(asked)
    passes = sum(stage.times.total_s for stage in found.stages)
    assert found.simulated_s >= passes


def test_the_search_over_a_profile_is_exact() -> None:
    layers = [layer(0.01 * (1 + i % 3), activation=1e8 * (1 + i % 2), recomputable=i != 2) for i in range(6)]
    costing = Costing(request(layers, memory_bytes=1.5e9))
    tight = 0
    for stages, data, mu in ((1, 4, 2), (2, 2, 4), (4, 1, 8), (4, 1, 4)):
        made = costing.problem(Degrees(d=data, m=1, o=data, s=stages, mu=mu))
        assert made is not None
        solution, best = solve(made[0]), brute_force(made[0])
        assert (solution is None) == (best is None)
        if solution is not None and best is not None:
            assert solution.objective_s == pytest.approx(best, rel=1e-12)
            tight += bool(solution.recomputed)
            assert 2 not in solution.recomputed
    assert tight, "some plan recomputes"


def test_less_memory_recomputes_and_takes_longer() -> None:
    layers = [layer(0.01, activation=4e8, count=8)]
    wide, narrow = planned(request(layers, memory_bytes=8e10)), planned(request(layers, memory_bytes=1.6e9))
    assert not wide.recomputed
    assert narrow.recomputed
    assert narrow.simulated_s > wide.simulated_s
    assert narrow.peak_bytes <= 1.6e9


def test_no_tensor_ranks_and_notes_that_say_so() -> None:
    asked = request([layer(0.01, count=8)], batch=24)
    search = asking.search(asked, asking.method("exact"), None)
    assert {degrees.m for _, degrees in search.bounds()} == {1}
    found = search.run().plan
    assert found is not None
    assert any("no tensor ranks" in note for note in found.notes)
    if found.micro_batch not in (1, 4):
        assert any("were not measured" in note for note in found.notes)


def test_weight_gradients_fill_bubbles_where_they_were_told_apart() -> None:
    def seconds(**more: Any) -> float:
        asked = asking.assembled(
            model_from_profile("mine", described([layer(0.01, count=8, **more)])),
            request([layer(0.01)]).cluster,
            asking.Options(batch=8, schedule=Schedule.ZERO_BUBBLE.value),
        )
        search = asking.search(asked, asking.method("exact"), None)
        candidate = search.candidate(asking.mode("h2o"), Degrees(d=1, m=1, o=1, s=4, mu=8))
        assert candidate is not None
        return search.assembled(candidate).simulated_s

    assert seconds(weight_s=[0.01, 0.03]) < 0.95 * seconds()


BAD: list[tuple[dict[str, Any], str, str]] = [
    (described([]), "model.layers", "at least one"),
    ({"layers": [layer(0.01)]}, "model.micro_batches", "list"),
    (described([layer(0.01)], micro_batches=[4, 1]), "model.micro_batches", "increasing order"),
    (described([layer(0.01)], micro_batches=[0, 1]), "model.micro_batches", "whole"),
    (described([{**layer(0.01), "forward_s": [0.1]}]), "model.layers[0].forward_s", "has 1 numbers"),
    (described([{**layer(0.01), "forward_s": 0.1}]), "model.layers[0].forward_s", "no list"),
    (described([{**layer(0.01), "backward_s": [0.1, -1]}]), "model.layers[0].backward_s[1]", "from 0"),
    (described([{**layer(0.01), "weight_s": [1, 1]}]), "model.layers[0].weight_s", "more than backward_s"),
    (described([{**layer(0.01), "seconds": [1, 1]}]), "model.layers[0].seconds", "not a known field"),
    (
        described([{k: v for k, v in layer(0.01).items() if k != "input_bytes"}]),
        "model.layers[0].input_bytes",
        "missing",
    ),
    (described([layer(0.01), "x"]), "model.layers[1]", "mapping"),  # type: ignore[list-item]
    (described([layer(0.01, count=401)]), "model.layers[0].count", "from 1 to"),
    (described([layer(0.01 + i / 1000) for i in range(33)]), "model.layers", "kinds"),
    (described([layer(0.0)]), "model.layers[0].forward_s[0]", "from 1e-09"),
    (described([layer(0.01)], number_bytes=0), "model.number_bytes", "from 1"),
]


@pytest.mark.parametrize(("told", "field", "words"), BAD)
def test_what_is_wrong_in_a_profile_is_named(told: dict[str, Any], field: str, words: str) -> None:
    with refused(field, words):
        catalogue.described_model("mine", told, None)


def test_absurd_sizes_are_an_error_and_no_traceback() -> None:
    """The total of bytes exceeds 64 bits: nothing fits, and the error says by how much."""
    asked = request([layer(0.01, activation=1e14, count=8)], batch=262144)
    search = asking.search(asked, asking.method("exact"), None)
    assert search.run().plan is None
    with pytest.raises(InvalidFieldError, match="GiB short"):
        raise nothing_fits(search)


def test_what_does_not_go_with_a_profile(tmp_path: Path) -> None:
    file = tmp_path / "layers.json"
    file.write_text(json.dumps(described([layer(0.01, count=4)])))
    for words, field in (
        (["--sequence", "512"], "sequence"),
        (["--target", "megatron", "--out", "x"], "target"),
    ):
        with refused(field):
            run(str(file), "a100-4", *words)


def test_a_server_takes_a_profile_too() -> None:
    told = json.dumps(described([layer(0.01, count=4)]))
    asked = convert.request_from(pb.PlanQuestion(model_json=told, cluster_name="a100-4", batch=16))
    assert planned(asked).request.model.profiled


class Net:
    """Eight layers, six of which are alike."""

    @staticmethod
    def make() -> nn.Sequential:
        middle = [nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32)) for _ in range(6)]
        return nn.Sequential(nn.Linear(16, 32), *middle, nn.Linear(32, 4))


def test_a_sequential_is_profiled(tmp_path: Path) -> None:
    """Bytes are known exactly: a linear layer saves its input, ReLU its output."""
    out = tmp_path / "layers.json"
    found = profile(Net.make(), lambda n: torch.randn(n * 8, 16), micro_batches=(1, 2), repeats=2, out=out)
    assert json.loads(out.read_text()) == found
    first, middle, _ = found["layers"]
    assert [one["count"] for one in found["layers"]] == [1, 6, 1]
    assert first["activation_bytes"] == first["input_bytes"] == [8 * 16 * 4, 16 * 16 * 4]
    assert middle["input_bytes"] == [8 * 32 * 4, 16 * 32 * 4]
    # Its input and the ReLU's output. The second linear layer saves that output again, which takes no more memory.
    assert middle["activation_bytes"] == [8 * (32 + 64) * 4, 16 * (32 + 64) * 4]
    assert middle["parameter_bytes"] == 4 * (32 * 64 + 64 + 64 * 32 + 32)
    assert middle["forward_flops"] == 8 * 2 * 2 * 32 * 64
    for one in found["layers"]:
        assert all(0 <= part <= whole for part, whole in zip(one["weight_s"], one["backward_s"], strict=True))
        assert all(seconds > 0 for seconds in one["forward_s"])
    assert first["weight_s"] == first["backward_s"], "the first layer computes no gradient of its input"
    model = catalogue.described_model("mine", found, None)
    assert len(model.layers) == 8
    assert model.parameters == sum(p.numel() for p in Net.make().parameters())


def test_a_profile_becomes_a_deepspeed_pipeline(tmp_path: Path) -> None:
    out = tmp_path / "layers.json"
    profile(Net.make(), lambda n: torch.randn(n, 16), micro_batches=(1,), repeats=1, out=out)
    words = ["--batch", "16", "--target", "deepspeed", "--out", str(tmp_path / "plan")]
    text = run(str(out), "a100-2", *words, "--plot", str(tmp_path / "plan.svg"))
    assert "as profiled" in text
    compile((tmp_path / "plan" / "pipeline.py").read_text(), "pipeline.py", "exec")
    assert "measured" in (tmp_path / "plan.svg").read_text()


def test_what_cannot_be_profiled_says_why() -> None:
    with pytest.raises(ProfileError, match=r"layer 1 \(ReLU\).*in place.*inplace=False"):
        profile(
            nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True)),
            lambda n: torch.randn(n, 4),
            micro_batches=(1,),
        )
    with pytest.raises(ProfileError, match=r"layer 0 \(ReLU\).*in place"):
        profile(nn.Sequential(nn.ReLU(inplace=True)), lambda n: torch.randn(n, 4), micro_batches=(1,))
    with pytest.raises(ProfileError, match=r"layer 0 \(LSTM\) returns a tuple"):
        profile(nn.Sequential(nn.LSTM(4, 4)), lambda n: torch.randn(3, n, 4), micro_batches=(1,))
    with pytest.raises(ProfileError, match=r"Linear, not an nn\.Sequential"):
        profile(nn.Linear(4, 4), lambda n: torch.randn(n, 4))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="micro_batches"):
        profile(nn.Sequential(nn.Linear(4, 4)), lambda n: torch.randn(n, 4), micro_batches=())


def test_the_command_profiles_a_function_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "profiled_net.py").write_text(
        "import torch\n\n\ndef make():\n"
        "    return torch.nn.Sequential(torch.nn.Linear(4, 4)), lambda size: torch.randn(size, 4)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    main(["profiled_net:make", "--micro-batches", "1,2", "--repeats", "1", "--out", "layers.json"])
    assert "1 layers" in capsys.readouterr().out
    assert catalogue.model(str(tmp_path / "layers.json")).profiled
    for words, said in (
        (["profiled_net:make", "--micro-batches", "a"], "not a list of whole numbers"),
        (["profiled_net:other"], "has no 'other'"),
    ):
        with pytest.raises(SystemExit) as ended:
            main([*words, "--out", "layers.json"])
        assert ended.value.code
        assert said in capsys.readouterr().err
