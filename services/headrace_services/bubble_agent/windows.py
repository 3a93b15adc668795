"""The idle windows of the 1F1B schedule, in closed form.

Stage i of s runs m micro-batches; a forward pass takes tF, a backward pass tB, messages take no time. For m ≥ s the
step of a stage has these windows:

    fill        i·tF             before its first forward pass
    turn        (s−1−i)·tB       between its last warm-up forward pass and its first backward pass
    cool-down   s−1−i times tF   before each of its last s−1−i backward passes
    drain       i·tB             after its last backward pass; it joins the next step's fill

They sum to (s−1)(tF+tB) on every stage, a share of (s−1)/(m+s−1) of the step (Narayanan et al. 2021, "Efficient
Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", section 2.2.1).
"""

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What a stage waits for."""

    FILL = "fill"
    TURN = "turn"
    COOL_DOWN = "cool-down"
    DRAIN = "drain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One wait of a stage.

    Attributes:
        kind: what the stage waits for.
        micro_batch: whose pass follows; for a drain, the last micro-batch.
        length: in the unit of the passes' times.
    """

    kind: Kind
    micro_batch: int
    length: float


def windows(*, stage: int, stages: int, micro_batches: int, forward: float, backward: float) -> list[Window]:
    """Returns the windows of a stage in the order of its step; those of length 0 are left out.

    Raises:
        ValueError: the stage is not one of the stages, or there are fewer micro-batches than stages.
    """
    if not 0 <= stage < stages:
        raise ValueError(f"stage {stage} is not one of {stages} stages: count from 0")
    if micro_batches < stages:
        raise ValueError(
            f"{micro_batches} micro-batches do not fill {stages} stages: the formula needs m ≥ s"
        )
    below = stages - 1 - stage
    found = [
        Window(kind=Kind.FILL, micro_batch=0, length=stage * forward),
        Window(kind=Kind.TURN, micro_batch=0, length=below * backward),
        *(
            Window(kind=Kind.COOL_DOWN, micro_batch=micro_batches - below + k, length=forward)
            for k in range(below)
        ),
        Window(kind=Kind.DRAIN, micro_batch=micro_batches - 1, length=stage * backward),
    ]
    return [window for window in found if window.length > 0]


def bubble_fraction(*, stages: int, micro_batches: int) -> float:
    """Returns the share of a step that each stage waits, between 0 and 1."""
    return (stages - 1) / (micro_batches + stages - 1)


def live_micro_batches(*, stage: int, stages: int, micro_batches: int) -> int:
    """Returns how many activations a stage of DeepSpeed holds at once: stage 0 holds most and has the least free
    memory."""
    return max(2, min(stages - stage, micro_batches))
