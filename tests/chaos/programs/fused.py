"""A bundle whose group computes with integers: each member's curve depends only on its own seed, x and step.

`FUSED_RAISES` names a trial whose step 3 raises an error of its own, `FUSED_KILLS` one whose step 3 kills the
process, and `FUSED_DIVERGES` one whose score is NaN from step 3 on. `FUSED_MEMBER_MIB` is the memory that each
member holds, `FUSED_LIMIT_MIB` what the process may use beyond its size at the start.
"""

import os
import resource
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace import trial

PRIME = 1_000_003
HELD_MIB = int(os.environ.get("FUSED_MEMBER_MIB", "0"))


class BrokenMemberError(ValueError):
    """An error of one member, which `member` names."""

    def __init__(self, member: int) -> None:
        super().__init__("its data cannot be read")
        self.member = member


class Group:
    """The interface that a bundle needs of a fused group."""

    def __init__(self) -> None:
        self._rows: dict[int, dict[str, Any]] = {}
        self._next = 0

    @property
    def ids(self) -> list[int]:
        return list(self._rows)

    def add(
        self, members: Sequence[Mapping[str, Any]], states: Sequence[Mapping[str, Any]] | None = None
    ) -> list[int]:
        ids = list(range(self._next, self._next + len(members)))
        self._next += len(members)
        for place, (number, one) in enumerate(zip(ids, members, strict=True)):
            row = {**one, "w": one["seed"] % PRIME, "m": 0, "seen": 0, "held": bytearray(HELD_MIB << 20)}
            if states is not None:
                row |= {"w": states[place]["model"]["w"], "m": states[place]["optimizer"]["m"]}
                row["seen"] = states[place]["seen"]
            self._rows[number] = row
        return ids

    def drop(self, members: Sequence[int]) -> None:
        for number in members:
            del self._rows[number]

    def member_state(self, member: int) -> dict[str, Any]:
        row = self._rows[member]
        return {"model": {"w": row["w"]}, "optimizer": {"m": row["m"]}, "seen": row["seen"]}

    def seen(self) -> dict[int, int]:
        return {number: row["seen"] for number, row in self._rows.items()}

    def step(self) -> list[float]:
        for number, row in self._rows.items():
            if row["seen"] == 2 and str(row["number"]) == os.environ.get("FUSED_KILLS"):
                os.kill(os.getpid(), signal.SIGKILL)
            if row["seen"] == 2 and str(row["number"]) == os.environ.get("FUSED_RAISES"):
                raise BrokenMemberError(number)
        for row in self._rows.values():
            row["m"] = (3 * row["m"] + row["w"] + row["seen"]) % PRIME
            row["w"] = (7 * row["w"] + int(1000 * row["x"]) * row["m"]) % PRIME
            row["seen"] += 1
        return [self._score(row) for row in self._rows.values()]

    @staticmethod
    def _score(row: Mapping[str, Any]) -> float:
        diverged = row["seen"] > 2 and str(row["number"]) == os.environ.get("FUSED_DIVERGES")
        return float("nan") if diverged else row["w"] / PRIME


def train(bundle: trial.Bundle) -> None:
    """One step per turn."""
    if limit_mib := int(os.environ.get("FUSED_LIMIT_MIB", "0")):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + (limit_mib << 20)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    group = Group()
    bundle.track(
        group=group,
        member=lambda one: {"seed": one.seed, "x": one.params["x"], "number": one.number},
    )
    for _ in bundle.steps():
        time.sleep(float(os.environ.get("FUSED_STEP_S", "0.01")))
        bundle.report(score=group.step())
