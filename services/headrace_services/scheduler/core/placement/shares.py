"""Which study is next if several need the same slots: priority, then dominant-resource fair shares over time.

A study's use is summed in GPU seconds and CPU-slot seconds (`Usage`, on the study's row, so that it survives
restarts). Its dominant share is the larger of the two, each divided by what the cluster has (Ghodsi et al., NSDI
2011); divided by the study's weight it is the study's virtual time, in seconds of the whole cluster. The study
with the lowest goes first. Slots held now count as used for one quantum ahead, as in stride scheduling, so that
studies which start together share from the start, not only by turns.

A study that was idle earns no credit: when it returns, its virtual time is raised to the lowest among the other
studies that were active (start-time fair queueing). So no study can save up and then take everything.
"""

import math
from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from headrace.spec.names import DEFAULT_PROJECT
from headrace_services.scheduler.core.placement.values import Request, Reservation
from headrace_services.scheduler.core.records import Study
from headrace_services.scheduler.core.study_status import Reserved, Usage

Claim = tuple[float, float, int]
"""The sort key of studies: the negative priority, the virtual time one quantum ahead, the id. The lowest goes
first."""
BEHIND_ALL: Claim = (math.inf, math.inf, 0)
QUANTUM_S = 30.0
"""How far ahead held slots count, if a study's rung time is not known."""


class Totals(Struct, frozen=True, kw_only=True):
    """The cluster's totals, in thousandths of GPUs and in CPU slots."""

    gpu_milli: int
    cpu_slots: int


class Share(Struct, frozen=True, kw_only=True):
    """A study among others that compete for slots."""

    study_id: int
    name: str
    weight: float
    priority: int
    usage: Usage
    wants: Request | None = None
    """What its next trial takes, if one waits for slots."""
    wanted: int = 0
    """How many such trials it could start."""
    project: str = DEFAULT_PROJECT
    held_off: int = 0
    """Thousandths of slots that its next trial takes, while the quota of its project holds it off (`quotas`)."""
    on_gpu: bool = True
    """Whether these slots are GPUs."""
    reserved: Reserved | None = None
    quantum_s: float = QUANTUM_S
    looked_s: float = 0.0
    """When it last looked for slots and found too few."""

    @classmethod
    def of(cls, study: Study) -> "Share":
        """Return a study as others read it."""
        standing, spec = study.standing, study.spec
        return cls(
            study_id=study.id,
            name=study.name,
            weight=spec.weight,
            priority=spec.priority,
            usage=standing.usage,
            wants=Request.wanted(spec.resources, standing),
            wanted=standing.wants_count,
            project=study.project,
            held_off=standing.held_off,
            on_gpu=spec.resources.on_gpu,
            reserved=standing.reserved,
            quantum_s=standing.quantum_s,
            looked_s=standing.looked_s,
        )

    @property
    def idle(self) -> bool:
        """Whether it neither holds slots nor waits for any, nor for its project's quota."""
        waits = self.wants is not None or self.held_off > 0
        return not waits and not self.usage.gpu_milli and not self.usage.cpu_slots

    def like(self, other: "Share") -> bool:
        """Whether whatever the other can use now, this one can use too: neither has a reservation."""
        alone = self.reserved is None and other.reserved is None
        return alone and self.priority == other.priority and self.wants == other.wants

    def reservation(self, now_s: float) -> Reservation | None:
        """The study's reservation, as a placer reads it."""
        kept = self.reserved
        if kept is None:
            return None
        return Reservation(
            key=(self.study_id, kept.number),
            worker_id=kept.worker_id,
            slots=kept.slots,
            since_s=kept.since_s,
            priority=self.priority,
            ready_in_s=None if kept.ready_s is None else max(0.0, kept.ready_s - now_s),
            group=self.study_id,
        )

    def holding(self, request: Request, now_s: float) -> "Share":
        """The same after one more grant of the request, now."""
        usage = self.usage.hold(request.gpu, request.size, now_s)
        return replace(self, usage=usage, wanted=self.wanted - 1)

    def with_more(self, milli: int, now_s: float) -> "Share":
        """The same after one more grant of this size, now, for a study that its quota holds off."""
        return replace(self, usage=self.usage.hold(self.on_gpu, milli, now_s), wanted=self.wanted - 1)


def virtual_time_s(share: Share, totals: Totals, now_s: float, *, ahead: bool = False) -> float:
    """Return a study's dominant use divided by its weight. `ahead` counts what it holds for one quantum more."""
    used = share.usage.settled(now_s)
    horizon_s = share.quantum_s if ahead else 0.0
    gpu_s = used.gpu_s + horizon_s * used.gpu_milli / 1000
    cpu_s = used.cpu_s + horizon_s * used.cpu_slots
    dominant = max(
        gpu_s * 1000 / totals.gpu_milli if totals.gpu_milli else 0.0,
        cpu_s / totals.cpu_slots if totals.cpu_slots else 0.0,
    )
    return dominant / share.weight + used.credit_s


def ephemeral_claim(share: Share, now_s: float) -> tuple[int, float, float, int]:
    """Return a study's place among those that need ephemeral slots: by what it holds of these alone, then by what
    it has used. The lowest goes first."""
    usage = share.usage.settled(now_s)
    held, had_s = usage.bubble_slots / share.weight, usage.bubble_s / share.weight
    return (-share.priority, held, had_s, share.study_id)


def claim(share: Share, totals: Totals, now_s: float) -> Claim:
    """Return a study's place among others."""
    return (-share.priority, virtual_time_s(share, totals, now_s, ahead=True), share.study_id)


def least_s(others: Iterable[Share], totals: Totals, now_s: float) -> float | None:
    """Return the lowest virtual time among those that hold slots or wait for some; None if there are none."""
    return min((virtual_time_s(other, totals, now_s) for other in others if not other.idle), default=None)


def joined(share: Share, least_s: float | None, totals: Totals, now_s: float) -> Usage:
    """Return the usage of a study that was idle and needs slots now: raised to the lowest of those that were
    active."""
    lift = 0.0 if least_s is None else max(0.0, least_s - virtual_time_s(share, totals, now_s))
    return replace(share.usage, credit_s=share.usage.credit_s + lift)


def in_order(others: Iterable[Share], totals: Totals, now_s: float) -> list[tuple[Claim, Share]]:
    """Return those that wait for slots, with their claims, in order."""
    claims = [(claim(other, totals, now_s), other) for other in others if other.wants is not None]
    return sorted(claims, key=lambda claimed: claimed[0])
