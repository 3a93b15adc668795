"""What the agent knows of one primary: its stages on this machine, and one controller for all of them.

Every stage of a pipeline steps at the same pace, so the steps of the lowest stage here stand for the job. All ranks
draw the same control steps, from the step's number.
"""

from collections.abc import Sequence
from typing import Final

from headrace_services.bubble_agent.controller import Controller, Verdict
from headrace_services.bubble_agent.stage import Registration, Stage, StepSeen, WindowSeen

Key = tuple[int, int]
"""Replica and stage."""
NANO: Final = 1e-9


class Job:
    """One primary."""

    def __init__(self, name: str) -> None:
        """Knows no stage yet."""
        self.name = name
        self.controller = Controller()
        self.stages: dict[Key, Stage] = {}
        self._elsewhere: dict[str, tuple[int, int]] = {}

    def register(self, registration: Registration) -> Stage:
        """Takes a stage, or its successor after a restart of the primary: that one is learnt anew."""
        known = self.stages.get(registration.key)
        if known is not None and known.registration.pid != registration.pid:
            self.controller = Controller()
        stage = Stage(registration)
        self.stages[registration.key] = stage
        return stage

    def leave(self, key: Key) -> None:
        """Forgets a stage whose rank has gone."""
        self.stages.pop(key, None)

    def peer(self, agent: str, *, stages: int, micro_batches: int) -> None:
        """Takes what another machine's agent says of the same job."""
        self._elsewhere[agent] = (stages, micro_batches)

    def disagreement(self) -> str:
        """Returns in what the ranks disagree; empty where they agree."""
        said = {one.key: (one.stages, one.micro_batches) for one in self._registrations()}
        told = {f"stage {stage} of replica {replica}": v for (replica, stage), v in said.items()}
        told |= {f"agent {name}": value for name, value in self._elsewhere.items()}
        if len(set(told.values())) < 2:
            return ""
        parts = [f"{who} says {s} stages and {m} micro-batches" for who, (s, m) in sorted(told.items())]
        return "the ranks disagree: " + "; ".join(parts)

    def observe(self, key: Key, windows: Sequence[WindowSeen], steps: Sequence[StepSeen]) -> list[Verdict]:
        """Takes what ended on a stage; returns the controller's verdicts."""
        self.stages[key].observe(windows, steps)
        if key != min(self.stages):
            return []
        told = [
            self.controller.observe(seconds=(step.ended - step.began) * NANO, control=step.control)
            for step in steps
            if step.ended > step.began
        ]
        return [verdict for verdict in told if verdict is not None]

    def _registrations(self) -> list[Registration]:
        return [stage.registration for stage in self.stages.values()]
