"""A simulated 1F1B pipeline with arbitrary pass times: the closed form and the predictor are tested on it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

Pass = Literal["F", "B"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """One wait of a stage before a pass.

    Attributes:
        stage: which stage.
        slot: the place of the pass in the stage's step.
        began, ended: in the unit of the passes' times.
        hinted: when the neighbour started the pass that ends this wait; None if there is no such neighbour.
    """

    stage: int
    slot: int
    began: float
    ended: float
    hinted: float | None

    @property
    def length(self) -> float:
        """How long the stage waited."""
        return self.ended - self.began


def order(*, stage: int, stages: int, micro_batches: int) -> list[tuple[Pass, int]]:
    """Returns the passes of a stage: warm-up, then alternating forward and backward passes, then the cool-down."""
    ahead = min(stages - 1 - stage, micro_batches)
    passes: list[tuple[Pass, int]] = [("F", k) for k in range(ahead)]
    for k in range(micro_batches - ahead):
        passes += [("F", ahead + k), ("B", k)]
    return passes + [("B", k) for k in range(micro_batches - ahead, micro_batches)]


def step(
    *, stages: int, micro_batches: int, time: Callable[[int, Pass, int], float], begin: Sequence[float]
) -> tuple[list[Wait], list[float]]:
    """Runs one step.

    Args:
        stages: number of stages s.
        micro_batches: number of micro-batches m.
        time: returns the time of a micro-batch's pass on a stage.
        begin: when each stage is free for the step, (s,).

    Returns:
        Every wait in the order of stages and passes, and when each stage has finished its last pass.
    """
    queues = [iter(order(stage=i, stages=stages, micro_batches=micro_batches)) for i in range(stages)]
    began: dict[tuple[int, Pass, int], float] = {}
    ended: dict[tuple[int, Pass, int], float] = {}
    free, slots, waits = list(begin), [0] * stages, list[list[Wait]]([[] for _ in range(stages)])
    heads = [next(queue, None) for queue in queues]
    while any(head is not None for head in heads):
        for i, head in enumerate(heads):
            while head is not None and all(need in ended for need in _needs(i, head, stages)):
                needs = list(_needs(i, head, stages))
                ready = max([free[i], *(ended[need] for need in needs)])
                far = [began[need] for need in needs if need[0] != i]
                waits[i].append(
                    Wait(stage=i, slot=slots[i], began=free[i], ended=ready, hinted=far[0] if far else None)
                )
                began[i, *head] = ready
                ended[i, *head] = free[i] = ready + time(i, *head)
                slots[i] += 1
                head = next(queues[i], None)
            heads[i] = head
    return [wait for of_stage in waits for wait in of_stage], free


def _needs(stage: int, head: tuple[Pass, int], stages: int) -> Iterator[tuple[int, Pass, int]]:
    kind, k = head
    if kind == "F" and stage > 0:
        yield stage - 1, "F", k
    if kind == "B":
        yield (stage + 1, "B", k) if stage < stages - 1 else (stage, "F", k)
