"""Emitted plans: frameworks get what the plan says, and DeepSpeed really trains one on the CPU."""

import importlib.util
import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from forked import Program

from headrace.errors import InvalidFieldError
from headrace.ports import any_port
from headrace_services.planner import asking, catalogue
from headrace_services.planner.asking import Options
from headrace_services.planner.blocks import gpt
from headrace_services.planner.cluster import Cluster
from headrace_services.planner.costing import Request
from headrace_services.planner.degrees import Degrees
from headrace_services.planner.emit import deepspeed, emit, megatron
from headrace_services.planner.memory import Gradients
from headrace_services.planner.modes import FULL
from headrace_services.planner.plan import Plan
from headrace_services.planner.schedules import Schedule
from headrace_services.planner.search import Search


def small_plan(tensor: int = 1, gradients: Gradients = Gradients.BF16) -> Plan:
    """Two uneven stages, some layers recomputed: a large vocabulary burdens the last, and the first has little
    memory."""
    model = gpt("small", hidden=1024, layers=8, heads=16, sequence=2048, vocabulary=16384)
    cluster = Cluster(device=catalogue.device("a100"), devices=2 * tensor)
    degrees = Degrees(d=1, m=tensor, o=1, s=2, mu=4)
    for promille in range(940, 1, -2):
        request = Request(
            model=model, cluster=cluster, batch=16, usable_memory=promille / 1000, gradients=gradients
        )
        search = Search(request)
        candidate = search.candidate(FULL, degrees)
        if candidate is not None and candidate.solution.recomputed:
            plan = search.assembled(candidate)
            if 0 < len(plan.recomputed) < 8 and len(plan.stages[0].layers) != len(plan.stages[1].layers):
                return plan
    raise AssertionError("no memory makes some but not all layers recompute")


def plan_175b(schedule: Schedule = Schedule.ONE_F_ONE_B, chunks: int = 1) -> Plan:
    request = Request(
        model=catalogue.model("gpt3-175b"),
        cluster=catalogue.cluster("a100-64"),
        batch=64,
        schedule=schedule,
        chunks=chunks,
    )
    search = Search(request)
    for d, m, s in ((2, 4, 8), (1, 8, 8)):
        candidate = search.candidate(FULL, Degrees(d=d, m=m, o=d, s=s, mu=64 // d))
        if candidate is not None:
            return search.assembled(candidate)
    raise AssertionError("neither tuple fits")


def parsed_layout(text: str, stages: int, blocks: int) -> list[list[int]]:
    """Megatron-LM's documented rules: stages parted by |, runs as t*3 or (…)*2, E first, L last, t counted."""
    expanded = re.sub(r"\(([^()]*)\)\*(\d+)", lambda m: m[1] * int(m[2]), text)
    expanded = re.sub(r"([EtL])\*(\d+)", lambda m: m[1] * int(m[2]), expanded)
    pieces = expanded.split("|")
    assert len(pieces) % stages == 0, "a multiple of the pipeline's size"
    letters = "".join(pieces)
    assert re.fullmatch(r"Et+L", letters), "the embedding first, then blocks, then the loss"
    assert letters.count("t") == blocks, "as many t as --num-layers"
    places, position = [], 0
    for piece in pieces:
        places.append(list(range(position, position + len(piece))))
        position += len(piece)
    return places


@pytest.mark.parametrize(("schedule", "chunks"), [(Schedule.ONE_F_ONE_B, 1), (Schedule.INTERLEAVED, 2)])
def test_megatron_is_told_the_plans_stages(schedule: Schedule, chunks: int) -> None:
    plan = plan_175b(schedule, chunks)
    told = megatron.arguments(megatron.lower(plan))
    layout = told["--pipeline-model-parallel-layout"]
    assert layout is not None
    pieces = parsed_layout(layout, plan.degrees.s, int(told["--num-layers"] or 0))
    for stage, planned in enumerate(plan.stages):
        for chunk in range(chunks):
            assert pieces[chunk * plan.degrees.s + stage] == list(planned.chunks[chunk])
    world = int(told["--tensor-model-parallel-size"] or 0) * int(told["--pipeline-model-parallel-size"] or 0)
    assert plan.request.cluster.devices % world == 0
    assert all(re.fullmatch(r"--[a-z0-9-]+", name) for name in told)


def test_megatron_recomputes_at_least_what_the_plan_does() -> None:
    plan = small_plan()
    lowered = megatron.lower(plan)
    for before, after in zip(plan.stages, lowered.plan.stages, strict=True):
        assert before.layers == after.layers
        assert len(after.recomputed) >= len(before.recomputed)
    assert lowered.plan.simulated_s >= plan.simulated_s
    assert lowered.notes, "uneven recomputation cannot be expressed, and the report must say so"


def test_a_plan_that_is_lowered_unchanged_costs_the_same() -> None:
    plan = small_plan()
    lowered = deepspeed.lower(plan)
    assert not lowered.notes
    assert lowered.plan.simulated_s == pytest.approx(plan.simulated_s, rel=1e-12)
    assert [stage.memory for stage in lowered.plan.stages] == [stage.memory for stage in plan.stages]


def test_a_schedule_that_is_replaced_is_priced_as_what_replaces_it() -> None:
    """Megatron-LM runs 1F1B for zero-bubble schedules, which takes longer; the report must not say +0.0%."""
    plan = plan_175b(Schedule.ZERO_BUBBLE)
    lowered = megatron.lower(plan)
    assert lowered.plan.request.schedule is Schedule.ONE_F_ONE_B
    assert lowered.plan.simulated_s > 1.01 * plan.simulated_s
    assert "+0.0%" not in emit(plan, "megatron")["lowering.md"]


def test_reports_say_what_is_lost() -> None:
    plan = plan_175b()
    gpipe = replace(plan, request=replace(plan.request, schedule=Schedule.GPIPE))
    assert "gpipe" in emit(gpipe, "deepspeed")["lowering.md"]


def test_what_does_not_fit_as_lowered_is_not_written() -> None:
    """ZeRO 3 fits, but its replacement in Megatron-LM is 11.6 GiB too large."""
    plan = Search(asking.request("gpt3-13b", "a100-8", Options(batch=64, zero=3))).run().plan
    assert plan is not None
    with pytest.raises(InvalidFieldError, match=r"target: .* GiB short, as ZeRO stage 3 becomes .* --zero 1"):
        emit(plan, "megatron")
    assert emit(plan, "deepspeed")


@pytest.mark.full
@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="DeepSpeed is not installed")
@pytest.mark.parametrize(("tensor", "gradients"), [(1, Gradients.BF16), (2, Gradients.FP32)])
def test_deepspeed_trains_the_plan_on_the_cpu(tmp_path: Path, tensor: int, gradients: Gradients) -> None:
    """Processes over gloo hold the plan's layers, run the recomputed ones twice, and the loss falls.

    Two stages, each on one rank or on two ranks that split its blocks.
    """
    plan = small_plan(tensor, gradients)
    world = 2 * tensor
    for name, text in emit(plan, "deepspeed").items():
        (tmp_path / name).write_text(text)
    port = any_port()
    shared = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world)}
    script = Path(__file__).with_name("deepspeed_rank.py")
    ranks = [
        Program(
            [str(script), str(tmp_path), str(tmp_path)],
            folder=tmp_path,
            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"},
            said=tmp_path / f"rank{rank}.log",
        )
        for rank in range(world)
    ]
    ended = [rank.wait(400) for rank in ranks]
    assert [code for code, _ in ended] == [0] * world, ended[0][1][-3000:] + ended[-1][1][-3000:]
    for rank in range(world):
        stage = plan.stages[rank // tensor]
        told = json.loads((tmp_path / f"rank{rank}.json").read_text())
        assert told["ranks"] == [tensor]
        assert told["gradients"] == {"bf16": "torch.bfloat16", "fp32": "torch.float32"}[gradients]
        assert told["held"] == list(stage.layers)
        print(f"rank {rank}: layers {told['held']}, losses {[round(loss, 3) for loss in told['losses']]}")
        assert told["losses"][-1] < 0.7 * told["losses"][0]
        assert told["micro_batches"] == plan.degrees.mu
        once = 12 * plan.degrees.mu
        wanted = {str(i): once * (2 if i in stage.recomputed else 1) for i in stage.layers}
        assert told["calls"] == wanted
