"""One step of a study over the rows in memory: the same order of calls as `step/transaction` makes over Postgres.

`tests/simulator/test_simulator_production.py` runs both side by side and expects the same event log.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.spec import StudySpec, TrialTemplate
from headrace_services.scheduler.arrivals import (
    Arrival,
    ExitedArrived,
    LeaseExpired,
    Order,
    Outcome,
    ReportArrived,
    RestoredArrived,
)
from headrace_services.scheduler.simulator.rows import ClusterRows, StudyRows
from headrace_services.scheduler.step import core, placing
from headrace_services.scheduler.step.state import StepState


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepped:
    """What a step answered, whom it tells what, and whether it left slots that another study may use."""

    outcomes: tuple[Outcome | None, ...]
    orders: tuple[Order, ...]
    slots_left: bool


def step(rows: StudyRows, cluster: ClusterRows, arrivals: Sequence[Arrival]) -> Stepped:
    """Take arrivals in, place what can be placed, and write the outcome to the rows."""
    study = rows.study
    state = StepState(study, rows.cache)
    _load(state, rows, cluster, arrivals)
    outcomes = tuple(core.apply(state, arrival) for arrival in arrivals)
    slots_left = False
    if state.wants_placement and not state.study.state.ended:
        slots_left = _place(state, rows, cluster, len(arrivals))
    if state.study.state.ended and not study.state.ended:
        state.load(trials=rows.unfinished(), leases=rows.leases.values())
        state.slots = {**rows.slots, **state.slots}
        core.finish(state)
        slots_left = True
    rows.write(state, cluster)
    rows.cache.cursor = state.study.cursor
    return Stepped(outcomes=outcomes, orders=tuple(state.orders), slots_left=slots_left)


def _load(state: StepState, rows: StudyRows, cluster: ClusterRows, arrivals: Sequence[Arrival]) -> None:
    for arrival in arrivals:
        match arrival:
            case ReportArrived() | RestoredArrived() | ExitedArrived() | LeaseExpired():
                lease = rows.leases.get(arrival.lease_id)
                if lease is not None:
                    state.load(trials=[rows.trials[lease.number]], leases=[lease])
                    state.slots[lease.id] = cluster.current(rows.slots[lease.id])
            case _:
                pass


def _place(state: StepState, rows: StudyRows, cluster: ClusterRows, arrivals: int) -> bool:
    state.live += len(rows.leases)
    freed = list(state.free)
    state.free += cluster.free.values()
    limit = len(state.free) + placing.LOOKAHEAD + arrivals + 1
    state.load_queue(rows.runnable(limit))
    while (number := placing.place(state)) is not None:
        state.load(trials=[rows.trials[number]])
    placing.settle(state)
    return any(slot in state.free for slot in freed)


_PROGRAM = TrialTemplate(callable="simulated:trial", working_dir="/")


def runs_on_slots(spec: StudySpec) -> StudySpec:
    """The spec of a study as workers would run it: an ask/tell study is given a program, whose clients are slots."""
    if spec.template is not None:
        return spec
    return spec.model_copy(update={"template": _PROGRAM})
