"""Which time counts towards a study's hours (`until.hours`). Only this module decides it.

**Time counts while at least one of the study's trials holds slots, or an ask/tell client holds a trial.**

    nothing runs ──── a trial starts ───→ the hours count
    the hours count ─ the last one leaves → nothing runs

So the hours start with the first start of the first trial. Time in which a study is kept off the cluster does not
count: other studies go first, a quota holds it off, workers are away, it waits for another study, a user paused it
(running trials leave at their next rung, and count until then), or a sampler computes while nothing else runs.

An outage of all schedulers, or of the database, counts as at most `MOST_GAP_S`: nothing can be decided meanwhile,
although trials run on to their next rung. An outage shows as a gap between two cycles. To avoid such gaps in
normal operation, a replica runs a cycle every `COUNT_EVERY_S` for each study whose hours count (`engine.budgets`).

The account is in the study's row and changes under its lock, by the database's clock. So two replicas cannot count
the same second twice, and a crash between two cycles loses nothing, since the next one counts from the last. The
study ends with the first cycle after its hours are used up, at most some seconds late. In simulations and in
process there are no outages, so a gap counts whatever its length.
"""

from math import inf

from msgspec.structs import replace

from headrace_services.scheduler.core.needs import Candidates, Deciding, ask
from headrace_services.scheduler.core.state import CycleState
from headrace_services.scheduler.core.study_status import Progress

COUNT_EVERY_S = 10.0
"""How often a study whose hours count has a cycle, if nothing else causes one."""
MOST_GAP_S = 60.0
"""The most that counts between two cycles."""
NO_OUTAGES = inf
"""The same where there are no outages."""
_ROUNDING_S = 1e-3


def seen(progress: Progress, now_s: float, most_gap_s: float) -> Progress:
    """The account as of now. A clock that was set back counts nothing."""
    if progress.since_s is None:
        return progress
    counts_s = min(max(0.0, now_s - progress.seen_s), most_gap_s)
    return replace(progress, since_s=progress.since_s + (now_s - progress.seen_s) - counts_s, seen_s=now_s)


def turned(progress: Progress, now_s: float, *, runs: bool) -> Progress:
    """The account as of now, once it is known whether anything runs from now on."""
    if runs == (progress.since_s is not None):
        return progress
    if runs:
        return replace(progress, since_s=now_s, seen_s=now_s)
    return replace(progress, spent_s=progress.spent_s + progress.running_s, since_s=None)


def left_s(progress: Progress, hours: float) -> float:
    """How much time is left, as of the last cycle."""
    return max(0.0, 3600 * hours - progress.spent_s - progress.running_s)


def ends_s(progress: Progress, hours: float) -> float | None:
    """When the hours are used up if trials run without a break from now on; None if none runs."""
    return None if progress.since_s is None else progress.since_s + 3600 * hours - progress.spent_s


def are_over(progress: Progress, hours: float) -> bool:
    """Whether no time is left, and something has run."""
    has_run = progress.spent_s + progress.running_s > 0
    return has_run and left_s(progress, hours) <= _ROUNDING_S


def bring_up(state: CycleState, most_gap_s: float) -> Deciding[None]:
    """At the start of a cycle, count up to now and learn whether anything runs."""
    if not _counts(state) or state.study.state.ended:
        return
    state.live_before((yield from ask(Candidates(now_s=state.study.now_s, limit=0))).live)
    progress = state.study.standing.progress
    state.stand(progress=seen(progress, state.study.now_s, most_gap_s))


def settle(state: CycleState) -> None:
    """At the end of a cycle, record whether anything runs from now on."""
    if _counts(state):
        runs = state.live > 0 and not state.study.state.ended
        state.stand(progress=turned(state.study.standing.progress, state.study.now_s, runs=runs))


def _counts(state: CycleState) -> bool:
    until = state.study.spec.until
    return until is not None and until.hours is not None
