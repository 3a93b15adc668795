"""One cycle of a study over rows in memory: `decide` as over Postgres, with its questions answered here.

`tests/simulator/test_simulator_production.py` runs both on the same inputs and expects the same event log.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, assert_never

from headrace.errors import HeadraceError
from headrace.spec import StudySpec, TrialTemplate
from headrace_services.scheduler.core.decide import decide, named
from headrace_services.scheduler.core.hours import NO_OUTAGES
from headrace_services.scheduler.core.inputs import Input
from headrace_services.scheduler.core.needs import (
    AbleWorkers,
    AnyRunnable,
    BestScored,
    Candidates,
    Decisions,
    Devices,
    EarlierCheckpoint,
    FoldIn,
    FreeSlots,
    Left,
    Line,
    Named,
    Needs,
    Neighbourhood,
    NextInLine,
    Occupation,
    OverTrials,
    OwnSlots,
    ResultsAfter,
    RoomForStudies,
    Rows,
    SilentLeases,
    Surroundings,
    Unfinished,
    UnstartedCount,
    UserPausedCount,
    Waiting,
)
from headrace_services.scheduler.core.placement import Running, can_ever_serve
from headrace_services.scheduler.core.placement.quotas import Quota, held_milli
from headrace_services.scheduler.core.placement.shares import Claim, Share, in_order, least_s
from headrace_services.scheduler.core.placement.speeds import grant_kind, step_s
from headrace_services.scheduler.core.plan import Plan
from headrace_services.scheduler.core.records import Lease
from headrace_services.scheduler.core.results import Result
from headrace_services.scheduler.core.scores import ranked
from headrace_services.scheduler.simulator.cluster_rows import ClusterRows
from headrace_services.scheduler.simulator.rows import StudyRows

Studies = Mapping[int, StudyRows]
"""All studies on the cluster, by id."""


def cycle(
    rows: StudyRows, studies: Studies, cluster: ClusterRows, inputs: Sequence[Input], now_s: float
) -> Plan:
    """Decide what follows from the inputs, and write it to the rows. Raises the error of an input that was refused."""
    plan = written(rows, studies, cluster, inputs, now_s)
    for outcome in plan.outcomes:
        if isinstance(outcome, HeadraceError):
            raise outcome
    return plan


def written(
    rows: StudyRows, studies: Studies, cluster: ClusterRows, inputs: Sequence[Input], now_s: float
) -> Plan:
    """Decide what follows from the inputs, and write it to the rows. The plan says which inputs were refused."""
    first = _named(rows, cluster, named(inputs))
    deciding = decide(
        rows.at(now_s, cluster), inputs, rows.fold, first, keep_every_s=0, most_gap_s=NO_OUTAGES
    )
    answer: Any = None
    while True:
        try:
            need = deciding.send(answer)
        except StopIteration as done:
            plan: Plan = done.value
            break
        answer = _load(need, rows, studies, cluster)
    rows.write(plan, cluster)
    _tell_others(plan, studies, cluster)
    rows.fold.cursor = plan.study.cursor
    return plan


def _load(need: Needs, rows: StudyRows, studies: Studies, cluster: ClusterRows) -> Any:
    match need:
        case Named():
            return _named(rows, cluster, need)
        case Decisions():
            return {}  # nothing arrives twice in a simulation
        case AbleWorkers():
            return frozenset()  # a simulated trial fails by itself, wherever it runs
        case OwnSlots():
            return can_ever_serve(cluster.devices(need.request), need.request)
        case SilentLeases():
            return need.leases  # a machine that is gone sends nothing more
        case UnstartedCount():
            return rows.unstarted
        case UserPausedCount():
            return sum(trial.user_paused for trial in rows.unfinished())
        case AnyRunnable():
            return rows.pending
        case EarlierCheckpoint():
            return None  # a simulated checkpoint can be read
        case Surroundings():
            return _surroundings(need, rows, studies, cluster)
        case NextInLine():
            others = _others(rows, studies)
            in_vain = [(share.priority, share.wants) for share in others if share.study_id in need.unlike]
            wanted = [share for share in others if (share.priority, share.wants) not in in_vain]
            return _line(wanted, cluster, need.now_s, need.waiting, need.after)
        case FreeSlots():
            return tuple(cluster.free_slots(need.request, need.limit))
        case Candidates():
            return Waiting(
                runnable=tuple(rows.runnable(need.limit)),
                live=rows.live_grants,
                rows=_named(rows, cluster, Named(numbers=need.numbers)),
                bundles=tuple(rows.open_bundles(cluster, need.bundles)),
            )
        case Devices():
            return Occupation(
                devices=cluster.devices(need.request),
                running=tuple(run for other in studies.values() for run in _running(other, cluster)),
                shares=tuple(share for share in _others(rows, studies) if studies[share.study_id].leases),
            )
        case ResultsAfter():
            return tuple(Result.of(trial) for number, trial in rows.trials.items() if number > need.number)
        case BestScored():
            still = [
                one for one in rows.trials.values() if one.number not in need.apart and not one.trains_on
            ]
            best = ranked(rows.study.spec.objective, still)[:1]
            return (*best, *(one for one in still if one.number in need.named and one not in best))
        case Unfinished():  # nobody waits meanwhile, so return all of them at once
            left = list(rows.unfinished())
            held = _named(rows, cluster, Named(numbers=frozenset(trial.number for trial in left)))
            return Left(rows=Rows(trials=tuple(left), leases=held.leases, slots=held.slots))
        case OverTrials() | FoldIn() | RoomForStudies():
            raise NotImplementedError("nobody reopens a simulated study")
        case never:
            assert_never(never)


def _named(rows: StudyRows, cluster: ClusterRows, need: Named) -> Rows:
    trials = tuple(rows.trials[number] for number in sorted(need.numbers) if number in rows.trials)
    ids = need.leases | {trial.lease_id for trial in trials if trial.lease_id}
    leases = tuple(lease for lease_id in sorted(ids) if (lease := rows.lease(lease_id)) is not None)
    return Rows(
        trials=trials,
        leases=leases,
        slots={lease.id: cluster.held(lease) for lease in leases},
        profiles=tuple(rows.profiles.values()),
    )


def _surroundings(
    need: Surroundings, rows: StudyRows, studies: Studies, cluster: ClusterRows
) -> Neighbourhood:
    others, totals, project = _others(rows, studies), cluster.totals(), rows.study.project
    return Neighbourhood(
        free=tuple(cluster.free_slots(need.request, need.limit)),
        crowded=bool(others),
        line=_line(others, cluster, need.now_s, need.waiting),
        further=tuple(
            share
            for share in others
            if share.reserved or share.study_id in need.named or (share.held_off and share.project == project)
        ),
        least_s=least_s(_beyond(others, project, need), totals, need.now_s) if need.joining else None,
        totals=totals,
        quota=_quota(rows, studies, cluster),
    )


def _beyond(others: list[Share], project: str, need: Surroundings) -> list[Share]:
    return [share for share in others if share.project != project] if need.beyond else others


def _quota(rows: StudyRows, studies: Studies, cluster: ClusterRows) -> Quota | None:
    project = rows.study.project
    slots = cluster.quotas.get(project)
    if slots is None:
        return None
    others = [one.study for one in studies.values() if one is not rows and one.study.project == project]
    return Quota(slots=slots, others_milli=sum(held_milli(other.standing.usage) for other in others))


def _others(rows: StudyRows, studies: Studies) -> list[Share]:
    return [other.share() for other in studies.values() if other is not rows and not other.study.state.ended]


def _line(
    others: list[Share], cluster: ClusterRows, now_s: float, most: int, after: Claim | None = None
) -> Line:
    ordered = in_order(others, cluster.totals(), now_s)
    found = [(claim, share) for claim, share in ordered if after is None or claim > after]
    line = found[:most]
    return Line(shares=tuple(share for _, share in line), known_to=line[-1][0] if len(found) > most else None)


def _running(rows: StudyRows, cluster: ClusterRows) -> Iterable[Running]:
    found: dict[str, Running] = {}
    for lease in rows.leases.values():
        if lease.owner_stage:
            continue
        running = _on_its_slots(rows, lease, cluster)
        first = found.get(running.grant_id)
        found[running.grant_id] = running if first is None else first.beside(running)
    return found.values()


def _on_its_slots(rows: StudyRows, lease: Lease, cluster: ClusterRows) -> Running:
    trial = rows.trials[lease.number]
    kind = grant_kind(lease.model, len(lease.slots), lease.milli)
    per_step = step_s(kind, rows.study.standing.speeds, trial.speeds)
    assert lease.worker_id is not None
    assert lease.grant is not None
    return Running(
        key=(lease.study_id, lease.number),
        grant_id=lease.grant.id,
        leases=(lease.name,),
        worker_id=lease.worker_id,
        slots=lease.slots,
        milli=lease.milli,
        priority=rows.study.spec.priority,
        leaves_in_s=(
            None if per_step is None or trial.milestone is None else (trial.milestone - lease.step) * per_step
        ),
        asked=lease.grant.id in cluster.leaving,
        project=rows.study.project,
    )


def _tell_others(plan: Plan, studies: Studies, cluster: ClusterRows) -> None:
    changes = plan.changes
    if changes.withdraw_asks:
        cluster.withdraw_asks(plan.study.id)
    if not changes.asks:
        return
    for grant_id, asked in changes.asks.items():
        for study_id, other in studies.items():
            if other.members(grant_id):
                cluster.ask(grant_id, study_id, asked)


_PROGRAM = TrialTemplate(callable="simulated:trial", working_dir="/")


def runs_on_slots(spec: StudySpec) -> StudySpec:
    """The spec of a study as workers would run it: an ask/tell study gets a program, with slots as its clients."""
    if spec.template is not None:
        return spec
    return spec.model_copy(update={"template": _PROGRAM})
