"""Bundles whose process, worker, scheduler and database are killed, over and over.

A study without bundles and kills gives every trial's curve. The fused study must give the same numbers at every
step, whatever was killed in between, and charge nobody. Each member loses at most the steps since its last rung.
"""

import random
import signal
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from cluster_site import PROGRAMS, Cluster, cluster, connect, until
from daemon_site import DaemonSite, daemons, orphans_come_here, reap, running

from headrace.client.sync import Study
from headrace.errors import HeadraceError
from headrace.spec import StudySpec

STEPS, RUNG, MOST = 64, 4, 16
LEASE_TTL_S = 6.0
WAYS = ("bundle", "bundle", "worker", "scheduler", "postgres")


def run(folder: Path, say: Any, *, times: int = 20, trials: int = 24) -> dict[str, Any]:
    """The long form."""
    with (
        orphans_come_here(),
        cluster(folder, worker=False, lease_ttl_s=LEASE_TTL_S) as site,
        daemons([DaemonSite("w0", site.addresses, folder / "w0", folder / "store", slots=2)]) as found,
    ):
        client = connect(site)
        alone = client.create_study("alone", spec(trials, most=None))
        alone.wait(600)
        say("the study without bundles is done")
        study = client.create_study("fused", spec(trials, most=MOST))
        kills = _hurt(site, found[0], study, times, say)
        return _judge(alone, study, kills)


def spec(trials: int, *, most: int | None) -> StudySpec:
    """All trials run to the full budget, and save at each rung."""
    fields = {
        "objective": {"metric": "score", "goal": "minimize"},
        "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
        "sampler": {"kind": "random"},
        "policy": {"kind": "rung_median", "min_results": 1000, "interval": RUNG},
        "template": {
            "callable": "fused:train",
            "working_dir": str(PROGRAMS),
            "env": {"FUSED_STEP_S": "0.1" if most else "0"},
        },
        "max_trials": trials,
        "max_steps": STEPS,
        "max_retries": 0,
        "seed": 3,
        **({} if most is None else {"fuse": {"most": most}}),
    }
    return StudySpec.model_validate(fields)


def _hurt(site: Cluster, daemon: DaemonSite, study: Study, times: int, say: Any) -> Counter[str]:
    """Kill something whenever the study has progressed since the last kill, until it has ended."""
    chance, kills, seen = random.Random(5), Counter[str](), -1
    while True:
        with suppress(HeadraceError):
            info = study.status()
            if info.state.ended:
                return kills
            # First every live member must have passed a rung since the last kill: a trial killed too often fails.
            further = sum(one.step // RUNG for one in study.trials())
            if kills.total() < times and further > seen + 6:
                seen = further
                way = WAYS[kills.total() % len(WAYS)]
                if _kill(site, daemon, way):
                    kills[way] += 1
                    say(f"{kills.total()}/{times} kills: {dict(kills)}")
        signal.sigtimedwait((), chance.uniform(0.1, 0.6))


def _kill(site: Cluster, daemon: DaemonSite, way: str) -> bool:
    if way == "bundle":
        return site.kill(_bundle(daemon))
    if way == "worker":
        orphans = daemon.kill()
        until(
            lambda: not any(running(orphan) for orphan in orphans), "the end of what a killed worker started"
        )
        reap(orphans)
        daemon.start()
        return True
    return site.kill(site.child(way))


def _bundle(daemon: DaemonSite) -> psutil.Process | None:
    """A bundle's process."""
    for process in daemon.family()[1:]:
        with suppress(psutil.Error):
            if "HEADRACE_BUNDLE" in process.environ() and not process.children():
                return process
    return None


def curves(study: Study) -> dict[int, dict[int, float]]:
    """What each trial reported, by step."""
    return {
        one.number: {report.step: report.metrics["score"] for report in study.trial(one.number).reports()}
        for one in study.trials()
    }


def _judge(alone: Study, study: Study, kills: Counter[str]) -> dict[str, Any]:
    expected, found, trials = curves(alone), curves(study), study.trials()
    different = [
        f"trial {number} step {step}"
        for number, curve in found.items()
        for step, value in curve.items()
        if value != expected[number][step]
    ]
    record = {
        "kills": dict(kills),
        "trials": len(trials),
        "state": study.status().state.value,
        "finished": sum(one.step == STEPS for one in trials),
        "points_compared": sum(map(len, found.values())),
        "different": different[:10],
        "failures_charged": sum(one.failures for one in trials),
        "interruptions": sum(one.interruptions for one in trials),
        "steps_trained_again": sum(one.steps_spent for one in trials) - STEPS * len(trials),
        "most_steps_lost_at_once": _most_lost(trials),
    }
    whole = record["finished"] == record["trials"] and record["points_compared"] == STEPS * len(trials)
    return {**record, "holds": whole and not different and not record["failures_charged"]}


def _most_lost(trials: Sequence[Any]) -> float:
    """The mean number of steps lost per interruption, for the trial with the largest mean."""
    lost = [(one.steps_spent - STEPS) / one.interruptions for one in trials if one.interruptions]
    return round(max(lost, default=0.0), 2)
