"""Stores that go away for a while, and checkpoints whose bytes change: nobody is charged, and every study ends.

    away    the store's folder is moved away while trials save there and start from it. In its place there is nothing,
            an empty folder (a mount point without its file system), or another store. A worker is killed meanwhile, so
            that one starts while the store is away. After some seconds the folder is back.
    damage  all workers are killed. Each file of the checkpoints from which trials continue is changed: a range of bytes
            is flipped, the file is cut, or it is deleted. In every second round it is repaired while trials wait.

Each round has a study of its own that runs the chain program: a wrong resume shows in the values.
"""

import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import ledger
from cluster_site import Cluster, chain_spec, cluster, connect, until
from daemon_site import DaemonSite, daemons, orphans_come_here, reap
from trial_journals import check_chain, check_journals

from headrace import Client
from headrace.checkpoints.marker import MARKER

LEASE_TTL_S = 4.0
TRIALS = 6
PLACES = ("nothing", "an empty folder", "another store")
HARMS = ("flipped", "cut", "deleted")
HEALS_WITHIN_S = 12.0
LONGEST_S = 400.0
Say = Callable[[str], None]


class Round:
    """One study and its fault."""

    def __init__(
        self, site: Cluster, client: Client, folder: Path, number: int, found: Sequence[DaemonSite]
    ) -> None:
        self.site, self.client, self.found = site, client, found
        self.name, self.number = f"round-{number}", number
        self.store = folder / "store"
        self.journal = folder / f"journal-{number}"
        self.rng = random.Random(number)

    def begin(self, *, kept: int) -> None:
        """Start the study, which keeps `kept` checkpoints per trial, and wait until its trials have saved."""
        self.kept = kept
        spec = chain_spec(
            self.journal,
            step_s=0.1,
            objective={"metric": "flat", "goal": "minimize"},
            max_trials=TRIALS,
            checkpoints_kept=kept,
        )
        self.study = self.client.create_study(self.name, spec)
        until(lambda: len(self.checkpoints()) >= 2, "checkpoints")
        if kept > 1:
            until(lambda: len(self.checkpoints()) > len(self.newest()), "a trial with two of them")

    def checkpoints(self) -> list[Path]:
        """The study's complete checkpoints, of the trials that have not ended."""
        live = {trial.number for trial in self.study.trials() if trial.state.value != "terminated"}
        found = self.store.glob(f"studies/{self.name}-*/trials/*/*/manifest.json")
        return [path.parent for path in found if int(path.parent.parent.name) in live]

    def newest(self) -> list[Path]:
        """The last of these checkpoints of each trial; earlier ones are not damaged."""
        return list({path.parent: path for path in sorted(self.checkpoints())}.values())

    def kill(self, daemon: DaemonSite) -> None:
        """`kill -9` a worker and restart it at once."""
        reap(daemon.kill())
        daemon.start()

    def away(self) -> dict[str, Any]:
        """Move the store away for a while."""
        place = PLACES[self.number % len(PLACES)]
        aside = self.store.with_name("away")
        self.store.rename(aside)
        if place != "nothing":
            self.store.mkdir()
        if place == "another store":
            (self.store / MARKER).write_text("another-store-0000\n")
        before = _content(self.store)
        self.kill(self.rng.choice(self.found))
        _pass(self.rng.uniform(3.0, 9.0))
        written = sorted(_content(self.store) - before)
        shutil.rmtree(self.store, ignore_errors=True)
        aside.rename(self.store)
        return {"fault": f"away: {place}", "written_elsewhere": written}

    def damage(self) -> dict[str, Any]:
        """Damage all files of the checkpoints."""
        for daemon in self.found:
            reap(daemon.kill())
        harmed: Counter[str] = Counter()
        sound: dict[Path, bytes] = {}
        for checkpoint in self.newest() if self.kept > 1 else self.checkpoints():
            files = [path for path in checkpoint.rglob("*") if path.is_file()]
            for path in self.rng.sample(files, self.rng.randint(1, len(files))):
                sound[path] = path.read_bytes()
                harm = self.rng.choice(HARMS)
                harmed[f"{path.name} {harm}"] += 1
                _harm(path, harm, self.rng)
        for daemon in self.found:
            daemon.start()
        heals = self.number % 2 == 0
        if heals:
            with suppress(AssertionError):  # none of these trials may have any work left
                until(lambda: any("tried again" in one.detail for one in self.study.trials()), "a try", 60)
            _pass(self.rng.uniform(1.0, HEALS_WITHIN_S))
            for path, content in sound.items():
                if path.parent.is_dir():
                    path.write_bytes(content)
        return {"fault": f"damaged, {'repaired' if heals else 'for good'}", "harmed": dict(harmed)}

    def judged(self, record: dict[str, Any]) -> dict[str, Any]:
        """Wait for the study's end, and return what happened to it."""
        began = time.monotonic()
        until(lambda: self.study.status().state.ended, f"the end of {self.name}", LONGEST_S)
        tables = ledger.read(self.site.database_url, self.name)
        said = [
            event.detail["detail"]
            for event in tables.events
            if event.kind == "trial_moved" and event.detail["action"] == "interrupt"
        ]
        for trial in tables.trials:
            check_chain(trial.number, [one for one in self.study.reports() if one.trial == trial.number])
        check_journals(list(self.study.reports()), self.journal, fenced=True)
        return record | {
            "state": self.study.status().state.value,
            "ended_after_s": round(time.monotonic() - began, 1),
            "failures_charged": sum(trial.failures for trial in tables.trials),
            "trials_failed": [trial.number for trial in tables.trials if trial.reason == "FAILED"],
            "interruptions": len(said),
            "store_away": sum("store file:" in why for why in said),
            "unreadable": sum("it is tried again" in why and "store file:" not in why for why in said),
            "from_an_earlier_one": sum("so it resumes from the one of step" in why for why in said),
            "anew": sum("so it starts over" in why for why in said),
            "stale_accepted": len([*ledger.stale_events(tables), *ledger.stale_rows(tables)]),
        }


def _content(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


def _harm(path: Path, harm: str, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    begin = rng.randrange(len(content))
    end = rng.randint(begin + 1, len(content))
    if harm == "deleted":
        path.unlink()
    elif harm == "cut":
        path.write_bytes(content[:begin])
    else:
        content[begin:end] = bytes(byte ^ 0xFF for byte in content[begin:end])
        path.write_bytes(content)


def _pass(seconds: float) -> None:
    """Let a fault last: its duration is the fault."""
    end = time.monotonic() + seconds
    until(lambda: time.monotonic() >= end, "the time")


def holds(record: dict[str, Any]) -> bool:
    """Whether a round ended as it must."""
    if record["fault"].startswith("away") and (record["written_elsewhere"] or record["anew"]):
        return False
    if record["fault"].endswith("repaired") and record["anew"]:
        return False
    charged = record["failures_charged"] or record["trials_failed"] or record["stale_accepted"]
    return record["state"] == "completed" and not charged


def run(folder: Path, say: Say, *, times: int = 20, fault: str = "away", workers: int = 2) -> dict[str, Any]:
    """Run `times` rounds of one kind of fault."""
    rounds: list[dict[str, Any]] = []
    with (
        orphans_come_here(),
        cluster(folder, worker=False, lease_ttl_s=LEASE_TTL_S) as site,
        connect(site) as client,
        daemons(
            [
                DaemonSite(f"w{n}", site.addresses, folder / f"w{n}" / "home", folder / "store", slots=2)
                for n in range(workers)
            ]
        ) as found,
    ):
        for number in range(times):
            one = Round(site, client, folder, number, found)
            one.begin(kept=2 if number % 4 == 1 else 1)
            rounds.append(one.judged(getattr(one, fault)()))
            say(f"round {number + 1}/{times}: {rounds[-1]}")
    sums = ("failures_charged", "interruptions", "store_away", "unreadable", "from_an_earlier_one", "anew")
    return {
        "rounds": len(rounds),
        **{name: sum(one[name] for one in rounds) for name in sums},
        "faults": dict(Counter(one["fault"] for one in rounds)),
        "broken": [one for one in rounds if not holds(one)],
        "holds": all(map(holds, rounds)),
    }
