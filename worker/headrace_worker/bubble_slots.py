"""Ephemeral slots: the stages of large jobs on this machine, as the bubble agent reports them. No clock, no
socket.

    unknown → offered (its windows and memory are known) → taken back, with a reason → offered again, or forgotten

The agent is asked at intervals (`bubble_watch`); its latest answer counts. An offered slot stays offered while its
stage learns its windows again. It is taken back when its job ends, when the job's controller allows nothing more,
when its trial was told to leave, and when the agent is silent for AWAY_S. A slot keeps its index until it is
forgotten, so a job that starts again soon finds its trials where they were. It is forgotten when its job has been
gone for FORGET_S.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from headrace.v1 import bubble_pb2, worker_pb2

FIRST_INDEX: Final = 10_000
"""Ephemeral slots count from here: no worker has as many others."""
AWAY_S: Final = 10.0
"""An agent that is silent for this long is presumed dead. It closes its gates within a second of its death."""
FORGET_S: Final = 600.0
"""A slot that has been gone for this long, because its job has ended, is no longer reported."""
LEAST_DUTY: Final = 0.01
CPU: Final = "cpu"
"""The device of a stage that computes on a CPU: none."""

Key = tuple[str, int, int]
"""The job, the replica and the stage."""


@dataclass(slots=True)
class _Slot:
    device: worker_pb2.Device
    gate: str
    gone: str = ""
    """Why it was taken back; empty while it is offered."""
    gone_at_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What an answer of the agent changed."""

    offered: bool = False
    """Whether the scheduler must be sent the slots again."""
    taken_back: frozenset[int] = frozenset()


class BubbleSlots:
    """The ephemeral slots of one daemon."""

    def __init__(self) -> None:
        self._slots: dict[Key, _Slot] = {}
        self._owned: frozenset[str] = frozenset()
        self._heard_at: float | None = None
        self._given = 0

    @property
    def devices(self) -> tuple[worker_pb2.Device, ...]:
        """All known slots, in the order of their indices; `gone` says which were taken back."""
        return tuple(slot.device for slot in self._slots.values())

    @property
    def gone(self) -> Mapping[int, str]:
        """Why nothing may be placed on them any more, by index."""
        return {slot.device.index: slot.gone for slot in self._slots.values() if slot.gone}

    @property
    def gates(self) -> Mapping[int, str]:
        """The stages' files, by index."""
        return {slot.device.index: slot.gate for slot in self._slots.values()}

    @property
    def owned(self) -> frozenset[str]:
        """The identifiers of devices that belong to large jobs: for now they are not ordinary slots."""
        return self._owned

    def pace(self, indices: Iterable[int]) -> float:
        """The share of its time that a trial on these slots may expect; 1 on ordinary slots."""
        wanted = set(indices)
        duties = [slot.device.bubbles.duty for slot in self._slots.values() if slot.device.index in wanted]
        return max(LEAST_DUTY, min(duties, default=1.0))

    def why_gone(self, indices: Iterable[int]) -> str:
        """Why one of these slots was taken back; empty if all of them are available."""
        gone = self.gone
        return next((gone[index] for index in indices if index in gone), "")

    def heard(self, jobs: Sequence[bubble_pb2.BubbleJob] | None, now_s: float) -> News:
        """Apply an answer of the agent; None if it gave none."""
        if jobs is None:
            if self._heard_at is None or now_s - self._heard_at < AWAY_S:
                return News()
            return self._take_back(dict.fromkeys(self._slots, "the bubble agent does not answer"), now_s)
        self._heard_at = now_s
        there = dict(_stages(jobs))
        known = {key: _lost(key, there) for key in self._slots}
        news = self._take_back({key: why for key, why in known.items() if why}, now_s)
        self._forget(there, now_s)
        sound = [(key, stage) for key, (job, stage) in there.items() if not _barred(job, stage)]
        new = [key for key, stage in sound if self._offer(key, stage)]
        owned = frozenset(stage.device for _, stage in there.values() if stage.device not in ("", CPU))
        changed, self._owned = owned != self._owned, owned
        return News(offered=bool(new) or changed, taken_back=news.taken_back)

    def _offer(self, key: Key, stage: bubble_pb2.BubbleStage) -> bool:
        """Offer a stage whose windows and memory are known; returns whether that is new."""
        slot = self._slots.get(key)
        if (slot is not None and not slot.gone) or stage.duty <= 0 or stage.free_bytes <= 0:
            return False
        index = slot.device.index if slot is not None else self._next_index()
        on_cpu = stage.device in ("", CPU)
        job, replica, number = key
        device = worker_pb2.Device(
            index=index,
            kind=worker_pb2.DEVICE_KIND_CPU if on_cpu else worker_pb2.DEVICE_KIND_GPU,
            model=CPU if on_cpu else "GPU",
            memory_bytes=stage.free_bytes,
            uuid=f"{CPU}-{job}-{replica}-{number}" if on_cpu else stage.device,
            bubbles=worker_pb2.Bubbles(job=job, stage=number, replica=replica, duty=min(1.0, stage.duty)),
        )
        self._slots[key] = _Slot(device=device, gate=stage.gate)
        return True

    def _next_index(self) -> int:
        """An index that no slot of this daemon has had: leases on a forgotten slot may still be reported."""
        self._given += 1
        return FIRST_INDEX + self._given - 1

    def _forget(self, there: Container[Key], now_s: float) -> None:
        """Forget slots that have been gone for long: a daemon sees many jobs, and its Hello lists every slot."""
        for key, slot in list(self._slots.items()):
            if slot.gone and key not in there and now_s - slot.gone_at_s >= FORGET_S:
                del self._slots[key]

    def _take_back(self, why: Mapping[Key, str], now_s: float) -> News:
        lost = {key: said for key, said in why.items() if not self._slots[key].gone}
        for key, said in lost.items():
            self._slots[key].gone = said
            self._slots[key].gone_at_s = now_s
        return News(taken_back=frozenset(self._slots[key].device.index for key in lost))


def _stages(
    jobs: Iterable[bubble_pb2.BubbleJob],
) -> Iterator[tuple[Key, tuple[bubble_pb2.BubbleJob, bubble_pb2.BubbleStage]]]:
    for job in jobs:
        for stage in job.local_stages:
            yield (job.name, stage.replica, stage.stage), (job, stage)


def _lost(key: Key, there: Mapping[Key, tuple[bubble_pb2.BubbleJob, bubble_pb2.BubbleStage]]) -> str:
    """Why an offered stage must be taken back; empty if it need not be."""
    if key not in there:
        return f"job {key[0]} has ended, or its stage {key[2]} has"
    return _barred(*there[key])


def _barred(job: bubble_pb2.BubbleJob, stage: bubble_pb2.BubbleStage) -> str:
    """Why trials get nothing of a stage that is there; empty if they may use it."""
    if job.disabled:
        return f"job {job.name} no longer offers bubbles: {job.why}"
    if job.disagreement:
        return f"job {job.name} offers no bubbles: {job.disagreement}"
    if stage.trial.evicted:
        return f"a trial beside stage {stage.stage} of job {job.name} did not close its gate"
    return ""
