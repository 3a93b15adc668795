"""What the quota of a project leaves: the most slots that its studies may hold at once, however many are free.

    left = the quota − what its other studies hold − what this one holds − what is left to those that go first

A quota is a limit on top of shares, not a share: it reserves nothing for the project. Within a project its room
goes to the study with the first claim, as slots do (`shares`). No study overtakes: if the first one needs more
than is left, those behind it wait, so that a gang gets its turn. The quota is counted in thousandths of slots,
with GPUs and CPU slots alike. Ephemeral slots belong to a large job and are not counted, as in fair shares.
"""

from collections.abc import Iterable

from msgspec import Struct

from headrace.spec.resources import WHOLE
from headrace_services.scheduler.core.placement.shares import Claim, Share, Totals, claim
from headrace_services.scheduler.core.study_status import Usage


class Quota(Struct, frozen=True, kw_only=True):
    """The quota of a study's project, as a cycle reads it."""

    slots: int
    others_milli: int
    """What the project's other studies hold, in thousandths of slots."""
    is_taken: bool = False
    """Whether another cycle is placing for the project at this moment: then what is left cannot be known here."""


class Left(Struct, frozen=True, kw_only=True):
    """What a quota leaves to a study."""

    milli: int
    to_others: tuple[int, ...] = ()
    """The studies that go first and fit: their part is left to them."""


def held_milli(usage: Usage) -> int:
    """What a study holds that counts towards the quota."""
    return usage.gpu_milli + WHOLE * usage.cpu_slots


def left(
    quota: Quota, usage: Usage, ahead: Iterable[Share], before: Claim, totals: Totals, now_s: float
) -> Left:
    """Return what a study with this usage may still get, once those `ahead` of the claim are left theirs.

    `ahead` are the studies of the project that the quota holds off.
    """
    if quota.is_taken:
        return Left(milli=0)
    milli = max(0, WHOLE * quota.slots - quota.others_milli - held_milli(usage))
    waiting = {share.study_id: share for share in ahead if share.held_off and share.wanted > 0}
    named: dict[int, None] = {}
    while waiting:
        first = min(waiting.values(), key=lambda share: claim(share, totals, now_s))
        if claim(first, totals, now_s) >= before:
            break
        if first.held_off > milli:
            milli = 0
            break
        milli -= first.held_off
        named[first.study_id] = None
        rest = first.with_more(first.held_off, now_s)
        waiting[first.study_id] = rest
        if rest.wanted <= 0:
            del waiting[first.study_id]
    return Left(milli=milli, to_others=tuple(named))
