"""Where a study stands in the cluster: what it used, holds, waits for and has kept for it."""

from collections.abc import Mapping

from msgspec import Struct, field
from msgspec.structs import replace

HEARD_S = 5.0
"""After so long every program has heard that it is to save at its next report."""


class Usage(Struct, frozen=True, kw_only=True):
    """What a study has used of the cluster, and holds now: GPUs in thousandths, CPU slots, and their seconds."""

    gpu_s: float = 0.0
    cpu_s: float = 0.0
    gpu_milli: int = 0
    cpu_slots: int = 0
    at_s: float = 0.0
    """Up to when the seconds are summed; what is held runs on since."""
    bubble_s: float = 0.0
    """Seconds of ephemeral slots, counted apart: no share is charged for them. `bubble_slots` are held now."""
    bubble_slots: int = 0
    credit_s: float = 0.0
    """Added to the study's virtual time when it came back from being idle (`placement.shares`)."""

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
        """The same after a grant of so many thousandths of slots, now; of a negative number after its end."""
        before = self.settled(now_s)
        if gpu:
            return replace(before, gpu_milli=before.gpu_milli + milli)
        return replace(before, cpu_slots=before.cpu_slots + milli // 1000)

    def hold_ephemeral(self, slots: int, now_s: float) -> "Usage":
        """The same after a grant of ephemeral slots, now; of a negative number after its end."""
        before = self.settled(now_s)
        return replace(before, bubble_slots=before.bubble_slots + slots)


Speeds = Mapping[str, tuple[float, float]]
"""Steps and seconds of training by kind of grant (`placement.speeds`)."""


class Reserved(Struct, frozen=True, kw_only=True):
    """Slots of one worker that are kept for a trial of the study."""

    number: int
    worker_id: int
    slots: tuple[int, ...]
    since_s: float
    ready_s: float | None
    """When they will be free by measured times, on the clock of `since_s`: the database's, in seconds."""
    milli: int | None = None
    """Thousandths of each slot that the trial takes, and `cores` over all of them; None in rows of earlier versions."""
    cores: int | None = None

    @property
    def shape(self) -> tuple[int, int | None, int | None]:
        """The size of the trial, as of `Request.shape`."""
        return (len(self.slots), self.milli, self.cores)


class Closing(Struct, frozen=True, kw_only=True):
    """What ends a study, while its trials still leave (`core.closing`)."""

    why: str
    """What came true."""
    asked: str
    """The conditions of which it is one."""
    since_s: float
    by_s: float
    """Until when the trials have time, by the database's clock as `since_s`."""


class Leader(Struct, frozen=True, kw_only=True):
    """The best trial of a study when its trials were compared last (`core.until`)."""

    number: int
    score: float
    full: bool
    """Whether it counted as completed."""


class Progress(Struct, frozen=True, kw_only=True):
    """How near a study is to what ends it before its trials have (`core.until`). Only of one that has such an end."""

    spent_s: float = 0.0
    """What its hours have lost, in seconds, without the time since `since_s`."""
    since_s: float | None = None
    """Since when trials run without a break, by the database's clock, put forward by what outages took (`core.hours`);
    None while none runs, and where no hours are set."""
    seen_s: float = 0.0
    """Up to when that is counted: the last cycle."""
    best_value: float | None = None
    """The best value of any report, and its trial: what a target is compared with."""
    best_trial: int | None = None
    leader: Leader | None = None
    """What further trials have to improve on; None without a score, and where `tried` is not counted."""
    tried: int = 0
    """How many trials were tried since the best score got better."""

    @property
    def running_s(self) -> float:
        """How long trials have run without a break."""
        return 0.0 if self.since_s is None else self.seen_s - self.since_s


class Unreached(Struct, frozen=True, kw_only=True):
    """Attempts of a trial in a row that did not reach its program on one worker (`core.failed_starts`)."""

    worker: str
    incarnation: str
    times: int
    shunned: bool
    """Whether the trial is placed on other workers, until then."""
    until_s: float
    """Until when all this counts, on the database's clock."""


class Standing(Struct, frozen=True, kw_only=True):
    """Where a study stands in the cluster: what other studies' cycles read of it before they take a slot."""

    usage: Usage = Usage()
    speeds: Speeds = field(default_factory=dict)
    reserved: Reserved | None = None
    wants_slots: int = 0
    """How many slots its next trial waits for; 0 while none waits."""
    wants_milli: int | None = None
    """Thousandths of each of these slots, and `wants_cores` over all of them; None in rows of earlier versions."""
    wants_cores: int | None = None
    wants_bubbles: int | None = None
    """The memory that an ephemeral slot for it must have at least; None where none would do."""
    wants_count: int = 0
    """How many such trials it could start; also where its project's quota keeps them off."""
    held_off: int = 0
    """Thousandths of slots that its next trial takes, while its project's quota keeps that one off; 0 while it does
    not. Such a study waits for no slot: it wants none before the quota has room."""
    quota: int = 0
    """That quota, in slots."""
    quantum_s: float = 30.0
    """About how long a grant is held: its rung time, as far as that is known."""
    looked_s: float = 0.0
    """When it last looked for slots for that trial, by the database's clock."""
    kept: tuple[int, float] = (0, 0.0)
    """For a trial of what size, in thousandths of slots, it was last looked whether to keep slots for it, and when, by
    the same clock."""
    left_to: Mapping[int, float] = field(default_factory=dict)
    """The studies that free slots were left to and that have not come for them, each with the time since then."""
    early: Mapping[str, int] = field(default_factory=dict)
    """How many attempts failed on each worker, by its name, before any trial had reported anything."""
    ended_through: int | None = None
    """Where the study has ended and trials are still to be terminated: the number up to which they are."""
    avoided: Mapping[str, str] = field(default_factory=dict)
    """The workers that get no trials of the study any more: their names by incarnation."""
    progress: Progress = Progress()
    started_s: float | None = None
    """When its first trial was first started, by the database's clock."""
    over_s: float = 0.0
    """For how long it had ended, in all, each time until a user let it continue."""
    returns: bool | None = None
    """Whether all results are what functions returned: then no trial has anything to continue. None before the first
    report."""
    closing: Closing | None = None
    """Set once something of `until` has come true; stays once the study has ended."""
    unreached: Mapping[int, Unreached] = field(default_factory=dict)
    """By trial."""


class Leaving(Struct, frozen=True, kw_only=True):
    """Why the trials of a grant are to leave its slots, and when."""

    for_study_id: int | None
    """None where no study asks: the owner of its ephemeral slot takes it back."""
    at_report: bool
    """At the next report with a checkpoint; else at the next rung."""
    why: str
