"""Hints: when a neighbour starts the awaited pass, that predicts the end of a wait better than the history does."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["forward", "backward"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A stage's progress in its step. Times are in nanoseconds of this machine's clock.

    Attributes:
        step: the engine's global step.
        forwards, backwards: passes started in it.
        forward_began, backward_began: when the latest ones started, or when another machine's message arrived.
    """

    step: int
    forwards: int
    forward_began: int
    backwards: int
    backward_began: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """What a stage waits for.

    Attributes:
        epoch: its gate's epoch.
        step, slot: where it waits.
        began: since when it waits, in nanoseconds.
        kind: the kind of pass that ends the wait.
        micro_batch: the micro-batch of that pass.
    """

    epoch: int
    step: int
    slot: int
    began: int
    kind: Kind
    micro_batch: int

    @property
    def neighbour(self) -> int:
        """Which stage runs the awaited pass, as seen from here."""
        return -1 if self.kind == "forward" else 1


def hinted(waiting: Waiting, neighbour: Progress) -> int | None:
    """Returns when the neighbour started the awaited pass; None if it has not, or is already past it."""
    if neighbour.step != waiting.step:
        return None
    forward = waiting.kind == "forward"
    begun = neighbour.forwards if forward else neighbour.backwards
    if begun != waiting.micro_batch + 1:
        return None
    return neighbour.forward_began if forward else neighbour.backward_began


def advanced(before: Progress | None, *, step: int, forwards: int, backwards: int, at: int) -> Progress:
    """Returns the progress after a message from another machine, which counts from its arrival."""
    if before is None or before.step != step:
        return Progress(
            step=step, forwards=forwards, forward_began=at, backwards=backwards, backward_began=at
        )
    return Progress(
        step=step,
        forwards=forwards,
        forward_began=before.forward_began if before.forwards == forwards else at,
        backwards=backwards,
        backward_began=before.backward_began if before.backwards == backwards else at,
    )
