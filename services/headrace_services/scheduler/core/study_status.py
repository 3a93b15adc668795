"""A study's status in the cluster: what it used, holds, waits for and has reserved."""

from collections.abc import Mapping

from msgspec import Struct, field
from msgspec.structs import replace

HEARD_S = 5.0
"""After this long every program has received the request to save at its next report."""


class Usage(Struct, frozen=True, kw_only=True):
    """What a study has used of the cluster and holds now: GPUs in thousandths, CPU slots, and their seconds."""

    gpu_s: float = 0.0
    cpu_s: float = 0.0
    gpu_milli: int = 0
    cpu_slots: int = 0
    at_s: float = 0.0
    """The time up to which the seconds are summed; what is held has added more since."""
    bubble_s: float = 0.0
    """Seconds of ephemeral slots, counted separately: they are not charged to fair shares. `bubble_slots` are held
    now."""
    bubble_slots: int = 0
    credit_s: float = 0.0
    """Added to the study's virtual time when it returned from being idle (`placement.shares`)."""

    def settled(self, now_s: float) -> "Usage":
        """The same, summed up to now."""
        held_s = max(0.0, now_s - self.at_s)
        return replace(
            self,
            gpu_s=self.gpu_s + held_s * self.gpu_milli / 1000,
            cpu_s=self.cpu_s + held_s * self.cpu_slots,
            bubble_s=self.bubble_s + held_s * self.bubble_slots,
            at_s=max(self.at_s, now_s),
        )

    def hold(self, gpu: bool, milli: int, now_s: float) -> "Usage":
        """The same after a grant of this many thousandths of slots, now; a negative number is the end of a grant."""
        before = self.settled(now_s)
        if gpu:
            return replace(before, gpu_milli=before.gpu_milli + milli)
        return replace(before, cpu_slots=before.cpu_slots + milli // 1000)

    def hold_ephemeral(self, slots: int, now_s: float) -> "Usage":
        """The same after a grant of ephemeral slots, now; a negative number is the end of a grant."""
        before = self.settled(now_s)
        return replace(before, bubble_slots=before.bubble_slots + slots)


Speeds = Mapping[str, tuple[float, float]]
"""Steps and seconds of training by kind of grant (`placement.speeds`)."""


class Reserved(Struct, frozen=True, kw_only=True):
    """Slots of one worker that are reserved for a trial of the study."""

    number: int
    worker_id: int
    slots: tuple[int, ...]
    since_s: float
    ready_s: float | None
    """When they will be free according to measured times, in seconds on the clock of `since_s`: the database's."""
    milli: int | None = None
    """Thousandths of each slot that the trial takes. `cores` is over all slots. Both are None in rows of earlier
    versions."""
    cores: int | None = None

    @property
    def shape(self) -> tuple[int, int | None, int | None]:
        """The size of the trial, in the form of `Request.shape`."""
        return (len(self.slots), self.milli, self.cores)


class Closing(Struct, frozen=True, kw_only=True):
    """What ends a study, while its trials still leave (`core.closing`)."""

    why: str
    """The condition that came true."""
    asked: str
    """The conditions of which `why` is one."""
    since_s: float
    by_s: float
    """The deadline for its trials, by the database's clock, as is `since_s`."""


class Leader(Struct, frozen=True, kw_only=True):
    """The best trial of a study when its trials were last compared (`core.until`)."""

    number: int
    score: float
    full: bool
    """Whether it counted as completed."""


class Progress(Struct, frozen=True, kw_only=True):
    """How close a study is to an end by `until` (`core.until`). Only studies that may end so have one."""

    spent_s: float = 0.0
    """The seconds used of its hours, without the time since `since_s`."""
    since_s: float | None = None
    """Since when trials run without a break, by the database's clock, moved forward by the length of outages
    (`core.hours`). None while none runs, and if no hours are set."""
    seen_s: float = 0.0
    """The time up to which this is counted: the last cycle."""
    best_value: float | None = None
    """The best value of any report, and its trial. A target is compared with it."""
    best_trial: int | None = None
    leader: Leader | None = None
    """What further trials have to improve on; None without a score, and if `tried` is not counted."""
    tried: int = 0
    """How many trials were tried since the best score last improved."""

    @property
    def running_s(self) -> float:
        """How long trials have run without a break."""
        return 0.0 if self.since_s is None else self.seen_s - self.since_s


class Unreached(Struct, frozen=True, kw_only=True):
    """A trial's attempts in a row that did not reach its program on one worker (`core.failed_starts`)."""

    worker: str
    incarnation: str
    times: int
    shunned: bool
    """Whether the trial is placed on other workers until `until_s`."""
    until_s: float
    """How long all this counts, by the database's clock."""


class Standing(Struct, frozen=True, kw_only=True):
    """A study's status in the cluster: what the cycles of other studies read of it before they take a slot."""

    usage: Usage = Usage()
    speeds: Speeds = field(default_factory=dict)
    reserved: Reserved | None = None
    wants_slots: int = 0
    """How many slots its next trial waits for; 0 while none waits."""
    wants_milli: int | None = None
    """Thousandths of each of these slots. `wants_cores` is over all of them. Both are None in rows of earlier
    versions."""
    wants_cores: int | None = None
    wants_bubbles: int | None = None
    """The least memory that an ephemeral slot for it must have; None if none would do."""
    wants_count: int = 0
    """How many such trials it could start, even if its project's quota holds them off."""
    held_off: int = 0
    """Thousandths of slots that its next trial takes while its project's quota holds it off; 0 if it does not.
    Such a study waits for no slot until the quota has room."""
    quota: int = 0
    """That quota, in slots."""
    quantum_s: float = 30.0
    """About how long a grant is held: the time of a rung, as far as that is known."""
    looked_s: float = 0.0
    """When it last looked for slots for that trial, by the database's clock."""
    kept: tuple[int, float] = (0, 0.0)
    """The size of the trial, in thousandths of slots, for which a reservation was last considered, and when, by
    the same clock."""
    left_to: Mapping[int, float] = field(default_factory=dict)
    """The studies that free slots were left to and that have not used them, each with the time since then."""
    early: Mapping[str, int] = field(default_factory=dict)
    """How many attempts failed on each worker, by its name, before any trial had reported anything."""
    ended_through: int | None = None
    """If the study has ended and trials are still to be terminated: the number up to which they are."""
    avoided: Mapping[str, str] = field(default_factory=dict)
    """The workers that get no more trials of the study: their names by incarnation."""
    progress: Progress = Progress()
    started_s: float | None = None
    """When its first trial was first started, by the database's clock."""
    over_s: float = 0.0
    """How long it had been over, in total, when a user let it continue."""
    returns: bool | None = None
    """Whether all results are return values of functions: then no trial has anything to continue. None before the
    first report."""
    closing: Closing | None = None
    """Set once a condition of `until` has come true, and kept once the study has ended."""
    unreached: Mapping[int, Unreached] = field(default_factory=dict)
    """By trial number."""


class Leaving(Struct, frozen=True, kw_only=True):
    """Why the trials of a grant must leave its slots, and when."""

    for_study_id: int | None
    """None if no study asks: the owner of its ephemeral slot takes it back."""
    at_report: bool
    """At the next report with a checkpoint, if true; at the next rung, if false."""
    why: str
