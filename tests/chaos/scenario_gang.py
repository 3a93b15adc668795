"""Gangs that are paused at every rung, moved between two workers and killed, over and over.

After each step every rank records a digest of all that it has drawn and of its weights. A study without pauses and
kills records the same. Line by line, whichever attempt wrote it, they must be identical to the bit.

A kill is `kill -9` of one rank, of a gang's leader or of a worker, at a random moment of a gang that has
progressed since the last one. What a gang loses by it is charged to nobody: no trial may fail.
"""

import json
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from cluster_site import PROGRAMS, Cluster, cluster, until
from daemon_site import DaemonSite, daemons, orphans_come_here, reap, running

from headrace import Client
from headrace.client.model import TrialState
from headrace.client.sync import Study
from headrace.errors import StudyEndedError
from headrace.spec import StudySpec

RUNG, STEPS, STEP_S = 4, 16, 0.1
"""A pause requested at a step takes effect before the next rung."""
LEASE_TTL_S = 6.0
LATEST_S = 0.3
MOST_BLOWS = 3


def run(
    folder: Path, say: Any, *, times: int = 20, trials: int = 2, kind: str = "fsdp", ranks: int = 4
) -> dict[str, Any]:
    """The long form."""
    with (
        orphans_come_here(),
        cluster(folder, worker=False, lease_ttl_s=LEASE_TTL_S) as site,
        daemons(workers(site, folder, ranks)) as found,
    ):
        rng = random.Random(7)
        return hurt(site, found, folder, times=times, trials=trials, kind=kind, ranks=ranks, rng=rng, say=say)


def workers(site: Cluster, folder: Path, ranks: int) -> list[DaemonSite]:
    """Two workers, each with room for one gang."""
    return [
        DaemonSite(f"w{n}", site.addresses, folder / f"w{n}" / "home", folder / "store", slots=ranks)
        for n in range(2)
    ]


def hurt(
    site: Cluster,
    found: Sequence[DaemonSite],
    folder: Path,
    *,
    times: int,
    trials: int,
    kind: str,
    ranks: int,
    rng: random.Random,
    say: Any,
    longest_s: float = 2400.0,
) -> dict[str, Any]:
    """Run the study undisturbed, and then paused, moved and killed. Returns the record."""
    client = Client(site.address, timeout_s=60, connect_timeout_s=60)
    options = (folder, kind, ranks, trials)
    _study(client, "straight", *options, {"kind": "run_all"}).wait(longest_s)
    say("the undisturbed study is done")
    # With so few trials this rule stops none; its rungs are where the trials of a paused study stop.
    every = {"kind": "rung_median", "min_results": 100, "interval": RUNG}
    study = _study(client, "hurt", *options, every)
    turns = Turns(study, Killer(found, folder / "hurt", rng), times, say)
    deadline = time.monotonic() + longest_s
    while not study.status().state.ended:
        with suppress(StudyEndedError):  # it may end between two checks
            turns.go_on()
        if time.monotonic() > deadline:
            raise AssertionError(f"the study does not come to its end: {turns.told()}")
        signal.sigtimedwait((), 0.1)
    record = _judge(study, turns, folder)
    say(str(record))
    return record


class Turns:
    """Pauses the whole study at every rung, and resumes it with the trials on each other's workers.

    A turn: all trials have progressed → the study is paused, and they stop at their next rung → one worker stops,
    the study resumes, and the first trial takes the other worker → the worker comes back, and the next trial takes
    it.
    """

    def __init__(self, study: Study, killer: "Killer", times: int, say: Any) -> None:
        self.killer = killer
        self.count = 0
        self.workers: dict[int, list[str]] = {}
        """Where each trial ran, turn by turn."""
        self._study = study
        self._times = times
        self._say = say
        self._phase = "running"
        self._away: DaemonSite | None = None
        self._before: Counter[int] = Counter()

    def told(self) -> str:
        """The current state, for messages."""
        trials = [
            (one.number, one.state.value, one.step, one.worker, one.waits_for) for one in self._study.trials()
        ]
        return f"{self._phase}, turn {self.count}, trials {trials}"

    def go_on(self) -> None:
        """Check once, and do what is due."""
        trials = self._study.trials()
        for trial in trials:
            homes = self.workers.setdefault(trial.number, [])
            if trial.worker and homes[-1:] != [trial.worker]:
                homes.append(trial.worker)
        live = [trial for trial in trials if trial.state is not TrialState.TERMINATED]
        busy = [trial for trial in live if trial.worker]
        if self._phase == "placing":
            if busy and self._away is not None:
                self._away.start()
                self._phase, self._away = "running", None
            return
        saved = {trial.number: trial.step for trial in trials}
        leave_alone = self._phase == "pausing" and self.count % 2 == 0  # so that some stop at their rung
        if not leave_alone and sum(self.killer.count.values()) < self._times and self.killer.strike(saved):
            self._say(f"{sum(self.killer.count.values())}/{self._times} kills: {dict(self.killer.count)}")
        steps = self.killer.lines_by_trial()
        if (
            self._phase == "running"
            and live
            and all(steps[one.number] > self._before[one.number] for one in live)
        ):
            self._study.pause()
            self._phase = "pausing"
        elif self._phase == "pausing" and not live:
            self._study.resume()  # so that it completes
        elif self._phase == "pausing" and not busy:
            self._away = self.killer.workers[self.count % 2]
            self.count += 1
            self._away.leave()
            self._away.stop()
            self._before = steps
            self._study.resume()
            self._phase = "placing"


class Killer:
    """Kills part of a gang that has just progressed, and brings workers back."""

    def __init__(self, found: Sequence[DaemonSite], journals: Path, rng: random.Random) -> None:
        self.count: Counter[str] = Counter()
        self.workers = found
        self._journals = journals
        self._rng = rng
        self._seen: dict[str, int] = {}
        self._blows: Counter[tuple[int, int]] = Counter()
        """The kills, by trial and by the step that it had saved."""

    def lines_by_trial(self) -> Counter[int]:
        """How many steps the first rank of each trial has recorded."""
        found = ((name.split("-"), len(lines)) for name, lines in _lines(self._journals).items())
        return Counter({int(trial): count for (trial, rank), count in found if rank == "0"})

    def strike(self, saved: Mapping[int, int]) -> bool:
        """Kill, if a trial has progressed since the last kill. Returns whether something was killed.

        `saved` has each trial's last step with a checkpoint. No trial is killed a fourth time before it saves
        again: a trial that is killed that often without progress fails, by design.
        """
        counts = {name: len(lines) for name, lines in _lines(self._journals).items()}
        further = sorted(name for name, count in counts.items() if count > self._seen.get(name, 0))
        self._seen = counts
        further = [name for name in further if self._may_be_killed(int(name.partition("-")[0]), saved)]
        if not further:
            return False
        signal.sigtimedwait((), self._rng.uniform(0.0, LATEST_S))  # in a step, in a save, or while it waits
        number = self._rng.choice(further).partition("-")[0]
        what = self._rng.choice(["rank", "rank", "rank", "leader", "worker"])
        for daemon in self.workers:
            if victims := _gang(daemon, number, leader=what == "leader"):
                self.count[what] += 1
                self._blows[int(number), saved.get(int(number), 0)] += 1
                if what == "worker":
                    _kill_and_restart(daemon)
                else:
                    with suppress(psutil.NoSuchProcess):
                        self._rng.choice(victims).kill()
                return True
        return False

    def _may_be_killed(self, number: int, saved: Mapping[int, int]) -> bool:
        return self._blows[number, saved.get(number, 0)] < MOST_BLOWS


def _kill_and_restart(daemon: DaemonSite) -> None:
    orphans = daemon.kill()
    until(lambda: not any(running(orphan) for orphan in orphans), "the end of what a killed worker started")
    reap(orphans)
    daemon.start()


def _gang(daemon: DaemonSite, number: str, *, leader: bool) -> list[psutil.Process]:
    """The ranks of a trial, or their leader."""
    found = []
    for process in daemon.family()[1:]:
        with suppress(psutil.Error):
            ours = re.search(rf"/{number}(, leads| rank)", " ".join(process.cmdline()))
            if ours and (ours[1] == ", leads") == leader:
                found.append(process)
    return found


def _study(
    client: Client,
    name: str,
    folder: Path,
    kind: str,
    ranks: int,
    trials: int,
    policy: dict[str, Any],
) -> Study:
    (folder / name).mkdir(parents=True)
    env = {
        "GANG_JOURNAL": str(folder / name),
        "GANG_KIND": kind,
        "GANG_STEP_S": str(STEP_S),
        "OMP_NUM_THREADS": "1",
    }
    spec = {
        "objective": {"metric": "loss", "goal": "minimize"},
        "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
        "sampler": {"kind": "random"},
        "enqueued": [{"x": 0.1 * (n + 1)} for n in range(trials)],
        "policy": policy,
        "resources": {"cpus": ranks, "processes": "per_slot"},
        "template": {"callable": "gang:train", "working_dir": str(PROGRAMS), "env": env},
        "max_trials": trials,
        "max_steps": STEPS,
        "seed": 5,
        "max_retries": 0,
    }
    return client.create_study(name, StudySpec.model_validate(spec))


def _lines(journals: Path) -> dict[str, list[dict[str, Any]]]:
    """What each rank of each trial recorded. A line cut off by a kill is left out."""
    return {
        path.stem: [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
        for path in sorted(journals.glob("*.jsonl"))
    }


def _judge(study: Study, turns: Turns, folder: Path) -> dict[str, Any]:
    """Compare what was recorded, line by line."""
    straight, hurt = _lines(folder / "straight"), _lines(folder / "hurt")
    whole = {name: {line["step"]: line for line in lines} for name, lines in straight.items()}
    compared, different, again = 0, [], 0
    for name, lines in hurt.items():
        again += len(lines) - len({line["step"] for line in lines})
        for line in lines:
            compared += 1
            expected = whole[name][line["step"]]
            if any(line[what] != expected[what] for what in ("draws", "weights")):
                different.append(f"{name} step {line['step']}")
    trials = study.trials()
    messages = [event.message for one in trials for event in study.trial(one.number).explain().events]
    last = {name: lines[-1]["draws"] for name, lines in hurt.items()}
    record = {
        "kills": dict(turns.killer.count),
        "trials": len(trials),
        "ranks_that_drew_alike": len(last) - len(set(last.values())),
        "failures_charged": sum(trial.failures for trial in trials),
        "interruptions": sum(trial.interruptions for trial in trials),
        "pauses_at_rungs": sum("running → paused (pause)" in message for message in messages),
        "moves_between_workers": sum(len(homes) - 1 for homes in turns.workers.values()),
        "rank_steps_compared": compared,
        "rank_steps_trained_again": again,
        "finished": sum(trial.step == STEPS for trial in trials),
        "different": different[:10],
    }
    holds = not different and compared > 0 and record["finished"] == record["trials"]
    holds = holds and not record["failures_charged"] and not record["ranks_that_drew_alike"]
    return {**record, "holds": holds and record["moves_between_workers"] > 0}
