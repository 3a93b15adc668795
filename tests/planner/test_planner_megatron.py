"""Emitted arguments against Megatron-LM's rules, and against its own parser if a checkout is available.

The rules are taken from megatron/training/arguments.py (validate_args) and core's transformer_config.py
(__post_init__), as of core 0.16. Set MEGATRON_LM to a checkout of NVIDIA/Megatron-LM to check with its own parser.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from planner_cases import CASES, NAMES, planned

from headrace_services.planner.emit import megatron
from headrace_services.planner.plan import Plan

KINDS = {"embedding": 0, "decoder": 1, "loss": 2}


def lowered(number: int) -> Plan:
    return megatron.lower(planned(number)).plan


def told(number: int) -> dict[str, str | None]:
    return megatron.arguments(megatron.lower(lowered(number)))


def faults(args: Mapping[str, str | None], world: int) -> list[str]:
    """The rules that these arguments violate."""

    def number(name: str, default: int = 1) -> int:
        return int(args.get(name) or default)

    tensor, pipeline = number("--tensor-model-parallel-size"), number("--pipeline-model-parallel-size")
    data, granularity = world // (tensor * pipeline), args.get("--recompute-granularity")
    heads, experts = number("--num-attention-heads"), number("--num-experts", 0)
    ranks, groups = number("--expert-model-parallel-size"), number("--num-query-groups", heads)
    pieces = (args.get("--pipeline-model-parallel-layout") or "").split("|")
    layout = "".join(pieces)
    per_rank = number("--global-batch-size") / number("--micro-batch-size") / max(data, 1)
    chunks = len(pieces) / pipeline
    rules = {
        "world size divides": world % (tensor * pipeline) == 0,
        "batch divides": per_rank.is_integer(),
        "positions cover the sequence": number("--max-position-embeddings") >= number("--seq-length"),
        "heads divide hidden": "--kv-channels" in args or number("--hidden-size") % heads == 0,
        "heads divide over tensor ranks": heads % tensor == 0,
        "query groups and tensor ranks": groups % tensor == 0 or tensor % groups == 0,
        "layout has a piece for every chunk": pipeline == 1 or chunks.is_integer(),
        "layout holds every layer once": pipeline == 1 or layout == "E" + "t" * number("--num-layers") + "L",
        "interleaving: groups of micro-batches": chunks <= 1 or per_rank % pipeline == 0,
        "full recomputation names how and how much": granularity != "full"
        or {"--recompute-method", "--recompute-num-layers"} <= args.keys(),
        "selective recomputation names neither": granularity != "selective"
        or not {"--recompute-method", "--recompute-num-layers"} & args.keys(),
        "experts divide over their ranks": ranks == 1 or (experts > 0 and experts % ranks == 0),
        "experts' ranks fit": data * tensor % ranks == 0,
        "experts under tensor parallelism: sequence parallel": not experts
        or tensor == 1
        or "--sequence-parallel" in args,
        "experts under tensor parallelism: no biases": not experts
        or tensor == 1
        or "--disable-bias-linear" in args,
        "experts are exchanged as they are priced": ranks == 1
        or args.get("--moe-token-dispatcher-type") == "alltoall",
        "gathering behind passes wants the distributed optimizer": "--overlap-param-gather" not in args
        or {"--use-distributed-optimizer", "--overlap-grad-reduce"} <= args.keys(),
        "tensor-parallel overlap wants sequence parallelism": "--tp-comm-overlap" not in args
        or "--sequence-parallel" in args,
        "instances want the distributed optimizer": "--num-distributed-optimizer-instances" not in args
        or "--use-distributed-optimizer" in args,
    }
    return [rule for rule, kept in rules.items() if not kept]


@pytest.mark.cases(3)
@pytest.mark.parametrize("number", range(len(CASES)), ids=NAMES)
def test_arguments_keep_megatrons_rules(number: int) -> None:
    assert faults(told(number), lowered(number).request.cluster.devices) == []


@pytest.mark.parametrize(
    ("number", "change", "rule"),
    [
        (0, {"--pipeline-model-parallel-size": "7"}, "world size"),
        (0, {"--pipeline-model-parallel-layout": "Et|tL"}, "layout"),
        (0, {"--recompute-granularity": "selective", "--recompute-method": "block"}, "selective"),
        (1, {"--recompute-granularity": "full"}, "full"),
        (1, {"--global-batch-size": "2"}, "interleaving"),
        (2, {"--num-query-groups": "3"}, "query groups"),
        (3, {"--expert-model-parallel-size": "3"}, "experts divide"),
        (0, {"--max-position-embeddings": "8"}, "positions"),
    ],
)
def test_broken_rules_are_seen(number: int, change: dict[str, str], rule: str) -> None:
    broken = faults({**told(number), **change}, lowered(number).request.cluster.devices)
    assert any(one.startswith(rule) for one in broken), broken


def test_experts_without_sequence_parallelism_are_seen() -> None:
    args = told(3)
    assert int(args["--tensor-model-parallel-size"] or 1) > 1
    for name in ("--sequence-parallel", "--disable-bias-linear"):
        assert faults({k: v for k, v in args.items() if k != name}, 32)


def test_latent_attention_and_shared_experts_are_reported() -> None:
    args = told(4)
    wanted = {"--qk-head-dim": "128", "--qk-pos-emb-head-dim": "64", "--v-head-dim": "128"}
    wanted |= {"--ffn-hidden-size": "18432", "--moe-ffn-hidden-size": "2048"}
    wanted |= {"--moe-shared-expert-intermediate-size": "2048", "--moe-layer-freq": "([0]*3+[1]*12)"}
    assert {name: args.get(name) for name in wanted} == wanted


@pytest.mark.skipif("MEGATRON_LM" not in os.environ, reason="MEGATRON_LM names no checkout of Megatron-LM")
@pytest.mark.parametrize("number", range(len(CASES)), ids=NAMES)
def test_megatrons_own_parser_understands_the_plan(number: int) -> None:
    plan, args = lowered(number), told(number)
    words = [word for name, value in args.items() for word in ((name,) if value is None else (name, value))]
    script = Path(__file__).with_name("megatron_rules.py")
    world = str(plan.request.cluster.devices)
    ran = subprocess.run(
        [sys.executable, str(script), os.environ["MEGATRON_LM"], world, *words],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    line = next(line for line in ran.stdout.splitlines() if line.startswith("understood "))
    print(line)
    understood = json.loads(line.removeprefix("understood "))
    degrees, layers = plan.degrees, plan.request.model.layers
    assert understood["data_parallel_size"] == degrees.d
    assert understood["micro_batches"] == degrees.mu
    assert understood["sequence_parallel"] == (degrees.m > 1)
    if degrees.s > 1:
        for stage, chunks in zip(plan.stages, understood["layout"], strict=True):
            kinds = [[KINDS[kind] for kind in chunk] for chunk in chunks]
            last = len(layers) - 1
            assert kinds == [
                [0 if i == 0 else 2 if i == last else 1 for i in chunk] for chunk in stage.chunks
            ]
    granularity, method, count = understood["recompute"]
    if plan.recomputed:
        most = max(len(stage.recomputed) for stage in plan.stages)
        assert (granularity, method) == ("full", "block")
        assert count == -(-most // len(plan.stages[0].chunks))
