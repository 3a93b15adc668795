"""A step of N fused members beside N steps of one alone: ResNet-18 at scale 8 on CIFAR's shape, N up to 200.

Run it:  python benchmarks/gpu/fusion_speed.py
         python benchmarks/gpu/fusion_speed.py --device cpu     (the code, on a CPU)

One alone is plain torch with SGD's fused kernel. A figure is the best of ten steps, the device's work included.
Memory is the allocator's peak while the members are made and take a step. `make gpu` runs it and keeps the figures;
by itself it only prints them.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import gpu_paths  # noqa: F401  the folders of what follows
import torch
from fuse_throughput_cuda import (
    FULL,
    SMALL,
    Loss,
    Size,
    autocast_loss,
    batch_on,
    hydro_step,
    measured,
    one_alone,
)
from fuse_workloads import loss_of
from gpu_precision import tf32
from kit_lines import Line, say

PRECISIONS: dict[str, tuple[Loss, bool]] = {
    "bfloat16": (autocast_loss, False),
    "TF32": (loss_of, True),
    "float32": (loss_of, False),
}
"""The loss, and whether float32 may be TF32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured, most valuable first."""

    cases: tuple[tuple[str, int], ...]
    """Precisions, and rows of a batch."""
    size: Size


PLANS = {
    "cuda": Plan(
        cases=tuple((precision, rows) for rows in (256, 1000) for precision in PRECISIONS),
        size=replace(FULL, counts=(1, 4, 16, 64, 100, 200)),
    ),
    "cpu": Plan(cases=tuple((precision, 4) for precision in PRECISIONS), size=SMALL),
}


def measure(precision: str, rows: int, device: torch.device, plan: Plan) -> None:
    """One alone, then a group of each size."""
    loss, allowed = PRECISIONS[precision]
    size = replace(plan.size, rows=rows)
    batch = batch_on(device, size)
    at = f"ResNet-18, {precision}, batch {rows}"
    with tf32(allowed):
        alone = measured(partial(one_alone, batch, loss, device, size), 1, device, size)
        told(alone, f"{at}, plain")
        for count in size.counts:
            make = partial(hydro_step, count, batch, loss, device, size, "grouped")
            fused = measured(make, count, device, size)
            told(fused, f"{at}, members: {count}", count)
            if "seconds" in alone and "seconds" in fused:
                times = count * alone["seconds"] / fused["seconds"]
                say(Line(name="times one alone", at=f"{at}, members: {count}", value=times))


def told(found: dict[str, float | str], at: str, count: int = 1) -> None:
    """Says what was measured, or why it was not."""
    if "error" in found:
        why = str(found["error"])
        too_many = why.startswith("OutOfMemoryError")  # torch's, or Hydro's
        say(Line(name="step", at=at, outcome="skipped" if too_many else "failed", why=why))
        return
    say(Line(name="step", at=at, value=1e3 * float(found["seconds"]), unit="ms"))
    say(Line(name="memory", at=at, value=float(found["bytes_per_member"]) * count / 2**20, unit="MiB"))


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", choices=PLANS, default="cuda")
    options = parser.parse_args(words)
    plan = PLANS[options.device]
    for precision, rows in plan.cases:
        measure(precision, rows, torch.device(options.device), plan)


if __name__ == "__main__":
    main()
