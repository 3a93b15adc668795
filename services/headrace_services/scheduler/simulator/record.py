"""The record of a simulation: which trial ran where and when, and what it trained."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """One attempt of a trial on its slots, from the start of the lease to its end, in seconds of virtual time."""

    trial: int
    worker: int
    slots: tuple[int, ...]
    start_s: float
    end_s: float
    from_step: int
    to_step: int
    milli: int = 1000
    """The thousandths of each slot that it had."""
    ending: str
    """completed, stopped_early, paused, interrupted, failed or cancelled."""
    grant: str = ""
    """The grant that held the slots; members of a bundle have the same one."""

    @property
    def width(self) -> float:
        """How many slots it took."""
        return len(self.slots) * self.milli / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """A grant on its slots, from the start of its first trial to the end of its last one."""

    start_s: float
    end_s: float
    width: float
    """How many slots it took."""
    worker: int

    @property
    def slot_s(self) -> float:
        """The slot-seconds it took."""
        return (self.end_s - self.start_s) * self.width


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Training between two reports, without a pause: steps (from_step, to_step] of a trial.

    `trained_s` is when the training of the last step ended; writing the checkpoint comes after.
    """

    trial: int
    start_s: float
    trained_s: float
    from_step: int
    to_step: int
    speed: float
    value: float | None = None
    """The value reported at `to_step`, including noise."""


@dataclass(slots=True, kw_only=True)
class Record:
    """The complete record of one study's simulation."""

    stays: list[Stay] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    occupancy: list[tuple[float, int, int, int]] = field(default_factory=list)
    """Entries at rungs: time, bracket, rung, trial."""
    pauses: int = 0
    resumes: int = 0
    interruptions: int = 0
    events: int = 0
    """How many cycles of the scheduler it took."""
    idle_pending_s: float = 0.0
    """Slot-seconds in which nothing ran although a trial waited for a slot."""
    down_s: float = 0.0
    """Slot-seconds of failed machines."""
    end_s: float = 0.0

    def holdings(self) -> list[Holding]:
        """The grants of all attempts, without duplicates."""
        found: dict[str, Holding] = {}
        for stay in self.stays:
            known = found.get(stay.grant)
            found[stay.grant] = Holding(
                start_s=min(stay.start_s, known.start_s) if known else stay.start_s,
                end_s=max(stay.end_s, known.end_s) if known else stay.end_s,
                width=stay.width,
                worker=stay.worker,
            )
        return list(found.values())
