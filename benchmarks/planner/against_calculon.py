"""Our plan for GPT-3 175B on 64 A100s, scored by calculon beside the optimum of calculon's own sweep.

    python benchmarks/planner/against_calculon.py CALCULON [--optimum FILE --sweep-cpu-s SECONDS]

CALCULON is a checkout of calculon-ai/calculon. Without --optimum its sweep runs here first, on one core, reduced: no
offloading, no overlap of collectives, fused activations, batch 64. Our plans are those that our cost model puts
within 5% of its best; calculon scores them, and the best of them and our very first are both recorded. Of calculon's
knobs that our plans do not have (which network serves which axis, redoing an all-gather) all values are scored, and
their time counts as ours. Writes `results/against_calculon.json`.
"""

import argparse
import itertools
import json
import logging
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace_services.planner import catalogue
from headrace_services.planner.costing import Request
from headrace_services.planner.layer_cost import AttentionKernel
from headrace_services.planner.modes import Mode
from headrace_services.planner.plan import Plan
from headrace_services.planner.schedules import Schedule
from headrace_services.planner.search import Search

BATCH, DEVICES, NEAR = 64, 64, 1.05
EQUAL = Mode(
    name="calculon",
    data=True,
    tensor=True,
    pipeline=True,
    optimizer=True,
    micro_batch=True,
    recompute=False,
    stages=False,
)
RECOMPUTE = {AttentionKernel.SELECTIVE: "attn_only", AttentionKernel.MATERIALISED: "none"}


def plans() -> list[Plan]:
    """Our finalists: equal stages, selective or no recomputation, every interleaving, best first."""
    found = []
    model, cluster = catalogue.model("gpt3-175b"), catalogue.cluster(f"a100-{DEVICES}")
    # Its description of the machine has 80 GiB and lets a plan use all of it.
    cluster = replace(cluster, device=replace(cluster.device, memory_bytes=80 * 2**30))
    for attention, chunks in itertools.product(RECOMPUTE, (1, 2, 3, 4, 6, 12)):
        schedule = Schedule.INTERLEAVED if chunks > 1 else Schedule.ONE_F_ONE_B
        search = Search(
            Request(
                model=model,
                cluster=cluster,
                batch=BATCH,
                schedule=schedule,
                chunks=chunks,
                attention=attention,
                usable_memory=1.0,
            )
        )
        best = search.run(EQUAL).plan
        for bound, degrees in search.bounds():
            if best and bound <= NEAR * best.simulated_s and EQUAL.allows(degrees, BATCH):
                candidate = search.candidate(EQUAL, degrees)
                found += [search.assembled(candidate)] if candidate else []
    found.sort(key=lambda plan: plan.simulated_s)
    return [plan for plan in found if plan.simulated_s <= NEAR * found[0].simulated_s]


def executions(plan: Plan) -> list[dict[str, Any]]:
    """A plan in calculon's words, with every value of the knobs that it leaves open."""
    d = plan.degrees
    base = {
        "num_procs": DEVICES,
        "tensor_par": d.m,
        "pipeline_par": d.s,
        "data_par": d.d,
        "batch_size": BATCH,
        "microbatch_size": plan.micro_batch,
        "datatype": "float16",
        "fused_activation": True,
        "attention_type": "multihead",
        "activation_recompute": RECOMPUTE[plan.request.attention],
        "pipeline_interleaving": len(plan.stages[0].chunks),
        "optimizer_sharding": d.o > 1,
        "tensor_par_comm_type": "rs_ag",
        "tensor_par_overlap": "none",
        "data_par_overlap": False,
        "weight_offload": False,
        "activations_offload": False,
        "optimizer_offload": False,
        "training": True,
    }
    nets = [(0, 1) if degree > 1 else (0,) for degree in (d.m, d.s, d.d)]
    return [
        {**base, "tensor_par_net": t, "pipeline_par_net": p, "data_par_net": n, "seq_par_ag_redo": redo}
        for t, p, n in itertools.product(*nets)
        for redo in (True, False)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("calculon", type=Path)
    parser.add_argument("--optimum", type=Path)
    parser.add_argument("--sweep-cpu-s", type=float)
    arguments = parser.parse_args()
    sys.path.insert(0, str(arguments.calculon))
    from calculon.llm import Llm  # type: ignore[import-not-found]  # not a dependency
    from calculon.llm.optimal_execution import OptimalExecution  # type: ignore[import-not-found]
    from calculon.system import System  # type: ignore[import-not-found]

    description = json.loads((arguments.calculon / "systems" / "a100_80g.json").read_text())
    description["mem2"] = {"GiB": 0, "GBps": 1, "MB_efficiency": [[0, 1.0]]}
    system = System(description)
    application = Llm.Application(json.loads((arguments.calculon / "models" / "gpt3-175B.json").read_text()))

    def score(execution: dict[str, Any]) -> float | None:
        model = Llm(application, logging.Logger("quiet"))
        try:
            model.compile(system, Llm.Execution.from_json(execution))
            model.run(system)
        except Llm.Error:
            return None
        return float(model.get_total_time())

    began = time.process_time()
    candidates = plans()
    scored = [(s, plan, e) for plan in candidates for e in executions(plan) if (s := score(e)) is not None]
    ours_s, plan, execution = min(scored, key=lambda one: one[0])
    first_s = min(seconds for seconds, of, _ in scored if of is scored[0][1])
    ours_cpu_s = time.process_time() - began
    if arguments.optimum:
        best = json.loads(arguments.optimum.read_text())
        optimum, sweep_cpu_s = best["0"]["execution"], arguments.sweep_cpu_s
    else:
        began = time.process_time()
        optimum = sweep(Llm, OptimalExecution, application, system)
        sweep_cpu_s = time.process_time() - began
    optimum_s = score(optimum)
    assert optimum_s is not None
    record = {
        "ours_s": ours_s,
        "optimum_s": optimum_s,
        "plans_scored": len(candidates),
        "our_first_plan_s": first_s,
        "excess_of_our_first_plan": first_s / optimum_s - 1,
        "excess": ours_s / optimum_s - 1,
        "ours_cpu_s": round(ours_cpu_s, 2),
        "sweep_cpu_s": sweep_cpu_s,
        "cpu_ratio": sweep_cpu_s / ours_cpu_s if sweep_cpu_s else None,
        "ours_by_our_model_s": plan.simulated_s,
        "ours": execution,
        "optimum": optimum,
    }
    path = Path(__file__).parent / "results" / "against_calculon.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    print(
        json.dumps({key: value for key, value in record.items() if key not in ("ours", "optimum")}, indent=1)
    )


def sweep(llm: Any, optimal: Any, application: Any, system: Any) -> dict[str, Any]:
    """Calculon's own search, in this process."""
    best: list[Any] = []
    for tp in llm.get_all_tensor_parallelisms(DEVICES, application.hidden, application.attn_heads):
        for pp in llm.get_all_pipeline_parallelisms(DEVICES, tp, application.num_blocks):
            dp = llm.get_data_parallelism(DEVICES, tp, pp)
            for chunks, recompute, sharding, kind in itertools.product(
                llm.get_valid_pipeline_interleavings(application.num_blocks, pp),
                ("full", "attn_only", "none"),
                (True, False) if dp > 1 else (False,),
                ("ar", "p2p_rs_ag", "rs_ag"),
            ):
                found = optimal.search(
                    False, 1, False, DEVICES, BATCH, "float16", application, system, tp, pp, dp, chunks, BATCH,
                    recompute, sharding, kind, [True], True, False, False,
                )  # fmt: skip
                best = optimal.update_list(best, found[0], 1)
    execution: dict[str, Any] = best[0][1]
    return execution


if __name__ == "__main__":
    main()
