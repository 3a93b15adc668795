"""torchtitan: a TOML job configuration.

torchtitan shards parameters (FSDP, ZeRO-3) where a plan shards the optimizer, and recomputes all layers, every n-th, or
none. Stages are given as lists of module names. Source: torchtitan/config/job_config.py.
"""

from dataclasses import replace

from headrace_services.planner.emit.lowering import Lowered, Note, priced
from headrace_services.planner.memory import ZeroStage
from headrace_services.planner.model import LayerKind
from headrace_services.planner.plan import Plan, StagePlan
from headrace_services.planner.schedules import Schedule

SCHEDULES = {
    Schedule.ONE_F_ONE_B: "1F1B",
    Schedule.INTERLEAVED: "Interleaved1F1B",
    Schedule.ZERO_BUBBLE: "InterleavedZeroBubble",
    Schedule.GPIPE: "GPipe",
}


def lower(plan: Plan) -> Lowered:
    """Recompute everything where anything is; shard parameters where the optimizer was sharded."""
    notes = []
    layers = plan.request.model.layers
    again = tuple(i for i, layer in enumerate(layers) if layer.recomputable) if plan.recomputed else ()
    if plan.recomputed and again != plan.recomputed:
        notes.append(Note(what=f"{len(plan.recomputed)} recomputed layers", instead="all blocks (mode full)"))
    request = plan.request
    if plan.degrees.o > 1 and request.zero is not ZeroStage.PARAMETERS:
        notes.append(Note(what=f"ZeRO stage {int(request.zero)}", instead="FSDP, which is stage 3"))
        request = replace(request, zero=ZeroStage.PARAMETERS)
    return Lowered(original=plan, plan=priced(plan, request=request, recomputed=again), notes=tuple(notes))


def files(lowered: Lowered) -> dict[str, str]:
    """`torchtitan.toml`."""
    plan = lowered.plan
    request, degrees = plan.request, plan.degrees
    per_rank = request.batch // degrees.d
    lines = [
        "[training]",
        f"local_batch_size = {per_rank}",
        f"global_batch_size = {request.batch}",
        f"seq_len = {request.model.sequence}",
        "",
        "[parallelism]",
        f"data_parallel_replicate_degree = {degrees.d // degrees.o}",
        f"data_parallel_shard_degree = {degrees.o}",
        f"tensor_parallel_degree = {degrees.m}",
        f"expert_parallel_degree = {degrees.e}",
        f"pipeline_parallel_degree = {degrees.s}",
        f'pipeline_parallel_schedule = "{SCHEDULES[request.schedule]}"',
        f"pipeline_parallel_microbatch_size = {plan.micro_batch}",
    ]
    if degrees.s > 1:
        lines.append("module_fqns_per_model_part = [")
        chunks = len(plan.stages[0].chunks)
        for chunk in range(chunks):
            lines += [f"  [{', '.join(_modules(plan, stage, chunk))}]," for stage in plan.stages]
        lines.append("]")
    lines += ["", "[activation_checkpoint]", f'mode = "{"full" if plan.recomputed else "none"}"']
    return {"torchtitan.toml": "\n".join(lines) + "\n"}


def _modules(plan: Plan, stage: StagePlan, chunk: int) -> list[str]:
    layers, names = plan.request.model.layers, []
    for index in stage.chunks[chunk]:
        match layers[index].kind:
            case LayerKind.EMBEDDING:
                names.append('"tok_embeddings"')
            case LayerKind.BLOCK:
                names.append(f'"layers.{index - 1}"')
            case LayerKind.HEAD:
                names += ['"norm"', '"output"']
    return names
