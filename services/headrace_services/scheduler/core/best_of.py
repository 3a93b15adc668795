"""The sampler `best_of`: which configuration of another study to try next, and when.

A study with this sampler has `trials` places, for the best sound trials of the other study.

    the other study ──┬── runs: with `eager` its best trial so far may take any place but the last one early
                      │     ├── on an idle slot: any of these places
                      │     └── once the share `eager` of its trials is decided: the first place, idle slot or not
                      ├── has completed: its best trials take the remaining places, in order
                      └── has failed, was stopped or deleted: no more are taken

No place is taken early until a sound trial of the other study has had its full budget. A trial of that study is
*decided* once it has ended, or while it is paused at a rung and continues only if it is promoted.

A configuration that was taken early keeps its place even if others beat it later. So there are never more trials
than places. The last place is reserved for the best trial of the finished study (decision 0091).

The other study is read outside the cycle, and the resulting proposal is submitted as an input (`core.proposals`).
Only the cycle knows whether a slot is idle, so the proposal states that it needs one and is dropped if there is
none. As long as the other study has configurations to propose, a slot that suits its trials is not idle: its
sampler may be computing the next one.
"""

from msgspec import Struct

from headrace.spec import BestOfSampler
from headrace_services.scheduler.core.inputs import ProposalsOver, Proposed
from headrace_services.scheduler.core.lifecycle import StudyState
from headrace_services.scheduler.core.placement import Request
from headrace_services.scheduler.core.records import Params, Proposal, Study

ON_IDLE_SLOT = "a slot was idle"
_ENDED = {"stopped": "was stopped", "failed": "failed"}


class Source(Struct, frozen=True, kw_only=True):
    """The other study, as far as this sampler needs it."""

    id: int
    state: StudyState
    detail: str
    planned: int
    """How many configurations it tries in total."""
    ended: int
    """How many of its trials have ended."""
    decided: int
    """How many have ended, or are paused and continue only if promoted, not counting the baseline."""
    has_full: bool
    """Whether a sound trial other than the baseline has had its full budget."""


class Found(Struct, frozen=True, kw_only=True):
    """A trial of the other study."""

    number: int
    params: Params


class Turn(Struct, frozen=True, kw_only=True):
    """The next configuration may be taken now."""

    early: str = ""
    """Why it may be taken before the other study ends; empty once that study has ended."""

    @property
    def if_idle(self) -> bool:
        """Whether it may only use an idle slot."""
        return self.early == ON_IDLE_SLOT


def turn(study: Study, sampler: BestOfSampler, source: Source) -> Turn | None:
    """Whether the next configuration may be taken now; None if not yet, or never."""
    if source.state is StudyState.COMPLETED:
        return Turn()
    if sampler.eager is None or source.state is not StudyState.ACTIVE or not source.has_full:
        return None
    if study.planned - study.sampled < 2:
        return None  # the last place is reserved for the end
    if not study.sampled and source.decided >= sampler.eager * source.planned > 0:
        return Turn(early=f"{source.decided} of {source.planned} trials are decided")
    on_workers = study.spec.template is not None
    return Turn(early=ON_IDLE_SLOT) if on_workers else None


def next_of_best(
    study: Study,
    sampler: BestOfSampler,
    source: Source | None,
    found: Found | None,
    beside: Request | None = None,
) -> Proposed | ProposalsOver | None:
    """Return the next proposal of a study, or None if it cannot be made yet.

    `found` is the other study's best sound trial not yet taken, `beside` the other study's `next_request`.
    """
    if source is None:
        return over(study, f"study '{sampler.study}', whose best configurations it takes, was deleted")
    now = turn(study, sampler, source)
    if now is None:
        if not source.state.ended:
            return None
        why = f" ({source.detail})" if source.detail else ""
        how = _ENDED[source.state.lower()]
        return over(study, f"study '{sampler.study}', whose best configurations it takes, {how}{why}")
    if found is None:
        done = source.state.ended
        return over(study, f"study '{sampler.study}' has no further sound result") if done else None
    return Proposed(
        index=study.sampled,
        params=found.params,
        proposal=Proposal(sampler=sampler.kind, results=source.ended, source=found.number, early=now.early),
        if_idle=now.if_idle,
        beside=beside if now.if_idle else None,
    )


def next_request(other: Study, live: int) -> Request | None:
    """Return the request of the other study's next new trial, given its `live` leases; None if it may start none
    now."""
    is_full = bool(other.spec.max_parallel) and live >= other.spec.max_parallel
    if other.sampled >= other.planned or is_full or other.spec.template is None:
        return None
    return Request.of(other.spec.resources.each[0], other.standing.avoided)


def over(study: Study, why: str) -> ProposalsOver:
    """Report that there is no further configuration."""
    return ProposalsOver(index=study.sampled, why=why)
