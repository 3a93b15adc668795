"""Workers' homes and socket folders are deleted and copied while they run, and daemons are started twice. The daemons
and trial processes are real.

    vanished-home    the folder of the socket, or the whole home, is deleted while trials run
    copied-home      a daemon is started on a copy of the home, under the same name or another one
    daemon-twice     a second daemon is started on the home itself

In each case the study ends, no trial fails and none is charged. A copy and a second daemon are refused, and neither
the first one's trials nor its socket are affected. Half of the rounds kill the first daemon afterwards: it comes back
at once, which shows that its lock and its identity are still its own.
"""

import json
import random
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import ledger
from cluster_site import Cluster, chain_spec, cluster, connect, until
from daemon_site import DaemonSite, daemons, orphans_come_here, reap, running

from headrace.client import Study
from headrace.client.model import StudyState

WORKERS = 2
RUNGS = (4, 12, 36)
STEP_S = 0.1
BACK_WITHIN_S = 60.0
LEASE_TTL_S = 20.0


class Vandal:
    """Strikes one worker after the other and records the result."""

    def __init__(self, site: Cluster, found: list[DaemonSite], folder: Path, rng: random.Random) -> None:
        self._site, self._found, self._folder, self._rng = site, found, folder, rng
        self.ways: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.slowest_s = 0.0

    def vanish(self, turn: int) -> None:
        """Delete a worker's socket folder, or its home."""
        daemon = self._found[turn % WORKERS]
        way = ("socket", "home")[turn // WORKERS % 2]
        self.ways[way] += 1
        folder = _socket_folder(daemon)
        began = time.monotonic()
        if way == "socket":
            shutil.rmtree(folder)
            until(lambda: (folder / "rt").exists(), "the socket again", BACK_WITHIN_S)
        else:
            while daemon.home.exists():
                shutil.rmtree(daemon.home, ignore_errors=True)  # running processes keep writing
                if (daemon.home / "lock").exists():
                    break  # it has already been created again
            until(
                lambda: all((daemon.home / name).exists() for name in ("lock", "outbox.sqlite")), "the home"
            )
        self.slowest_s = max(self.slowest_s, time.monotonic() - began)
        if daemon.pid is None:
            self.wrong.append(f"{daemon.name} ended when its {way} was deleted")

    def copy(self, turn: int) -> None:
        """Start a daemon on a copy of a worker's home."""
        daemon = self._found[turn % WORKERS]
        way = ("same name", "another name")[turn // WORKERS % 2]
        self.ways[way] += 1
        copy = self._folder / f"copy-{turn}"
        with suppress(shutil.Error):  # files that come and go while it is copied
            shutil.copytree(daemon.home, copy)
        (copy / "daemon.log").unlink(missing_ok=True)
        name = daemon.name if way == "same name" else f"copy-{turn}"
        other = DaemonSite(name, daemon.addresses, copy, daemon.store, slots=1)
        words = "of which this one's is a copy" if way == "same name" else "home is a copy of that of worker"
        with self._untouched(daemon):
            other.start()
            until(lambda: words in (copy / "daemon.log").read_text(), "its refusal", BACK_WITHIN_S)
            time.sleep(1.0)  # time in which it could do what it must not
            if "session open" in (copy / "daemon.log").read_text():
                self.wrong.append(f"{name} on {copy} was taken")
        reap(other.kill())
        self._restart(daemon)

    def twice(self, turn: int) -> None:
        """Start a second daemon on a worker's home."""
        daemon = self._found[turn % WORKERS]
        self.ways["same home"] += 1
        second = DaemonSite(daemon.name, daemon.addresses, daemon.home, daemon.store, slots=1)
        with self._untouched(daemon):
            second.start()
            until(lambda: second.pid is None, "its end", BACK_WITHIN_S)
        second.stop()
        if "another worker already runs with --home" not in (daemon.home / "daemon.log").read_text():
            self.wrong.append(f"a second {daemon.name} did not say why it ended")
        self._restart(daemon)

    @contextmanager
    def _untouched(self, daemon: DaemonSite) -> Iterator[None]:
        """Check that nobody ends the daemon or deletes its socket. The ledger shows that its trials end only by
        themselves."""
        folder, pid = _socket_folder(daemon), daemon.pid
        yield
        if daemon.pid != pid or not (folder / "rt").exists():
            self.wrong.append(f"{daemon.name} lost its socket {folder}, or ended")

    def _restart(self, daemon: DaemonSite) -> None:
        """Kill the first daemon, every other time. The scheduler must accept it again at once."""
        if self._rng.random() < 0.5:
            return
        self.ways["restarts"] += 1
        started = daemon.kill()
        (daemon.home / "daemon.log").unlink(missing_ok=True)
        began = time.monotonic()
        daemon.start()
        daemon.until_connected()
        self.slowest_s = max(self.slowest_s, time.monotonic() - began)
        until(lambda: not any(map(running, started)), "the orphans' end", 30)
        reap(started)


def _socket_folder(daemon: DaemonSite) -> Path:
    """The folder of a worker's socket, as its home says."""

    def noted() -> str | None:
        with suppress(OSError, ValueError):
            return str(json.loads((daemon.home / "runtime").read_text())["folder"])
        return None

    return Path(until(noted, "the note in the home", 60))


def _progress(study: Study, client_of: Any) -> Study:
    """Return the study, or a new one if it has ended."""
    return client_of() if study.status().state is not StudyState.ACTIVE else study


def hurt(
    site: Cluster, folder: Path, kind: str, *, times: int, rng: random.Random, say: Any
) -> dict[str, Any]:
    """Strike `times` times while studies run, and compare what is stored."""
    found = [
        DaemonSite(f"w{n}", site.addresses, folder / f"w{n}", folder / "store", slots=2)
        for n in range(WORKERS)
    ]
    vandal = Vandal(site, found, folder, rng)
    strike = {"vanished-home": vandal.vanish, "copied-home": vandal.copy, "daemon-twice": vandal.twice}[kind]
    names: list[str] = []
    with daemons(found), connect(site) as client:

        def another() -> Study:
            names.append(f"{kind}-{len(names)}")
            spec = chain_spec(
                folder / f"journal-{len(names)}",
                step_s=STEP_S,
                max_trials=12,
                max_steps=RUNGS[-1],
                policy={"kind": "asha", "eta": 2, "rungs": list(RUNGS), "variant": "promotion"},
            )
            return client.create_study(names[-1], spec)

        for daemon in found:
            daemon.until_connected()
        study = another()
        for turn in range(times):
            spent = study.status().steps_spent
            until(partial(_further, study, spent), "progress", 180)
            study = _progress(study, another)
            strike(turn)
            say(f"{turn + 1}/{times}: {dict(vandal.ways)}, {len(vandal.wrong)} wrong, load {_load()}")
        for name in names:
            last = client.study(name)
            until(lambda one=last: one.status().state is not StudyState.ACTIVE, f"the end of {name}", 600)
    return _judged(site, names, vandal, kind)


def _further(study: Study, spent: int) -> bool:
    now = study.status()
    return now.steps_spent > spent + 4 or now.state is not StudyState.ACTIVE


def _load() -> str:
    return Path("/proc/loadavg").read_text().split()[0]


def _judged(site: Cluster, names: list[str], vandal: Vandal, kind: str) -> dict[str, Any]:
    tables = {name: ledger.read(site.database_url, name) for name in names}
    trials = [trial for one in tables.values() for trial in one.trials]
    charged = sum(trial.failures for trial in trials)
    failed = [trial.number for trial in trials if trial.reason == "FAILED"]
    interrupted = sum(trial.interruptions for trial in trials)
    stale = [
        text
        for one in tables.values()
        for text in (*ledger.stale_events(one), *ledger.stale_rows(one), *ledger.stale_checkpoints(one))
    ]
    unasked = interrupted if kind != "vanished-home" and not vandal.ways["restarts"] else 0
    return {
        "ways": dict(vandal.ways),
        "studies": len(names),
        "trials": len(trials),
        "reports": sum(len(one.reports) for one in tables.values()),
        "interruptions": interrupted,
        "failures_charged": charged,
        "trials_failed": failed,
        "stale_accepted": len(stale),
        "back_after_s_max": round(vandal.slowest_s, 2),
        "wrong": vandal.wrong,
        "holds": not (charged or failed or stale or vandal.wrong or unasked),
    }


def run(folder: Path, say: Any, *, kind: str, times: int = 20) -> dict[str, Any]:
    """The long form."""
    with orphans_come_here(), cluster(folder, worker=False, lease_ttl_s=LEASE_TTL_S) as site:
        return hurt(site, folder, kind, times=times, rng=random.Random(7), say=say)
