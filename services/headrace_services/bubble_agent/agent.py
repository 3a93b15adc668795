"""The agent without its RPC interface: finds stages, processes what they write, and writes orders. The loop calls
it.

    scan    which stages exist; twice a second
    look    what has ended: windows, steps, alarms; then writes the orders and renews their lease; ten times a second
    glance  what is happening: hints for open windows, and whether trials close their gates; every few milliseconds

Nothing here waits. A stage's file that cannot be read is reported once and left alone.
"""

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from headrace_services.bubble_agent.hints import Progress, advanced, hinted
from headrace_services.bubble_agent.job import Job, Key, PeerSaid, problem
from headrace_services.bubble_agent.link import Link
from headrace_services.bubble_agent.stage import Orders, Stage, TrialSeen
from headrace_services.bubble_agent.watchman import Watchman
from headrace_torch.bubble_shm import AT, Alarm, StageFile, StageFileError
from headrace_torch.bubble_shm.stage_file import SUFFIX

log = logging.getLogger(__name__)

LEASE_NS: Final = 1_000_000_000
"""How long after the agent's death gates may still open; they close by themselves in any case."""
GUARD_NS: Final = 50_000
"""How long before a window's end a quantum must be finished."""
PEER_NS: Final = 3_000_000_000
"""A peer agent that has been silent for this long is forgotten."""

Place = tuple[str, int, int]
"""The job, the replica and the stage."""


@dataclass(slots=True, kw_only=True)
class Beside:
    """A stage on this machine and what is around it."""

    link: Link
    watchman: Watchman
    stage: Stage
    orders: Orders = field(default_factory=lambda: Orders(generation=-1))
    trial: TrialSeen | None = None
    harvested: int = 0
    problem: str = ""
    told: set[str] = field(default_factory=set)
    alarm: int = 0


class Agent:
    """Everything that one agent knows."""

    def __init__(self, folder: Path, *, clock: Callable[[], int] = time.monotonic_ns) -> None:
        """No stage is known before the first `scan`."""
        self.folder = folder
        self.jobs: dict[str, Job] = {}
        self.stages: dict[Place, Beside] = {}
        self._clock = clock
        self._files: dict[Path, Link] = {}
        self._told: dict[Path, str] = {}
        self._afar: dict[Place, Progress] = {}

    def scan(self) -> None:
        """Finds new stages, and forgets those that are gone."""
        for path, link in list(self._files.items()):
            if link.file.replaced() or not link.file.alive() or link.says("detached"):
                self._leave(path)
        for path in sorted(self.folder.glob(f"*{SUFFIX}")):
            if path not in self._files and not path.name.startswith("."):
                self._open(path)
        for link in self._files.values():
            self._register(link)

    def look(self) -> None:
        """Processes what has ended, and writes orders."""
        now = self._clock()
        for job in self.jobs.values():
            job.expire(now - PEER_NS)
        for beside in self.stages.values():
            before, beside.trial = beside.trial, beside.watchman.trial()
            beside.harvested += _harvested(before, beside.trial, beside.link.says("trial_harvested"))
        for (name, *key), beside in self.stages.items():
            self._fold(self.jobs[name], (key[0], key[1]), beside)
        for (name, *_), beside in self.stages.items():
            self._order(self.jobs[name], beside, now)

    def glance(self) -> bool:
        """Gives hints and watches trials; returns whether anything must be watched closely."""
        close = False
        for place, beside in self.stages.items():
            if beside.trial is None:
                continue
            close = True
            beside.watchman.watch(self._clock())
            self._hint(place, beside)
        return close

    def progress(self) -> Iterator[tuple[Place, Stage, Progress]]:
        """Returns the progress of the stages, for the agents of other machines."""
        for place, beside in self.stages.items():
            yield place, beside.stage, beside.link.progress()

    def busy(self, name: str) -> bool:
        """Whether a trial runs beside a stage of the job on this machine."""
        return any(one.trial is not None for (job, *_), one in self.stages.items() if job == name)

    def hear(
        self, agent: str, place: Place, said: PeerSaid, *, step: int, forwards: int, backwards: int
    ) -> None:
        """Receives the progress that another machine's agent reports. It ignores jobs that do not run here, and
        stages that are not next to one here."""
        job = self.jobs.get(place[0])
        if job is None:
            return
        now = self._clock()
        job.peer(agent, replace(said, at=now))
        name, replica, stage = place
        if (name, replica, stage - 1) not in self.stages and (name, replica, stage + 1) not in self.stages:
            return
        self._afar[place] = advanced(
            self._afar.get(place), step=step, forwards=forwards, backwards=backwards, at=now
        )

    def close(self) -> None:
        """Closes every gate and releases the stages."""
        for path in list(self._files):
            self._files[path].forbid()
            self._leave(path)

    def _open(self, path: Path) -> None:
        try:
            file = StageFile.open(path)
        except StageFileError as error:
            if self._told.get(path) != str(error):
                self._told[path] = str(error)
                log.warning("%s", error)
            return
        if not file.alive() or file.words[AT["detached"]]:
            file.close()
            return
        link = Link(file)
        link.write("guard", GUARD_NS)
        self._files[path] = link

    def _register(self, link: Link) -> None:
        registration = link.registration()
        if registration is None:
            return
        place = (registration.job, *registration.key)
        beside = self.stages.get(place)
        if beside is not None and beside.link is link:
            beside.stage.registration = registration
            return
        job = self.jobs.setdefault(registration.job, Job(registration.job))
        self.stages[place] = Beside(link=link, watchman=Watchman(link), stage=job.register(registration))
        log.info(
            "job %s: stage %d of %d, replica %d, process %d",
            *(registration.job, registration.stage, registration.stages),
            *(registration.replica, registration.pid),
        )

    def _leave(self, path: Path) -> None:
        link = self._files.pop(path)
        for place, beside in list(self.stages.items()):
            if beside.link is not link:
                continue
            beside.watchman.close()
            del self.stages[place]
            name, *key = place
            self.jobs[name].leave((key[0], key[1]))
            if not self.jobs[name].stages:
                del self.jobs[name]
                self._afar = {at: one for at, one in self._afar.items() if at[0] != name}
            log.info("job %s: stage %d of replica %d has gone", name, key[1], key[0])
        link.close()

    def _fold(self, job: Job, key: Key, beside: Beside) -> None:
        link, stage = beside.link, beside.stage
        windows, steps = link.drain(busy_since=self._busy_since(job))
        for verdict in job.observe(key, windows, steps):
            log.info("job %s: level %d: %s", job.name, verdict.level, verdict.why)
        alarm = link.says("alarm")
        if alarm & ~beside.alarm:
            beside.alarm = alarm
            what = "ran out of memory" if alarm & Alarm.MEMORY else "failed in an instruction"
            job.controller.alarm(f"stage {key[1]} {what}")
            log.warning("job %s: %s", job.name, job.controller.why)
        if steps:
            stage.memory = link.memory()

    def _busy_since(self, job: Job) -> int | None:
        """Since when trials have been running beside the job, here or elsewhere."""
        here = [one.trial.since for (name, *_), one in self.stages.items() if name == job.name and one.trial]
        if not here:
            return 0 if job.busy_elsewhere else None
        return min(here)

    def _order(self, job: Job, beside: Beside, now: int) -> None:
        stage, trial = beside.stage, beside.trial
        orders = stage.orders(job.level, quantum=trial.usual if trial else 0)
        orders = replace(orders, permitted=not job.disagreement() and job.level.windows > 0)
        memory = stage.free_bytes()
        beside.link.order(
            orders, lease=now + LEASE_NS, share=job.control_share, members=job.level.members, memory=memory
        )
        beside.orders = orders
        said = problem(stage, trial, orders)
        kind = said.partition(":")[0]
        if trial is not None and kind and kind not in beside.told:
            beside.told.add(kind)
            log.info("job %s, stage %d: %s", job.name, stage.registration.stage, said)
        beside.problem = said

    def _hint(self, place: Place, beside: Beside) -> None:
        waiting = beside.link.waiting()
        if waiting is None:
            return
        name, replica, stage = place
        near = (name, replica, stage + waiting.neighbour)
        other = self.stages.get(near)
        progress = other.link.progress() if other is not None else self._afar.get(near)
        began = None if progress is None else hinted(waiting, progress)
        if began is None:
            return
        end = beside.stage.hint(waiting.step, waiting.slot, began)
        if end is None or waiting.slot not in beside.orders.table:
            return
        if self.jobs[name].level.windows < 1:
            end = min(end, waiting.began + beside.orders.table[waiting.slot])
        if beside.link.says("hint_epoch") != waiting.epoch:
            beside.link.hint(waiting.epoch, end)


def _harvested(before: TrialSeen | None, now: TrialSeen | None, word: int) -> int:
    """Work done between two looks at a stage, in nanoseconds; `word` survives the trial."""
    if now is None:
        return 0 if before is None else max(0, word - before.harvested)
    if before is None or (before.pid, before.started) != (now.pid, now.started):
        return now.harvested
    return max(0, now.harvested - before.harvested)
