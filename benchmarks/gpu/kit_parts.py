"""The parts of the kit, most valuable first, and how long each may take."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A program of the kit.

    Attributes:
        name: its name in the record.
        asks: what it finds out.
        program: the tests or the script, below the root.
        options: of a script.
        share: the seconds that it may take in a run of eight minutes.
    """

    name: str
    asks: str
    program: str
    options: tuple[str, ...] = ()
    share: float

    @property
    def is_tests(self) -> bool:
        """Whether pytest runs it."""
        return self.program.startswith("tests/")


PARTS = (
    Part(
        name="numbers",
        asks="fused members equal plain torch",
        program="tests/gpu/test_gpu_numbers.py",
        share=100,
    ),
    Part(
        name="service",
        asks="headrace up finds the card; shares and budgets hold",
        program="tests/gpu/test_gpu_service.py",
        share=90,
    ),
    Part(
        name="sharing",
        asks="plain processes on one card",
        program="benchmarks/gpu/sharing_speed.py",
        options=("--how", "time-sliced", "--how", "mps", "--how", "product"),
        share=90,
    ),
    Part(
        name="fusion",
        asks="N fused members beside N runs one after another",
        program="benchmarks/gpu/fusion_speed.py",
        share=150,
    ),
    Part(
        name="stage",
        asks="a pipeline stage, alone and with a trial beside it",
        program="benchmarks/gpu/stage_player.py",
        options=("--how", "time-sliced", "--how", "mps"),
        share=50,
    ),
)

LEAST_S = 20.0
"""A part that would get less is not started: most of it would be imports."""


def limit_s(parts: Sequence[Part], left_s: float) -> float:
    """How long the first of the remaining parts may take, of the time that is left for all; 0 if too little is left.

    Time that a part does not use is divided among those after it. If there is little, the last parts get none.
    """
    if left_s < LEAST_S:
        return 0.0
    return min(left_s, max(LEAST_S, left_s * parts[0].share / sum(part.share for part in parts)))
