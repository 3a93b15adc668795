"""What the planner's searches find and cost: a comparison of modes, an ensemble of shapes, exactness, B200 rows.

    python benchmarks/planner/search.py

Writes `search.json` to ../results. All iteration times are simulations. H²O's paper gives no shape, batch or
sequence for its 141B model, so its ratio of 1.367 to D-Rec is compared with an ensemble and not reproduced.
"""

import csv
import json
import random
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from headrace_services.planner import catalogue
from headrace_services.planner.assignment import solve
from headrace_services.planner.assignment_local import solve_locally
from headrace_services.planner.blocks import model_from_description
from headrace_services.planner.costing import Request
from headrace_services.planner.degrees import Degrees
from headrace_services.planner.model import Model
from headrace_services.planner.modes import FULL, MODES, Mode
from headrace_services.planner.plan import Plan
from headrace_services.planner.problem import Recompute
from headrace_services.planner.record import outcome_record
from headrace_services.planner.search import Method, Search

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "tests" / "planner"))

from planner_instances import brute_force, random_problem  # noqa: E402  the tests' own oracle, found by the line above

PAPER_RATIO = 1.367
GRANTED = {
    "micro-batches": Mode(name="d-rec+µ", data=True, tensor=True, micro_batch=True),
    "recomputation": Mode(name="d-rec+R", data=True, tensor=True, recompute=True),
    "optimizer sharding": Mode(name="d-rec+o", data=True, tensor=True, optimizer=True),
    "stages": Mode(name="d-rec+s", data=True, tensor=True, pipeline=True, stages=True),
}
"""D-Rec with one axis more than Table 1 gives it, to see which axes account for its distance."""


def timed(model: str, cluster: str, batch: int) -> dict[str, Any]:
    """All modes of Table 1, and the CPU time of the full search (which tries the restricted ones too)."""
    search = Search(Request(model=catalogue.model(model), cluster=catalogue.cluster(cluster), batch=batch))
    began = time.process_time()
    search.run(FULL)
    cpu_s = time.process_time() - began
    locally = Search(search.request, method=Method.LOCAL)
    began = time.process_time()
    local = locally.run(FULL).plan
    local_cpu_s = time.process_time() - began
    found = {}
    for mode in MODES.values():
        record = outcome_record(search.run(mode))
        plan = record.pop("plan")
        keys = ("iteration_s", "analytic_s", "lower_bound_s", "paper_s", "mfu", "degrees")
        found[mode.name] = {**record, **({key: plan[key] for key in keys} if plan else {"plan": None})}
    return {
        "model": model,
        "cluster": cluster,
        "batch": batch,
        "full_search_cpu_s": round(cpu_s, 3),
        "local_search_cpu_s": round(local_cpu_s, 3),
        "local_search_iteration_s": local.simulated_s if local else None,
        "modes": found,
    }


def shapes() -> list[tuple[str, Model]]:
    """Models of about 141e9 parameters in DeepSeek's family."""
    v3 = catalogue.model("deepseek-141b")
    description = dict(catalogue.model("deepseek-v2").description)
    dense, mixture = description["blocks"]
    v2 = model_from_description("v2-cut", {**description, "blocks": [dense, {**mixture, "count": 35}]})
    return [("V3 cut, 3 + 12 layers", v3), ("V2 cut, 1 + 35 layers", v2)]


def ensemble() -> dict[str, Any]:
    """Our ratio to the D-Rec mode over shapes, sequences and batches on 128 Ascend 910."""
    rows = []
    for name, model in shapes():
        for sequence in (2048, 4096, 8192):
            for batch in (512, 1024, 2048):
                asked = Request(
                    model=replace(model, sequence=sequence),
                    cluster=catalogue.cluster("ascend910-128"),
                    batch=batch,
                )
                search = Search(asked)
                ours, others = (
                    search.run(FULL).plan,
                    {m: search.run(MODES[m]).plan for m in ("d-rec", "alpa")},
                )
                row: dict[str, Any] = {"shape": name, "sequence": sequence, "batch": batch}
                if ours:
                    row |= {"h2o_s": ours.simulated_s, "mfu": ours.mfu}
                    granted = {name: search.run(mode).plan for name, mode in GRANTED.items()}
                    row |= {
                        f"{m}_ratio": p.simulated_s / ours.simulated_s if p else None
                        for m, p in others.items()
                    }
                    row["d-rec_communicates"] = _communication(others["d-rec"])
                    row["granted"] = {
                        name: p.simulated_s / ours.simulated_s if p else None for name, p in granted.items()
                    }
                rows.append(row)
    ratios = sorted(row["d-rec_ratio"] for row in rows if row.get("d-rec_ratio"))
    return {
        "label": "simulation, uncalibrated device; not a reproduction",
        "paper": PAPER_RATIO,
        "median": median(ratios),
        "least": ratios[0],
        "largest": ratios[-1],
        "median_if_granted": {
            name: median(sorted(row["granted"][name] for row in rows if row.get("granted", {}).get(name)))
            for name in GRANTED
        },
        "d_rec_communicates": median(row["d-rec_communicates"] for row in rows if row.get("d-rec_ratio")),
        "d_rec_does_not_fit": sum(row.get("d-rec_ratio") is None for row in rows),
        "rows": rows,
    }


def _communication(plan: Plan | None) -> float | None:
    """The share of an iteration that goes to collectives within layers."""
    return plan.breakdown.communication_s / plan.simulated_s if plan else None


def exactness(count: int = 500) -> dict[str, Any]:
    """Level 2 against brute force, and the gap of the paper's local search on the same instances."""
    rng = random.Random(20260)
    infeasible, missed, differs, gaps = 0, 0, 0.0, []
    for _ in range(count):
        problem = random_problem(rng)
        best, answer, local = brute_force(problem), solve(problem), solve_locally(problem)
        if best is None or answer is None:
            assert best is None
            assert answer is None
            infeasible += 1
            continue
        differs = max(differs, abs(answer.objective_s / best - 1))
        if local is None:
            missed += 1
        else:
            gaps.append(local.objective_s / best - 1)
    return {
        "instances": count,
        "infeasible": infeasible,
        "largest_difference": differs,
        "local_search_found_nothing": missed,
        "local_search_gap": {"median": median(gaps), "mean": sum(gaps) / len(gaps), "largest": max(gaps)},
        "local_search_optimal": sum(gap < 1e-9 for gap in gaps),
    }


def every_size(most: int = 8, times: int = 3) -> dict[str, Any]:
    """Level 2 against brute force for every number of layers and stages up to `most`, `times` each."""
    rng = random.Random(8)
    compared, infeasible, differs = 0, 0, 0.0
    for layers in range(1, most + 1):
        for stages in range(1, layers + 1):
            for _ in range(times):
                problem = random_problem(rng, layers, stages)
                best, answer = brute_force(problem), solve(problem)
                assert (best is None) == (answer is None), (layers, stages)
                compared += 1
                if best is None or answer is None:
                    infeasible += 1
                else:
                    differs = max(differs, abs(answer.objective_s / best - 1))
    return {"sizes": most * (most + 1) // 2, "instances": compared} | {
        "infeasible": infeasible,
        "largest_difference": differs,
    }


def b200() -> list[dict[str, Any]]:
    """SimuMax's rows: four layers of DeepSeek-V2, twelve of Llama 3 70B, one sequence of 4096 per micro-batch."""
    deepseek, llama = (dict(catalogue.model(name).description) for name in ("deepseek-v2", "llama3-70b"))
    dense, mixture = deepseek["blocks"]
    models = {
        "deepseek-v2-4L": {**deepseek, "blocks": [dense, {**mixture, "count": 3}]},
        "llama-70b-12L": {**llama, "blocks": [{**llama["blocks"][0], "count": 12}]},
    }
    layouts = {"EP8": (8, 1, 1, 8), "EP4.PP2": (4, 1, 2, 4), "PP2": (4, 1, 2, 1), "TP4": (2, 4, 1, 1)}
    plain = Mode(name="plain", data=True, tensor=True, pipeline=True, optimizer=True, micro_batch=True)
    assert plain.recomputation is Recompute.NONE
    found = []
    for line in csv.DictReader((HERE / "data" / "simumax_b200.csv").read_text().splitlines()):
        model = replace(model_from_description(line["model"], models[line["model"]]), sequence=4096)
        d, m, s, e = layouts[line["layout"]]
        for mu in (4, 8, 32):
            cluster = catalogue.cluster("b200-8")
            search = Search(Request(model=model, cluster=cluster, batch=d * mu, usable_memory=1.0))
            candidate = search.candidate(plain, Degrees(d=d, m=m, o=d, s=s, mu=mu, e=e))
            measured = float(line[f"ms_at_{mu}" if mu != 4 else "ms_at_4_microbatches"])
            predicted = search.assembled(candidate).simulated_s * 1e3 if candidate else None
            miss = predicted / measured - 1 if predicted else None
            row = {"model": line["model"], "layout": line["layout"], "micro_batches": mu}
            found.append({**row, "measured_ms": measured, "predicted_ms": predicted, "miss": miss})
    return found


def main() -> None:
    record = {
        "deepseek_141b_on_128": timed("deepseek-141b", "ascend910-128", 2048),
        "megatron_1t_on_3072": timed("megatron-1t", "a100-80g-3072", 3072),
        "ensemble": ensemble(),
        "exactness": exactness(),
        "every_size_up_to_8": every_size(),
        "b200": b200(),
    }
    (HERE.parent / "results" / "search.json").write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
