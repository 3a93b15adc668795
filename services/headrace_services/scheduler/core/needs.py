"""What a decision needs from the rows: a closed union of questions, each with the type of its answer.

`decide` yields a question and is sent the answer. The engine answers from Postgres (`store.load`), the simulator
from its own rows, a test from dictionaries. Free slots in an answer are locked against other studies until the
plan is applied.
"""

from collections.abc import Generator, Mapping
from typing import Any, Generic, TypeVar

from msgspec import Struct, field

from headrace_services.scheduler.core.capacity import Profile
from headrace_services.scheduler.core.fold import Fold
from headrace_services.scheduler.core.lifecycle import Reason
from headrace_services.scheduler.core.placement import Request, Running
from headrace_services.scheduler.core.placement.quotas import Quota
from headrace_services.scheduler.core.placement.shares import Claim, Share, Totals
from headrace_services.scheduler.core.records import (
    Bundle,
    Checkpoint,
    Decision,
    History,
    Lease,
    Over,
    Slot,
    Trial,
)
from headrace_services.scheduler.core.results import Result
from headrace_services.scheduler.core.studies_quota import StudiesQuota

Answer = TypeVar("Answer")
Result_ = TypeVar("Result_")


class Need(Struct, Generic[Answer], frozen=True, kw_only=True):
    """A question. The type parameter is the type of its answer."""


class Rows(Struct, frozen=True, kw_only=True):
    """Rows of a study."""

    trials: tuple[Trial, ...] = ()
    leases: tuple[Lease, ...] = ()
    slots: Mapping[str, tuple[Slot, ...]] = field(default_factory=dict)
    """The slots that live leases hold, by lease. The part that the lease holds counts as free."""
    histories: Mapping[int, History] = field(default_factory=dict)
    profiles: tuple[Profile, ...] = ()
    """The study's bundle profiles, only in the rows that a study with bundles is opened with."""


class Named(Need[Rows], frozen=True, kw_only=True):
    """The named trials and leases that exist, the live leases of the trials, and the slots of the live leases."""

    leases: frozenset[str] = frozenset()
    numbers: frozenset[int] = frozenset()
    histories: frozenset[int] = frozenset()
    """The trials whose histories are requested too."""


class Decisions(Need[Mapping[tuple[int, int, int], Decision]], frozen=True, kw_only=True):
    """The answers given to stored reports, by (trial, attempt, sequence)."""

    keys: frozenset[tuple[int, int, int]]


class AbleWorkers(Need[frozenset[str]], frozen=True, kw_only=True):
    """The names of the connected workers that could serve a request if nobody else used them."""

    request: Request


class OwnSlots(Need[bool], frozen=True, kw_only=True):
    """Whether a connected worker could serve a request with slots that are not ephemeral, if nobody else used
    them."""

    request: Request


class SilentLeases(Need[frozenset[str]], frozen=True, kw_only=True):
    """Which of the live leases have expired by now."""

    leases: frozenset[str]


class UnstartedCount(Need[int], frozen=True, kw_only=True):
    """How many trials were never placed and could be."""


class UserPausedCount(Need[int], frozen=True, kw_only=True):
    """How many unfinished trials a user keeps paused."""


class AnyRunnable(Need[bool], frozen=True, kw_only=True):
    """Whether a trial of the study should be on a worker and is not."""


class EarlierCheckpoint(Need[Checkpoint | None], frozen=True, kw_only=True):
    """The checkpoint at the highest step below `step` in the line of a trial, `owner`, if it is among those
    `stored`. It is one that the trial saved after it last copied another trial's state, or the one that it copied
    then."""

    owner: int
    step: int
    stored: frozenset[str]


class Line(Struct, frozen=True, kw_only=True):
    """Other active studies on workers that wait for slots, in the order of their claims."""

    shares: tuple[Share, ...] = ()
    known_to: Claim | None = None
    """The claim of the last of them, if there may be more after it."""


class Neighbourhood(Struct, frozen=True, kw_only=True):
    """The cluster around a study."""

    free: tuple[Slot, ...]
    """Slots with room for the request, CPU slots first."""
    passed_over: bool = False
    """Whether there were more free slots, which cycles of other studies were considering at that moment."""
    crowded: bool = False
    """Whether there are other active studies on workers."""
    line: Line = Line()
    """Those that wait for slots and go first."""
    further: tuple[Share, ...] = ()
    """Of the others: those with reservations, those held off by their project's quota if it is this study's
    project too, and those that were named."""
    least_s: float | None = None
    """The lowest virtual time among those that hold slots or wait for some; only if it was requested."""
    totals: Totals = Totals(gpu_milli=0, cpu_slots=0)
    """The cluster's totals."""
    quota: Quota | None = None
    """The quota of the study's project. It is locked until the plan is applied: no other cycle places trials for
    the project."""


class Surroundings(Need[Neighbourhood], frozen=True, kw_only=True):
    """Ask for free slots for a request, at most `limit`, and for the other studies as far as they matter."""

    request: Request
    limit: int
    now_s: float
    """The time as of which claims are compared."""
    waiting: int
    """How many of the studies that wait for slots to return."""
    named: frozenset[int] = frozenset()
    joining: bool = False
    """Whether the study returns from being idle, or may return from being held off by its project's quota."""
    beyond: bool = False
    """Whether the lowest virtual time is only that of other projects."""


class NextInLine(Need[Line], frozen=True, kw_only=True):
    """The studies that wait for slots after a claim, at most `limit`."""

    after: Claim
    now_s: float
    waiting: int
    unlike: frozenset[int] = frozenset()
    """Leave out those that ask for the same at the same priority as one of these."""


class FreeSlots(Need[tuple[Slot, ...]], frozen=True, kw_only=True):
    """Free slots for a request, at most `limit`, or more if a single request needs more."""

    request: Request
    limit: int


class Waiting(Struct, frozen=True, kw_only=True):
    """What could run next."""

    runnable: tuple[Trial, ...]
    """Trials that should be on a worker and are not: interrupted ones first, then by number."""
    live: int
    """How many live grants the study has in its rows; a client's lease, which has no grant, counts as one."""
    rows: Rows = Rows()
    """The named trials."""
    bundles: tuple[Bundle, ...] = ()
    """Bundles with open seats, if they were requested."""
    rests_until_s: float | None = None
    """When the first trial may run that may not be placed yet; None if there is none."""


class Candidates(Need[Waiting], frozen=True, kw_only=True):
    """At most `limit` runnable trials that may be placed at `now_s`, the named trials, and the number of live
    grants."""

    limit: int
    now_s: float
    numbers: frozenset[int] = frozenset()
    bundles: int = 0
    """At most this many of the study's bundles with open seats, those with the fewest members first."""


class Occupation(Struct, frozen=True, kw_only=True):
    """Devices, and the grants on them."""

    devices: tuple[Slot, ...]
    running: tuple[Running, ...]
    shares: tuple[Share, ...] = ()
    """The other studies of these trials."""


class Devices(Need[Occupation], frozen=True, kw_only=True):
    """Every device that could serve a request, occupied or not, and the grants of all studies on their workers."""

    request: Request


class ResultsAfter(Need[tuple[Result, ...]], frozen=True, kw_only=True):
    """A page of the trials' results with greater numbers; an empty page is the end."""

    number: int


class BestScored(Need[tuple[Trial, ...]], frozen=True, kw_only=True):
    """Of the trials that have no further training to do (`Trial.trains_on`), except those `apart`: the best one
    (`scores.ranked`), and the named ones."""

    apart: frozenset[int]
    named: frozenset[int]
    maximize: bool
    full_first: bool
    """Whether a completed trial ranks before all others."""


class Left(Struct, frozen=True, kw_only=True):
    """The remaining trials of a study that has ended."""

    rows: Rows
    """Unfinished trials, with their live leases and the slots of these."""
    through: int | None = None
    """The last number of the page; None if no trial is left after it."""


class Unfinished(Need[Left], frozen=True, kw_only=True):
    """All unfinished trials with live leases, and of the others those after a number, at most `limit`."""

    after: int
    limit: int


class OverTrials(Need[tuple[Over, ...]], frozen=True, kw_only=True):
    """A page of the trials that are over and have greater numbers; an empty page is the end."""

    number: int
    reasons: frozenset[Reason]
    """Those that ended for one of these reasons."""
    cut_off: bool
    """Also those that the end of the study ended; the study must have ended."""


class FoldIn(Need[None], frozen=True, kw_only=True):
    """Bring an empty fold up to the study's rows. The `reopened` trials count as not over."""

    fold: Fold
    reopened: frozenset[int]


class RoomForStudies(Need[StudiesQuota | None], frozen=True, kw_only=True):
    """The quota of studies of the study's project, if it has one. It is locked until the plan is applied."""


Needs = (
    Named
    | Decisions
    | AbleWorkers
    | OwnSlots
    | SilentLeases
    | UnstartedCount
    | UserPausedCount
    | AnyRunnable
    | EarlierCheckpoint
    | Surroundings
    | NextInLine
    | FreeSlots
    | Candidates
    | Devices
    | ResultsAfter
    | BestScored
    | Unfinished
    | OverTrials
    | FoldIn
    | RoomForStudies
)

Deciding = Generator[Needs, Any, Result_]
"""A part of a decision: a generator that yields questions, is sent their answers, and returns its result."""


def ask(need: Need[Answer]) -> Generator[Needs, Any, Answer]:
    """Ask one question; for `yield from`."""
    answer: Answer = yield need  # type: ignore[misc]  # every Need is a member of Needs
    return answer
