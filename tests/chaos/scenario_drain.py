"""SIGTERM of a worker whose trials have long steps: each saves at its next report and continues elsewhere.

Real daemons and trial processes. The trials keep a journal of every answered report, by lease. A step that two leases
of a trial have both trained was lost. So was a step that a lease had started to train when it was ended.

    python tests/chaos/scenario_drain.py        four trials of 2 s steps, a line for each
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster_site import Cluster, chain_spec, cluster, connect, journals, until
from daemon_site import DaemonSite, daemons

from headrace import Client
from headrace.client import Study

LEASE_TTL_S = 5.0
STEPS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """What happened to one trial."""

    trial: int
    steps_before: int
    """The steps reported by the lease on the drained worker."""
    went_on_from: int
    to: str
    lost: int
    failures: int
    interruptions: int
    chained: bool
    """Whether its two leases together trained all steps from 1 on, each at least once."""

    @property
    def unharmed(self) -> bool:
        """Whether it lost nothing, and was charged nothing."""
        return self.chained and not (self.lost or self.failures or self.interruptions)


@contextmanager
def two_workers(
    site: Cluster, client: Client, folder: Path, *, trials: int, step_s: float
) -> Iterator[tuple[Study, DaemonSite, DaemonSite]]:
    """A study whose trials all train on a first worker, and a second worker with as many slots."""
    going, staying = (
        DaemonSite(
            f"{name}-{folder.name}", site.addresses, folder / name / "home", folder / "store", slots=trials
        )
        for name in ("going", "staying")
    )
    with daemons([going]):
        going.until_connected()
        spec = chain_spec(
            folder / "journal",
            step_s=step_s,
            policy={"kind": "run_all"},
            max_trials=trials,
            max_steps=STEPS,
        )
        study = client.create_study(f"drained-{folder.name}".replace("_", "-"), spec)
        with daemons([staying]):
            staying.until_connected()
            until(lambda: all_report(folder / "journal", trials), "a report of each trial")
            yield study, going, staying
            study.stop()


def all_report(folder: Path, trials: int, *, attempt: int = 1) -> bool:
    """Whether each trial has received an answer in this attempt."""
    return len([lease for lease in journals(folder) if lease.endswith(f".{attempt}")]) >= trials


def moved(study: Study, folder: Path) -> list[Moved]:
    """What happened to the trials, by their journals and by the scheduler."""
    written = journals(folder)
    found = []
    for info in sorted(study.trials(), key=lambda trial: trial.number):
        by_attempt = {
            int(lease.rpartition(".")[2]): [line["step"] for line in lines]
            for lease, lines in written.items()
            if int(lease.split(".")[1]) == info.number
        }
        before, after = set(by_attempt.get(1, ())), set(by_attempt.get(2, ()))
        found.append(
            Moved(
                trial=info.number,
                steps_before=max(before, default=0),
                went_on_from=min(after, default=0) - 1,
                to=info.worker or "",
                lost=len(before & after),
                failures=info.failures,
                interruptions=info.interruptions,
                chained=sorted(before | after) == list(range(1, max(before | after, default=0) + 1)),
            )
        )
    return found


def run(folder: Path, say: Callable[[str], None], *, times: int = 4, step_s: float = 2.0) -> dict[str, Any]:
    """Drain workers with `trials` trials each: by SIGTERM, and together with other faults."""
    with cluster(folder, worker=False, lease_ttl_s=LEASE_TTL_S) as site, connect(site) as client:
        plain = by_sigterm(site, client, folder / "sigterm", say, trials=times, step_s=step_s)
        beside = {
            name: in_company(site, client, folder / name, say, company, trials=times)
            for name, company in COMPANY.items()
        }
    return {**plain, "beside": beside, "holds": plain["holds"] and all(beside.values())}


def kill_scheduler(site: Cluster, client: Client, going: DaemonSite) -> None:
    """Kill the scheduler right after the drain."""
    client.drain(going.name, reason="reboot")
    site.kill(site.child("scheduler"))


def no_scheduler(site: Cluster, client: Client, going: DaemonSite) -> None:
    """Send SIGTERM while there is no scheduler."""
    site.kill(site.child("scheduler"))
    going.leave()


def kill_daemon(site: Cluster, client: Client, going: DaemonSite) -> None:
    """Kill the daemon right after the drain."""
    client.drain(going.name, reason="reboot")
    going.kill()


def terminate_twice(site: Cluster, client: Client, going: DaemonSite) -> None:
    """Send a second SIGTERM after the first one, without waiting."""
    going.leave()
    time.sleep(0.1)  # two pending signals would be one
    going.leave()


COMPANY = {
    "scheduler-killed": kill_scheduler,
    "no-scheduler": no_scheduler,
    "daemon-killed": kill_daemon,
    "two-sigterms": terminate_twice,
}


def in_company(
    site: Cluster,
    client: Client,
    folder: Path,
    say: Callable[[str], None],
    company: Callable[[Cluster, Client, DaemonSite], None],
    *,
    trials: int,
) -> bool:
    """Return whether all trials continue elsewhere, and none is charged a failure."""
    with two_workers(site, client, folder, trials=trials, step_s=0.3) as (study, going, staying):
        company(site, client, going)
        until(lambda: going.pid is None, "the daemon's end", 90)
        until(lambda: all_report(folder / "journal", trials, attempt=2), "each trial goes on", 90)
        found = moved(study, folder / "journal")
    lost, charged = sum(one.lost for one in found), sum(one.failures for one in found)
    say(
        f"{folder.name}: all {trials} go on on {staying.name}; {lost} steps trained twice, {charged} failures"
    )
    return not charged and all(one.to == staying.name for one in found)


def by_sigterm(
    site: Cluster, client: Client, folder: Path, say: Callable[[str], None], *, trials: int, step_s: float
) -> dict[str, Any]:
    """Drain a worker by SIGTERM, and see what happens to its trials."""
    with two_workers(site, client, folder, trials=trials, step_s=step_s) as (study, going, staying):
        began = time.monotonic()
        going.leave()
        until(lambda: going.pid is None, "the daemon's end", 60)
        left_s = time.monotonic() - began
        until(lambda: all_report(folder / "journal", trials, attempt=2), "each trial goes on", 60)
        goes_on_s = time.monotonic() - began
        found = moved(study, folder / "journal")
    for one in found:
        say(
            f"trial {one.trial}: {one.steps_before} steps on {going.name}, goes on from step {one.went_on_from} on "
            f"{one.to}; {one.lost} steps lost, {one.failures} failures, {one.interruptions} interruptions"
        )
    say(f"{step_s:g} s a step; the worker has left after {left_s:.1f} s, all go on after {goes_on_s:.1f} s")
    return {
        "trials": [{name: getattr(one, name) for name in Moved.__slots__} for one in found],
        "step_s": step_s,
        "left_after_s": round(left_s, 2),
        "all_go_on_after_s": round(goes_on_s, 2),
        "holds": all(one.to == staying.name and one.unharmed for one in found),
    }


if __name__ == "__main__":
    result = run(Path(tempfile.mkdtemp(prefix="hr-drain-")), print)
    print(json.dumps(result, indent=2))
    sys.exit(0 if result["holds"] else 1)
