"""The time of one early-stopping decision in memory, by our policy and by Syne Tune's ASHA, on the same sequence."""

import logging
import random
import time
import warnings
from typing import Any

from headrace.spec import StudySpec
from headrace_services.scheduler.core.policies import RungResult, make_policy


def our_decisions(spec: StudySpec, values: list[float], measured: int) -> list[float]:
    """Seconds of the last decisions of our policy."""
    policy = make_policy(spec)
    taken = []
    for trial, value in enumerate(values):
        began = time.perf_counter()
        policy.record(
            RungResult(trial=trial, bracket=0, rung=0, milestone=1, step=1, value=value, arrival=trial + 1)
        )
        policy.verdict(trial, 0, 0)
        taken.append(time.perf_counter() - began)
    return taken[-measured:]


def syne_tune_decisions(spec: StudySpec, values: list[float], measured: int) -> list[float]:
    """Seconds of the last decisions of Syne Tune's ASHA."""
    from datetime import UTC, datetime

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from syne_tune.backend.trial_status import Trial
        from syne_tune.config_space import uniform
        from syne_tune.optimizer.schedulers.asha import AsynchronousSuccessiveHalving

    logging.getLogger("syne_tune").setLevel(logging.ERROR)
    asha = AsynchronousSuccessiveHalving(
        {"x": uniform(0, 1)},
        metric="loss",
        do_minimize=True,
        time_attr="step",
        max_t=spec.max_steps,
        grace_period=1,
        reduction_factor=3,
        random_seed=1,
    )
    taken = []
    for number, value in enumerate(values):
        trial = Trial(number, {"x": 0.5}, datetime.now(UTC))
        asha.on_trial_add(trial)
        began = time.perf_counter()
        asha.on_trial_result(trial, {"loss": value, "step": 1})
        taken.append(time.perf_counter() - began)
    return taken[-measured:]


def decisions(spec: StudySpec, results: int, measured: int = 500) -> dict[str, Any]:
    """One decision at `results` results, by both."""
    random_ = random.Random(1)
    values = [random_.random() for _ in range(results)]
    ours, theirs = our_decisions(spec, values, measured), syne_tune_decisions(spec, values, measured)
    found = {"headrace": percentiles_ms_fine(ours), "syne tune": percentiles_ms_fine(theirs)}
    found["p50 over p50"] = round(sorted(theirs)[len(theirs) // 2] / sorted(ours)[len(ours) // 2], 1)
    print(found, flush=True)
    return found


def percentiles_ms_fine(seconds: list[float]) -> dict[str, float]:
    """Count, p50 and p99 in milliseconds, with more digits."""
    ordered = sorted(seconds)
    return {
        "count": len(ordered),
        "p50_ms": round(ordered[len(ordered) // 2] * 1e3, 4),
        "p99_ms": round(ordered[int(len(ordered) * 0.99)] * 1e3, 4),
    }
