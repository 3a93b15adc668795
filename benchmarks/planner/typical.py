"""Whether plans fit: sixteen typical ones, with memory counted as before and as now.

    python benchmarks/planner/typical.py

Each is planned twice. First with gradients in 16 bits (16 bytes per parameter, as the planner formerly counted
them); that plan is then priced with the 32 bits that Megatron-LM keeps. Then with 32 bits from the start. The
record has the fullest device of each, compared with the whole card and with the share that plans may use. Writes
`benchmarks/results/typical.json`.
"""

import json
from dataclasses import replace
from pathlib import Path

from headrace_services.planner import asking
from headrace_services.planner.asking import Options
from headrace_services.planner.emit.lowering import priced, stage_boundaries
from headrace_services.planner.memory import Gradients
from headrace_services.planner.plan import Plan
from headrace_services.planner.search import Search

PLANS = (
    ("gpt3-13b", "a100-32", 512),
    ("gpt3-13b", "a100-64", 1024),
    ("gpt3-175b", "a100-128", 256),
    ("gpt3-175b", "a100-512", 1536),
    ("gpt3-175b", "h100-256", 1024),
    ("megatron-22b", "a100-16", 64),
    ("megatron-530b", "a100-512", 512),
    ("megatron-1t", "a100-1024", 1024),
    ("llama3-8b", "a100-8", 128),
    ("llama3-70b", "h100-64", 256),
    ("llama3-70b", "h100-128", 512),
    ("llama3-405b", "h100-512", 512),
    ("mixtral-8x7b", "h100-32", 256),
    ("mixtral-8x22b", "h100-64", 256),
    ("deepseek-v2", "h100-128", 512),
    ("deepseek-v3", "h100-512", 2048),
)


def peak(plan: Plan) -> int:
    """Bytes of the fullest device."""
    return max(stage.memory.total_bytes for stage in plan.stages)


def main() -> None:
    rows = []
    for model, cluster, batch in PLANS:
        before = Search(asking.request(model, cluster, Options(batch=batch, gradients="bf16"))).run().plan
        now = Search(asking.request(model, cluster, Options(batch=batch))).run().plan
        row: dict[str, object] = {"model": model, "cluster": cluster, "batch": batch}
        if before:
            card = before.request.cluster.device.memory_bytes
            request = replace(before.request, gradients=Gradients.FP32)
            again = priced(before, request=request, boundaries=stage_boundaries(before))
            row["counted_before_of_card"] = round(peak(before) / card, 3)
            row["the_same_with_32_bits_of_card"] = round(peak(again) / card, 3)
        if now:
            row["counted_now_of_card"] = round(peak(now) / now.request.cluster.device.memory_bytes, 3)
            row["seconds"] = now.simulated_s
        rows.append(row)
        print(row, flush=True)
    shares = [row.get("the_same_with_32_bits_of_card", 0.0) for row in rows]
    record = {
        "before_exceed_the_card": sum(isinstance(share, float) and share > 1 for share in shares),
        "before_exceed_what_a_plan_may_use": sum(
            isinstance(share, float) and share > 0.94 for share in shares
        ),
        "now_exceed_the_card": sum(float(str(row.get("counted_now_of_card", 0))) > 1 for row in rows),
        "without_a_plan": sum("seconds" not in row for row in rows),
        "plans": rows,
    }
    path = Path(__file__).parents[1] / "results" / "typical.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    print({key: value for key, value in record.items() if key != "plans"})


if __name__ == "__main__":
    main()
