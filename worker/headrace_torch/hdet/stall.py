"""Whether the ranks of a job stand still, and why: judged from what each rank says about itself, without a clock.

A rank that is computing moves: its main thread is elsewhere in the program at the next check. A rank that waits
for others stands still, at a sync point or inside a collective. A rank that stands elsewhere may be working: it
waits for a disk, or for processes that prepare its data. So living ranks are judged only if each of them waits for
others, at places that differ. Ranks that all stand at one place after the same number of steps do the same work,
as when a model is compiled, and are left alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

State = Literal["trains", "waits", "ended"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulse:
    """What a rank says about itself.

    Attributes:
        beat: grows while the process runs at all.
        moves: grows while its main thread is at another place at each check.
        state: whether it trains, waits for the others at a sync point, or has left.
        step: the optimizer steps taken.
        sync: the sync point that it waits at, or last waited at.
        place: where its main thread is, as `file:line in function`.
        blocked: whether that is inside a collective or a backward pass, or the device has unfinished work.
    """

    beat: int
    moves: int
    state: State
    step: int
    sync: int
    place: str
    blocked: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A rank's last pulse, and how long it has been silent and unmoved, in seconds."""

    pulse: Pulse | None
    silent_s: float
    still_s: float


def stalled(seen: Mapping[int, Seen], *, bound_s: float) -> str | None:
    """Says which ranks keep the others waiting, and the usual cause; `None` as long as any of them moves."""
    silent = [
        rank
        for rank, one in seen.items()
        if one.silent_s >= bound_s and (one.pulse is None or one.pulse.state != "ended")
    ]
    others = [one for rank, one in seen.items() if rank not in silent]
    if any(one.still_s < bound_s for one in others):
        return None
    present = {rank: one.pulse for rank, one in seen.items() if one.pulse is not None and rank not in silent}
    ended = [rank for rank, pulse in present.items() if pulse.state == "ended"]
    here = {rank: pulse for rank, pulse in present.items() if pulse.state != "ended"}
    places = {(pulse.state, pulse.step, pulse.sync, pulse.place) for pulse in here.values()}
    if silent:
        cause = f"{_ranks(silent)} does not answer: the process is frozen or killed, or its machine is down"
    elif not all(pulse.blocked or pulse.state == "waits" for pulse in here.values()):
        return None
    elif ended and here:
        cause = (
            f"{_ranks(ended)} left the job while others train: look for its own error; without one it had fewer "
            "batches, so give every rank the same number (drop_last, or a sampler that pads)"
        )
    elif len(places) > 1 and not ended:
        cause = _apart(here)
    else:
        return None
    told = "; ".join(
        f"rank {rank} {_told(one.pulse, silent=rank in silent)}" for rank, one in sorted(seen.items())
    )
    return (
        f"no rank has moved for {bound_s:.0f} s. {cause[0].upper()}{cause[1:]}. Where a rank only takes longer, raise "
        f"timeout_s. {told}"
    )


def _apart(here: Mapping[int, Pulse]) -> str:
    """Why living ranks stand at different places."""
    least, most = (choose(pulse.step for pulse in here.values()) for choose in (min, max))
    if least == most:
        return (
            "ranks are at different places after the same number of steps: usually one has left its loop with fewer "
            "batches, or a collective is under a condition that only some ranks meet"
        )
    late = [rank for rank, pulse in here.items() if pulse.step == least]
    ahead = [rank for rank, pulse in here.items() if pulse.step == most]
    if len(ahead) < len(late):
        return (
            f"{_ranks(ahead)} counted more steps than the others: usually step() is called twice for one optimizer "
            "step, or the others skip it after one; call it once after each optimizer step on every rank"
        )
    return (
        f"{_ranks(late)} counted fewer steps than the others: usually it had fewer batches, or skipped a step that the "
        "others took; give every rank the same number of batches, and call step() after each optimizer step on "
        "every rank"
    )


def _told(pulse: Pulse | None, *, silent: bool) -> str:
    if pulse is None:
        return "has never reported"
    after = f"after step {pulse.step}"
    if silent:
        return f"last reported {after}"
    match pulse.state:
        case "waits":
            return f"waits at sync point {pulse.sync} {after}"
        case "ended":
            return f"left {after}"
        case "trains":
            return f"is {after} at {pulse.place}"


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, sorted(ranks)))}"
