"""The complete answer of a planner, `plan.json`, as a page shows it. Users send that file, so it may hold anything."""

from collections.abc import Iterator
from typing import Final

import msgspec

from headrace.spec import TrialPlan

PLAN: Final = "plan.json"
PARTS: Final = {
    "compute_s": "computing",
    "communication_s": "communication within a stage",
    "transfer_s": "transfers between stages",
    "recompute_s": "recomputing activations",
    "bubble_s": "waiting for other stages (bubble)",
    "tail_s": "gradients and optimizer",
}


class Memory(msgspec.Struct, frozen=True):
    """The bytes of a device of a stage."""

    static_bytes: float
    activation_bytes: float
    rebuild_bytes: float
    total_bytes: float


class Stage(msgspec.Struct, frozen=True):
    """A stage of the pipeline. Times are per micro-batch."""

    chunks: tuple[tuple[int, ...], ...]
    recomputed: tuple[int, ...]
    forward_s: float
    backward_s: float
    tail_s: float
    in_flight: int
    memory: Memory

    @property
    def layers(self) -> str:
        """Its layers, such as `0-8`, or `0-3, 8-11` for two chunks."""
        return ", ".join(
            f"{chunk[0]}-{chunk[-1]}" if len(chunk) > 1 else str(chunk[0]) for chunk in self.chunks if chunk
        )


class Record(msgspec.Struct, frozen=True):
    """What the page shows of the file."""

    capacity_bytes: float
    iteration_s: float
    mfu: float
    stages: tuple[Stage, ...]
    breakdown: dict[str, float]

    def parts(self) -> Iterator[tuple[str, float, float]]:
        """What an iteration's time goes to on the slowest stage: name, seconds, share of the iteration."""
        for key, name in PARTS.items():
            seconds = self.breakdown.get(key, 0.0)
            yield name, seconds, seconds / self.iteration_s if self.iteration_s > 0 else 0.0


def record_of(plan: TrialPlan | None) -> Record | None:
    """What a plan's file holds; None without one, or if it is not a planner's."""
    text = None if plan is None else plan.files.get(PLAN)
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=Record)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None
