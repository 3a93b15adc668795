"""Megatron-LM (core 0.13 and later): command-line arguments with `--pipeline-model-parallel-layout`.

The layout writes every stage's layers, `E` for the embedding, `t` for a block, `L` for the loss, `|` between
stages; with virtual stages the chunks follow in their order. Recomputation has one number for all stages
(`--recompute-method block --recompute-num-layers`), so each stage recomputes as many layers as the stage that
needs most. Sources: megatron/training/arguments.py and
megatron/core/transformer/pipeline_parallel_layer_layout.py.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from typing import Any, Final

from headrace_services.planner.costing import Request
from headrace_services.planner.emit.lowering import Lowered, Note, priced, stage_boundaries
from headrace_services.planner.memory import Gradients, ZeroStage
from headrace_services.planner.model import AttentionKernel, LayerKind
from headrace_services.planner.plan import Plan
from headrace_services.planner.schedules import Schedule

SAME: Final = (
    "heads",
    "kv_heads",
    "head_width",
    "gated",
    "kv_rank",
    "query_rank",
    "rope_width",
    "value_width",
)
"""The settings for which Megatron-LM has one number for all blocks."""
LETTERS: Final = {LayerKind.EMBEDDING: "E", LayerKind.BLOCK: "t", LayerKind.HEAD: "L"}


def lower(plan: Plan) -> Lowered:
    """One number of recomputed layers for all stages; 1F1B or interleaved; the distributed optimizer."""
    request, notes = _request(plan)
    most = max(len(stage.recomputed) for stage in plan.stages)
    layers = request.model.layers
    again = [
        index
        for stage in plan.stages
        for chunk in stage.chunks
        for index in [i for i in chunk if layers[i].recomputable][: -(-most // len(stage.chunks))]
    ]
    if {len(stage.recomputed) for stage in plan.stages} != {most}:
        notes.append(
            Note(what="recomputed layers per stage", instead=f"the first {most} blocks of every stage")
        )
    boundaries = stage_boundaries(plan)
    lowered = priced(plan, request=request, boundaries=boundaries, recomputed=again)
    return Lowered(original=plan, plan=lowered, notes=tuple(notes))


def _request(plan: Plan) -> tuple[Request, list[Note]]:
    """The request with what Megatron-LM does instead, so that the plan is priced as it will run."""
    request, notes = plan.request, []
    if request.schedule in (Schedule.ZERO_BUBBLE, Schedule.GPIPE):
        notes.append(Note(what=f"the schedule {request.schedule.value}", instead="1f1b"))
        request = replace(request, schedule=Schedule.ONE_F_ONE_B, chunks=1)
    if int(request.zero) > 1:
        instead = "the distributed optimizer (stage 1)"
        notes.append(Note(what=f"ZeRO stage {int(request.zero)}", instead=instead))
        request = replace(request, zero=ZeroStage.OPTIMIZER)
    kernels = {layer.attention or request.attention for layer in request.model.layers if layer.heads}
    if any(layer.attention for layer in request.model.layers):
        kernel = kernels.pop() if len(kernels) == 1 else AttentionKernel.MATERIALISED
        if kernels:
            instead = "all layers save their scores"
            notes.append(Note(what="attention of several kinds", instead=instead))
        plain = tuple(replace(layer, attention=None) for layer in request.model.layers)
        request = replace(request, attention=kernel, model=replace(request.model, layers=plain))
    if plan.recomputed and request.attention is AttentionKernel.SELECTIVE:
        what = "selective recomputation beside whole layers"
        notes.append(Note(what=what, instead="scores are saved in the other layers"))
        request = replace(request, attention=AttentionKernel.MATERIALISED)
    if request.model.experts and plan.degrees.m > 1 and not request.sequence_parallel:
        what = "experts over tensor ranks without sequence parallelism"
        notes.append(Note(what=what, instead="sequence parallelism"))
        request = replace(request, sequence_parallel=True)
    constants = request.cluster.device.efficiencies
    if constants.overlap_optimizer and plan.degrees.o > 1 and not constants.overlap_gradients:
        what = "parameters gathered behind computation while gradients are not reduced behind it"
        notes.append(Note(what=what, instead="neither overlaps"))
        constants = replace(constants, overlap_optimizer=0.0)
    if constants.overlap_tensor and plan.degrees.m > 1 and not request.sequence_parallel:
        what = "tensor-parallel overlap without sequence parallelism"
        notes.append(Note(what=what, instead="no overlap of it"))
        constants = replace(constants, overlap_tensor=0.0)
    kinds = {tuple(sorted((k, v) for k, v in run.items() if k in SAME)) for run in _runs(request)}
    if len(kinds) > 1:
        notes.append(
            Note(what="blocks of several shapes", instead="those of the last run; do not use these files")
        )
    return replace(request, cluster=request.cluster.with_efficiencies(constants)), notes


def layout(plan: Plan) -> str:
    """The value of `--pipeline-model-parallel-layout`."""
    layers = plan.request.model.layers
    chunks = len(plan.stages[0].chunks)
    pieces = [stage.chunks[chunk] for chunk in range(chunks) for stage in plan.stages]
    return "|".join("".join(LETTERS[layers[index].kind] for index in piece) for piece in pieces)


def arguments(lowered: Lowered) -> dict[str, str | None]:
    """Arguments in order; None for those without a value."""
    plan = lowered.plan
    request, degrees = plan.request, plan.degrees
    runs = _runs(request)
    run = runs[-1]
    plain = next((one for one in runs if not one.get("experts")), {})
    hidden = request.model.description["hidden"]
    blocks = sum(layer.kind is LayerKind.BLOCK for layer in request.model.layers)
    most = max(len(stage.recomputed) for stage in plan.stages)
    found: dict[str, str | None] = {
        "--num-layers": str(blocks),
        "--hidden-size": str(hidden),
        "--num-attention-heads": str(run["heads"]),
        "--ffn-hidden-size": str(plain.get("feed_forward", 4 * hidden)),
        "--seq-length": str(request.model.sequence),
        "--max-position-embeddings": str(request.model.sequence),
        "--micro-batch-size": str(plan.micro_batch),
        "--global-batch-size": str(request.batch),
        "--tensor-model-parallel-size": str(degrees.m),
        "--pipeline-model-parallel-size": str(degrees.s),
        "--bf16": None,
    }
    if degrees.s > 1:
        found["--pipeline-model-parallel-layout"] = layout(plan)
    if degrees.m > 1 and request.sequence_parallel:
        found["--sequence-parallel"] = None
    found |= dict.fromkeys(_switches(plan))
    if degrees.o > 1:
        found |= {"--use-distributed-optimizer": None}
        if degrees.o < degrees.d:
            found["--num-distributed-optimizer-instances"] = str(degrees.d // degrees.o)
    if most:
        found |= {"--recompute-granularity": "full", "--recompute-method": "block"}
        found["--recompute-num-layers"] = str(-(-most // len(plan.stages[0].chunks)))
    elif request.attention is AttentionKernel.SELECTIVE:
        found["--recompute-granularity"] = "selective"
    if request.attention is AttentionKernel.FLASH:
        found["--attention-backend"] = "flash"
    if run.get("gated"):
        found["--swiglu"] = None
    if run.get("gated") or run.get("experts"):
        # Gated models have no biases, and Megatron-LM has none in experts that are split over tensor ranks.
        found["--disable-bias-linear"] = None
    if run.get("kv_heads", run["heads"]) != run["heads"]:
        found |= {"--group-query-attention": None, "--num-query-groups": str(run["kv_heads"])}
    if run.get("experts"):
        found |= _mixture(run, runs, degrees.e)
    if "kv_rank" in run:
        found |= _latent(run)
    elif "head_width" in run:
        found["--kv-channels"] = str(run["head_width"])
    return found


def _switches(plan: Plan) -> Iterator[str]:
    """Arguments without a value that state what the plan assumes."""
    request, degrees = plan.request, plan.degrees
    constants = request.cluster.device.efficiencies
    if not request.model.tied:
        yield "--untie-embeddings-and-output-weights"
    if request.gradients is Gradients.BF16:
        yield "--grad-reduce-in-bf16"
    if constants.overlap_gradients and degrees.d > 1:
        yield "--overlap-grad-reduce"
    if constants.overlap_optimizer and constants.overlap_gradients and degrees.o > 1:
        yield "--overlap-param-gather"
    if constants.overlap_tensor and degrees.m > 1:
        yield "--tp-comm-overlap"


def _runs(request: Request) -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = request.model.description["blocks"]
    return runs


def _mixture(run: dict[str, Any], runs: list[dict[str, Any]], ranks: int) -> dict[str, str | None]:
    found: dict[str, str | None] = {
        "--num-experts": str(run["experts"]),
        "--moe-router-topk": str(run["top_k"]),
        "--moe-ffn-hidden-size": str(run["expert_feed_forward"]),
        "--expert-model-parallel-size": str(ranks),
        # What is priced; Megatron-LM's default gathers all tokens on all ranks.
        "--moe-token-dispatcher-type": "alltoall",
    }
    shared = run.get("shared_feed_forward") or run.get("shared_experts", 0) * run["expert_feed_forward"]
    if shared:
        found["--moe-shared-expert-intermediate-size"] = str(shared)
    order = [bool(one.get("experts")) for one in runs for _ in range(one["count"])]
    if not all(order):
        pieces = [f"[{int(kind)}]*{len(list(same))}" for kind, same in groupby(order)]
        found["--moe-layer-freq"] = f"({'+'.join(pieces)})"
    return found


def _latent(run: dict[str, Any]) -> dict[str, str | None]:
    found: dict[str, str | None] = {
        "--multi-latent-attention": None,
        "--kv-lora-rank": str(run["kv_rank"]),
        "--qk-head-dim": str(run["head_width"]),
        "--qk-pos-emb-head-dim": str(run.get("rope_width", 0)),
        "--v-head-dim": str(run.get("value_width", run["head_width"])),
    }
    if run.get("query_rank"):
        found["--q-lora-rank"] = str(run["query_rank"])
    return found


def files(lowered: Lowered) -> dict[str, str]:
    """`megatron.args`: one argument per line, for a shell's `$(cat megatron.args)`."""
    lines = [name if value is None else f"{name} {value}" for name, value in arguments(lowered).items()]
    return {"megatron.args": "\n".join(lines) + "\n"}
