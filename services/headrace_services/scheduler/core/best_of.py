"""Which configuration of another study comes next, and when: the sampler `best_of`.

A study with this sampler has `trials` places for the best sound trials of the other study.

    the other study ──┬── runs: with `eager` the best one so far may take a place early, all but the last one
                      │     ├── on a slot that is idle: any of these places
                      │     └── once its share `eager` is decided: the first place, whether a slot is idle or not
                      ├── has completed: its best ones take the places that are left, the best one first
                      └── has failed, was stopped or deleted: no more are taken

Nothing is taken early before a sound trial of the other study has had its full budget. A trial of it is *decided*
while it has ended, or is paused at a rung and goes on only if it is promoted.

A configuration that was taken early keeps its place when others beat it later. So there are never more trials than
places, and the last place is kept for the best of the finished study (decision 0091).

The other study is read outside the cycle, and what follows is submitted as an input (`core.proposals`). Whether a slot
is idle is known inside the cycle alone: the proposal says that it needs one, and is dropped where there is none. While
the other study is to propose more, a slot that suits its trials is not idle: a sampler may be at work on the next one.
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
    """The other study, as far as it matters."""

    id: int
    state: StudyState
    detail: str
    planned: int
    """How many configurations it tries."""
    ended: int
    """How many of its trials have ended."""
    decided: int
    """How many have ended, or are paused and go on only if they are promoted; the baseline not counted."""
    has_full: bool
    """Whether a sound trial, other than the baseline, has had its full budget."""


class Found(Struct, frozen=True, kw_only=True):
    """A trial of the other study."""

    number: int
    params: Params


class Turn(Struct, frozen=True, kw_only=True):
    """That the next configuration may be taken now."""

    early: str = ""
    """Why before the other study's end; empty where that has come."""

    @property
    def if_idle(self) -> bool:
        """Whether it is for an idle slot alone."""
        return self.early == ON_IDLE_SLOT


def turn(study: Study, sampler: BestOfSampler, source: Source) -> Turn | None:
    """Whether the next configuration may be taken now; None: not yet, or never."""
    if source.state is StudyState.COMPLETED:
        return Turn()
    if sampler.eager is None or source.state is not StudyState.ACTIVE or not source.has_full:
        return None
    if study.planned - study.sampled < 2:
        return None  # the last place is kept for the end
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
    """The next configuration of a study; None: not yet.

    `found` is the other study's best sound trial that it has not had, `beside` the other one's `next_request`.
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
    """What the next new trial of the other study takes, which has `live` leases; None where there may be none now."""
    is_full = bool(other.spec.max_parallel) and live >= other.spec.max_parallel
    if other.sampled >= other.planned or is_full or other.spec.template is None:
        return None
    return Request.of(other.spec.resources.each[0], other.standing.avoided)


def over(study: Study, why: str) -> ProposalsOver:
    """That there is no further configuration."""
    return ProposalsOver(index=study.sampled, why=why)
