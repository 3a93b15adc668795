"""Predicted windows against real ones: on simulated 1F1B pipelines with jitter, and on a real one of two ranks.

Run it:  python benchmarks/bubbles/predictor.py             (two minutes)
         python benchmarks/bubbles/predictor.py --steps 60 --real 20 --out /tmp    (a short run)

It writes predictor.json to ../results. The simulated clock runs s = 2 to 8 stages with m = s to 4s micro-batches,
a forward pass of 10 ms and a backward pass of 20 ms, each drawn from a lognormal distribution; the slowest passes
take five times as long. The real run is the GPT of examples/bubbles without trials, predicted by the history
alone.

For each quantile that the agent may request, over all predicted windows of at least 3 ms, it gives two figures:
the share that ended before their prediction (overruns), and the time that the predictions covered as a share of
the windows' time. Both are given by the history alone, and with neighbours' hints, which arrive at once. A window
that starts late is predicted shorter, as in the rank; `any begin` is without that. The excess is how much too long
predictions were, as a share of that time.
"""

import argparse
import json
import os
import platform
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "examples" / "bubbles"))

import run as example  # noqa: E402  the example beside it, found by the line above

from headrace_services.bubble_agent import pipeline  # noqa: E402  behind it, in order
from headrace_services.bubble_agent.predictor import Predictor  # noqa: E402  behind it, in order
from headrace_services.bubble_agent.stage import REAL_WAIT_NS  # noqa: E402  behind it, in order
from headrace_torch.bubble_shm import AT, StageFile  # noqa: E402  behind it, in order

QUANTILES = (0.05, 0.2, 0.4)
JITTERS = (0.0, 0.02, 0.1, 0.3)
SLOW_SHARE, SLOW = 0.002, 5.0
FORWARD_NS, BACKWARD_NS = 10e6, 20e6
SHORTEST_NS = 3e6


class Score:
    """Counts predictions."""

    def __init__(self) -> None:
        self.windows = self.waited = 0
        self.overruns: Counter[str] = Counter()
        self.covered: Counter[str] = Counter()
        self.excess: Counter[str] = Counter()

    def count(
        self, predictor: Predictor, slot: int, length: int, after: int, hint: int | None = None
    ) -> None:
        """One window, before the predictor has seen it. It starts `after` its step, and `hint` counts from there."""
        latest = predictor.latest_begin(slot)
        if length < SHORTEST_NS or predictor.length(slot) is None or latest is None:
            return
        self.windows += 1
        self.waited += length
        for quantile in QUANTILES:
            whole = predictor.length(slot, quantile) or 0
            predicted = max(0, whole - max(0, after - latest))
            self._count(f"{quantile}, any begin", length, whole)
            self._count(f"{quantile}", length, predicted)
            end = None if hint is None else predictor.end_after_hint(slot, hint, quantile)
            if hint is None or end is None:
                self._count(f"{quantile}, hints", length, predicted)
            else:  # the history applies until the hint; if its time is up before, the trial rests meanwhile
                known = max(0, hint)
                self._count(f"{quantile}, hints", length, max(end, known), rest=max(0, known - predicted))

    def _count(self, kind: str, length: int, end: int, rest: int = 0) -> None:
        self.overruns[kind] += end > length
        self.excess[kind] += max(0, end - length)
        self.covered[kind] += max(0, min(end, length) - rest)

    def row(self, *, hints: bool = True) -> dict[str, Any]:
        by_quantile = {
            kind: {
                "overruns": round(self.overruns[kind] / max(1, self.windows), 4),
                "covered": round(self.covered[kind] / max(1, self.waited), 4),
                "excess": round(self.excess[kind] / max(1, self.waited), 4),
            }
            for kind in sorted(self.covered)
            if hints or "hints" not in kind
        }
        return {"windows": self.windows, **by_quantile}


def simulated(stages: int, micro_batches: int, jitter: float, steps: int) -> Score:
    """Every stage of one pipeline. A step starts when the last stage has finished the previous one."""
    rng, score = random.Random(stages * 1000 + micro_batches), Score()
    predictors = [Predictor() for _ in range(stages)]
    free = [0.0] * stages

    def length(_stage: int, kind: pipeline.Pass, _micro_batch: int) -> float:
        slow = SLOW if jitter and rng.random() < SLOW_SHARE else 1.0
        return (FORWARD_NS if kind == "F" else BACKWARD_NS) * rng.lognormvariate(0, jitter) * slow

    for _ in range(steps):
        begin = max(free)
        waits, free = pipeline.step(
            stages=stages, micro_batches=micro_batches, time=length, begin=[begin] * stages
        )
        for wait in waits:
            hint = None if wait.hinted is None else int(wait.hinted - wait.began)
            after = int(wait.began - begin)
            score.count(predictors[wait.stage], wait.slot, int(wait.length), after, hint)
            led = hint is not None and hint <= wait.length and wait.length >= REAL_WAIT_NS
            predictors[wait.stage].observe(
                slot=wait.slot,
                length=int(wait.length),
                generation=0,
                lag=int(wait.length) - hint if hint is not None and led else None,
            )
            predictors[wait.stage].observe_begin(slot=wait.slot, after=after, generation=0)
    return score


def real(steps: int) -> dict[str, Any]:
    """The windows of two ranks, each on its own core, with the same predictor."""
    told: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        folder, cores, port = Path(name), example.cores(), example.free_port()
        ranks = [example.start_rank(rank, port, folder, cores[rank], "--steps=1000000") for rank in range(2)]
        try:
            for stage, rank in enumerate(ranks):
                example.wait_for(folder / f"gpt.0.{stage}.bubble", rank)
            files = [StageFile.open(folder / f"gpt.0.{stage}.bubble") for stage in range(2)]
            records: list[list[tuple[int, ...]]] = [[], []]
            begins: list[dict[int, int]] = [{}, {}]
            while files[0].words[AT["steps"]] < steps:
                time.sleep(0.2)
                for stage, file in enumerate(files):
                    records[stage] += file.records(0, AT["windows"], len(records[stage]))
                    begins[stage] |= {at: began for at, began, *_ in file.records(1, AT["steps"], 0)}
            for stage, file in enumerate(files):
                file.close()
                score, predictor = Score(), Predictor()
                for at, began, ended, generation in records[stage]:
                    step, slot = at >> 16, at & 0xFFFF
                    if step not in begins[stage]:
                        continue
                    after = began - begins[stage][step]
                    score.count(predictor, slot, ended - began, after)
                    predictor.observe(slot=slot, length=ended - began, generation=generation)
                    predictor.observe_begin(slot=slot, after=after, generation=generation)
                told[f"stage {stage}"] = score.row(hints=False)
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=300, help="of each simulated pipeline")
    parser.add_argument("--real", type=int, default=300, help="steps of the real run")
    parser.add_argument("--out", type=Path, default=HERE.parent / "results")
    options = parser.parse_args()
    rows = []
    for jitter in JITTERS:
        for stages in range(2, 9):
            for times in (1, 2, 4):
                row = simulated(stages, times * stages, jitter, options.steps).row()
                rows.append({"jitter": jitter, "stages": stages, "micro_batches": times * stages, **row})
        mine = [row for row in rows if row["jitter"] == jitter]
        for kind in (f"{quantile}{how}" for quantile in QUANTILES for how in ("", ", any begin", ", hints")):
            overruns, covered, excess = (
                sum(row[kind][what] for row in mine) / len(mine) for what in ("overruns", "covered", "excess")
            )
            print(
                f"jitter {jitter:.0%}, quantile {kind}: overrun {overruns:.1%}, covered {covered:.1%}, "
                f"excess {excess:.2%}"
            )
    before = os.getloadavg()[0]
    measured = real(options.real)
    for stage, row in measured.items():
        print(f"real, {stage}: {row}")
    record = {
        "machine": platform.machine(),
        "forward_ms": FORWARD_NS / 1e6,
        "backward_ms": BACKWARD_NS / 1e6,
        "slow_passes": {"share": SLOW_SHARE, "times": SLOW},
        "steps": options.steps,
        "simulated": rows,
        "real": {
            "steps": options.real,
            "load_average": {"before": before, "after": os.getloadavg()[0]},
            **measured,
        },
    }
    (options.out / "predictor.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
