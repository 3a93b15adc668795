"""Pipeline schedules: the order in which a stage runs its passes, what it keeps in flight, and closed forms.

| schedule | one iteration, equal stages | in flight on stage j of s |
|---|---|---|
| GPipe (Huang et al. 2019) | (µ + s − 1)·T | µ |
| 1F1B (Narayanan et al. 2019; SC'21, section 2.2) | (µ + s − 1)·T | min(s − j, µ) |
| interleaved, v chunks (SC'21, section 2.2) | µ·T + (s − 1)·T/v | 2(s − j − 1) + (v − 1)s + 1 chunks |
| zero-bubble H1 (Qi et al. 2023, section 2.2) | µ·T + (s − 1)(T − 2W) + max(s − µ, 0)·W | min(s, µ): kept for W |

T is the time of a stage for one micro-batch, W its part for weight gradients. The zero-bubble form is exact if
weight gradients take no longer than the forward pass or the input gradients, as in every layer of this cost model.
If they took longer, only as much of the second W as the shortest of the three would fit into a bubble.
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple


class Schedule(StrEnum):
    """π of the paper."""

    ONE_F_ONE_B = "1f1b"
    INTERLEAVED = "interleaved"
    ZERO_BUBBLE = "zero-bubble"
    GPIPE = "gpipe"


class Pass(StrEnum):
    """What a stage does with a micro-batch. Zero-bubble schedules split W off B and postpone it."""

    FORWARD = "F"
    BACKWARD = "B"
    WEIGHT = "W"


class Step(NamedTuple):
    """One pass of one micro-batch through one chunk of a stage."""

    kind: Pass
    micro_batch: int
    chunk: int = 0


def in_flight(schedule: Schedule, stages: int, micro_batches: int, chunks: int = 1) -> tuple[int, ...]:
    """Per stage, the most micro-batches (for interleaved: chunks of them) whose activations are alive at once."""
    match schedule:
        case Schedule.GPIPE:
            return (micro_batches,) * stages
        case Schedule.INTERLEAVED if stages > 1:
            most = chunks * micro_batches
            return tuple(min(_warm_up(j, stages, chunks) + 1, most) for j in range(stages))
        case Schedule.ZERO_BUBBLE:
            return (min(stages, micro_batches),) * stages
        case _:
            return tuple(min(stages - j, micro_batches) for j in range(stages))


def fill_share(schedule: Schedule, stages: int, micro_batches: int, chunks: int = 1) -> tuple[float, float]:
    """(α, ω): the pipeline takes Σ(α·T_j − ω·W_j) + (µ − α)·max T_j, which is exact for equal stages."""
    match schedule:
        case Schedule.INTERLEAVED:
            return 1.0 / chunks, 0.0
        case Schedule.ZERO_BUBBLE:
            # With fewer micro-batches than stages there are not enough weight gradients to fill every bubble.
            return 1.0, (2.0 * (stages - 1) - max(stages - micro_batches, 0)) / stages
        case _:
            return 1.0, 0.0


def order(schedule: Schedule, stage: int, stages: int, micro_batches: int, chunks: int = 1) -> list[Step]:
    """The steps of one stage, first to last. Interleaved requires µ to be a multiple of the number of stages."""
    match schedule:
        case Schedule.GPIPE:
            forward = [Step(Pass.FORWARD, i) for i in range(micro_batches)]
            return forward + [Step(Pass.BACKWARD, i) for i in reversed(range(micro_batches))]
        case Schedule.ONE_F_ONE_B:
            return list(_one_f_one_b(stage, stages, micro_batches))
        case Schedule.ZERO_BUBBLE:
            return list(_zero_bubble(stage, stages, micro_batches))
        case Schedule.INTERLEAVED:
            return list(_interleaved(stage, stages, micro_batches, chunks))


def _one_f_one_b(stage: int, stages: int, micro_batches: int) -> Iterator[Step]:
    warm_up = min(stages - stage - 1, micro_batches)
    for i in range(warm_up):
        yield Step(Pass.FORWARD, i)
    for i in range(micro_batches):
        if i + warm_up < micro_batches:
            yield Step(Pass.FORWARD, i + warm_up)
        yield Step(Pass.BACKWARD, i)


def _zero_bubble(stage: int, stages: int, micro_batches: int) -> Iterator[Step]:
    """H1: stage j runs W of micro-batch i after B of i + j, so that its memory stays that of 1F1B."""
    late = min(stage, micro_batches)
    for step in _one_f_one_b(stage, stages, micro_batches):
        yield step
        if step.kind is Pass.BACKWARD and step.micro_batch >= late:
            yield Step(Pass.WEIGHT, step.micro_batch - late)
    for i in range(micro_batches - late, micro_batches):
        yield Step(Pass.WEIGHT, i)


def _warm_up(stage: int, stages: int, chunks: int) -> int:
    return 2 * (stages - stage - 1) + (chunks - 1) * stages


def _interleaved(stage: int, stages: int, micro_batches: int, chunks: int) -> Iterator[Step]:
    """Micro-batches pass in groups of s through chunk 0, then through chunk 1, ... and back in reverse."""
    total = micro_batches * chunks
    warm_up = min(_warm_up(stage, stages, chunks), total)

    def step(kind: Pass, k: int) -> Step:
        round_, within = divmod(k, stages * chunks)
        chunk, position = divmod(within, stages)
        chunk = chunk if kind is Pass.FORWARD else chunks - 1 - chunk
        return Step(kind, round_ * stages + position, chunk)

    for k in range(warm_up):
        yield step(Pass.FORWARD, k)
    for k in range(total):
        if k + warm_up < total:
            yield step(Pass.FORWARD, k + warm_up)
        yield step(Pass.BACKWARD, k)
