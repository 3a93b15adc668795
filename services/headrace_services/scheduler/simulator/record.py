"""What a simulation leaves behind: who was where, when, and what was trained there."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """One trial on its slots, from the lease's beginning to its end, in seconds of virtual time."""

    trial: int
    worker: int
    slots: tuple[int, ...]
    start_s: float
    end_s: float
    from_step: int
    to_step: int
    milli: int = 1000
    """Thousandths that it had of each slot."""
    ending: str
    """completed, stopped_early, paused, interrupted, failed or cancelled."""
    grant: str = ""
    """The grant that the slots were held by; members of a bundle have the same."""

    @property
    def width(self) -> float:
        """How many slots it took."""
        return len(self.slots) * self.milli / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """A grant on its slots, from its first trial's beginning to its last one's end."""

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
    """Training without a pause between two reports: steps (from_step, to_step] of a trial.

    `trained_s` is when the training of the last step ended; writing the checkpoint comes after.
    """

    trial: int
    start_s: float
    trained_s: float
    from_step: int
    to_step: int
    speed: float
    value: float | None = None
    """What was reported at `to_step`, noise included."""


@dataclass(slots=True, kw_only=True)
class Record:
    """The whole of one study's simulation."""

    stays: list[Stay] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    occupancy: list[tuple[float, int, int, int]] = field(default_factory=list)
    """Entries at rungs: when, bracket, rung, trial."""
    pauses: int = 0
    resumes: int = 0
    interruptions: int = 0
    events: int = 0
    """How many cycles of the scheduler it took."""
    idle_pending_s: float = 0.0
    """Slot-seconds that nothing ran on while a trial waited for a slot."""
    down_s: float = 0.0
    """Slot-seconds of machines that had failed."""
    end_s: float = 0.0

    def holdings(self) -> list[Holding]:
        """The grants of all stays, each once."""
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
