"""What the agent knows of one primary: its stages on this machine, and one controller for all of them.

Every stage of a pipeline steps at the same pace, so the steps of the lowest stage here represent the job. All
ranks draw the same control steps, from the step's number.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from headrace_services.bubble_agent.budget import DISABLED, LEVELS, Level
from headrace_services.bubble_agent.controller import Controller, Verdict
from headrace_services.bubble_agent.stage import (
    Orders,
    Registration,
    Stage,
    StepSeen,
    TrialSeen,
    WindowSeen,
)

Key = tuple[int, int]
"""The replica and the stage."""
NANO: Final = 1e-9
MILLI: Final = 1e-6
MOST_PEERS: Final = 1024
LITTLE: Final = 0.05
"""A stage that waits for a smaller share of its steps has few bubbles to offer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSaid:
    """What another machine's agent says about the same job.

    Attributes:
        stages, micro_batches: the job's.
        level, control_share: its controller's.
        busy: whether a trial runs beside one of its stages.
        at: when it said so.
    """

    stages: int
    micro_batches: int
    level: int = 0
    control_share: float = 0.0
    busy: bool = False
    at: int = 0


class Job:
    """One primary."""

    def __init__(self, name: str) -> None:
        """No stage is known yet."""
        self.name = name
        self.controller = Controller()
        self.stages: dict[Key, Stage] = {}
        self.peers: dict[str, PeerSaid] = {}
        self._pids: dict[Key, int] = {}

    def register(self, registration: Registration) -> Stage:
        """Adds a stage, or its successor after a restart of the primary, which is learned again."""
        if self._pids.get(registration.key, registration.pid) != registration.pid:
            self.controller = Controller()
        self._pids[registration.key] = registration.pid
        stage = Stage(registration)
        self.stages[registration.key] = stage
        return stage

    def leave(self, key: Key) -> None:
        """Forgets a stage whose rank is gone."""
        self.stages.pop(key, None)

    def peer(self, agent: str, said: PeerSaid) -> None:
        """Receives what another machine's agent says about the same job. Names beyond `MOST_PEERS` are ignored."""
        if agent in self.peers or len(self.peers) < MOST_PEERS:
            self.peers[agent] = said

    def expire(self, before: int) -> None:
        """Forgets agents that have been silent since then."""
        self.peers = {agent: said for agent, said in self.peers.items() if said.at >= before}

    @property
    def level_index(self) -> int:
        """The highest level, which has the smallest budget, of all agents of this job: they share one primary."""
        return max([self.controller.index, *(min(said.level, DISABLED) for said in self.peers.values())])

    @property
    def level(self) -> Level:
        """What trials get now."""
        return LEVELS[self.level_index]

    @property
    def control_share(self) -> float:
        """The largest share among all agents: its control steps contain those of a smaller one."""
        return max([self.controller.control_share, *(said.control_share for said in self.peers.values())])

    @property
    def busy_elsewhere(self) -> bool:
        """Whether a trial runs beside a stage on another machine."""
        return any(said.busy for said in self.peers.values())

    def disagreement(self) -> str:
        """Returns what the ranks disagree about; empty if they agree."""
        said = {one.key: (one.stages, one.micro_batches) for one in self._registrations()}
        told = {f"stage {stage} of replica {replica}": v for (replica, stage), v in said.items()}
        told |= {f"agent {name}": (one.stages, one.micro_batches) for name, one in self.peers.items()}
        if len(set(told.values())) < 2:
            return ""
        parts = [f"{who} says {s} stages and {m} micro-batches" for who, (s, m) in sorted(told.items())]
        return "the ranks disagree: " + "; ".join(parts)

    def observe(self, key: Key, windows: Sequence[WindowSeen], steps: Sequence[StepSeen]) -> list[Verdict]:
        """Receives what ended on a stage; returns the controller's verdicts."""
        self.stages[key].observe(windows, steps)
        if key != min(self.stages):
            return []
        told = [
            self.controller.observe(seconds=(step.ended - step.began) * NANO, control=step.control)
            for step in steps
            if step.counts and step.ended > step.began
        ]
        return [verdict for verdict in told if verdict is not None]

    def _registrations(self) -> list[Registration]:
        return [stage.registration for stage in self.stages.values()]


def problem(stage: Stage, trial: TrialSeen | None, orders: Orders) -> str:
    """Returns what prevents trials from working beside a stage, in words for people; empty if nothing does."""
    share, predictor = stage.waiting_share(), stage.predictor
    known = [length for slot in range(stage.slots) if (length := predictor.length(slot)) is not None]
    if not known:
        return "its windows are being learnt"
    if share < LITTLE:
        return f"it waits for {share:.1%} of its steps, which is little: fewer micro-batches or more stages give more"
    if not orders.permitted:
        return ""
    if trial is not None and trial.usual > max(known):
        return (
            f"the trial needs {trial.usual * MILLI:.1f} ms from one point to the next, and the longest window has "
            f"{max(known) * MILLI:.1f} ms: put more points into its step"
        )
    if not orders.table:
        return f"no window is long enough: the longest has {max(known) * MILLI:.2f} ms"
    return ""
