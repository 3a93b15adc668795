"""One study in a simulation: its rows, its curves, its record, and the runs of its trials on virtual machines."""

from dataclasses import dataclass, field

from headrace.spec import StudySpec
from headrace.spec.names import DEFAULT_PROJECT
from headrace_services.scheduler.core.fold import Fold
from headrace_services.scheduler.core.policies import make_policy
from headrace_services.scheduler.core.records import Lease
from headrace_services.scheduler.simulator.costs import Costs
from headrace_services.scheduler.simulator.curves import Curve, Curves
from headrace_services.scheduler.simulator.cycle import runs_on_slots
from headrace_services.scheduler.simulator.proposals import Proposals
from headrace_services.scheduler.simulator.record import Record, Segment
from headrace_services.scheduler.simulator.rows import StudyRows


@dataclass(slots=True, eq=False)
class Run:
    """A trial on a machine."""

    study: "StudySimulation"
    lease: Lease
    curve: Curve
    speed: float
    start_s: float
    from_step: int
    step: int
    alive: bool = True
    sequence: int = 0
    tie: tuple[int, int] = (0, 0)
    plan: int = 0
    """The number of its present plan; outdated plans are dropped from the heap."""
    segment: Segment | None = None
    saves: bool = False
    """Whether it saves a checkpoint at the segment's end."""
    crowd: float = 1.0
    """How many times as long its bundle's step takes as a lone trial's."""

    @property
    def worker_id(self) -> int:
        """The machine that it is on."""
        assert self.lease.worker_id is not None
        return self.lease.worker_id

    @property
    def grant_id(self) -> str:
        """The grant that holds its slots, perhaps with others."""
        assert self.lease.grant is not None
        return self.lease.grant.id

    def next_sequence(self) -> int:
        """The number of its next message."""
        self.sequence += 1
        return self.sequence


@dataclass(slots=True, eq=False)
class StudySimulation:
    """One study in a simulation: its rows, its curves and its record."""

    rows: StudyRows
    curves: Curves
    costs: Costs
    record: Record = field(default_factory=Record)
    runs: dict[str, Run] = field(default_factory=dict)
    known: dict[int, Curve] = field(default_factory=dict)
    idle: float = 0.0
    """How many slots are free now although a trial waits for one."""
    hours_end_s: float | None = None
    """When its hours are used up, as far as that is known."""
    closed_s: float | None = None
    """Once it closes, when its trials have had their time to leave."""

    @classmethod
    def of(
        cls,
        spec: StudySpec,
        curves: Curves,
        *,
        costs: Costs | None = None,
        name: str = "study",
        project: str = DEFAULT_PROJECT,
        number: int = 1,
        log: bool = False,
    ) -> "StudySimulation":
        """A study before its first trial. With `log`, the production event log is kept in `rows.events`."""
        placed = runs_on_slots(spec)
        fold = Fold(spec=placed, policy=make_policy(placed), sampler=Proposals(placed, curves))
        rows = StudyRows(placed, fold, name=name, project=project, number=number)
        if log:
            rows.events = []
        return cls(rows=rows, curves=curves, costs=costs or Costs())

    @property
    def spec(self) -> StudySpec:
        return self.rows.study.spec

    @property
    def width(self) -> float:
        """How many slots its smallest trial takes."""
        smallest = self.spec.resources.each[0]
        return smallest.slots * smallest.milli / 1000

    @property
    def over(self) -> bool:
        """Whether the study has ended."""
        return self.rows.study.state.ended

    def members(self, grant_id: str) -> list[Run]:
        """The runs on a grant."""
        return [run for run in self.runs.values() if run.grant_id == grant_id]

    def curve(self, number: int) -> Curve:
        """The curve of a trial."""
        if number not in self.known:
            self.known[number] = self.curves.curve(number)
        return self.known[number]
