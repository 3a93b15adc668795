"""Trials as answers show them, taken only from the plan, so that a repeated request gets the same answer."""

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from headrace.errors import HeadraceError
from headrace_services.scheduler.core.inputs import (
    Added,
    ExitedArrived,
    Input,
    OnTrial,
    Outcome,
    Suggested,
)
from headrace_services.scheduler.core.needs import Deciding, Named, ask
from headrace_services.scheduler.core.records import BundleView, History, RungView, TrialView
from headrace_services.scheduler.core.state import CycleState


def shown(
    state: CycleState, inputs: Sequence[Input], outcomes: Sequence[Outcome | HeadraceError]
) -> Deciding[Mapping[int, TrialView]]:
    """The trials that the answers show, as the cycle leaves them."""
    numbers = {
        number for one, outcome in zip(inputs, outcomes, strict=True) for number in _shown(one, outcome)
    }
    numbers &= state.trials.keys()
    unread = frozenset(number for number in numbers - state.histories.keys() if state.trials[number].attempt)
    earlier = frozenset(
        number for number in unread if state.trials[number].rungs or not _is_leased(state, number)
    )
    if earlier:
        state.add_rows((yield from ask(Named(histories=earlier))))
    return {number: _view(state, number) for number in sorted(numbers)}


def _shown(one: Input, outcome: Outcome | HeadraceError) -> Iterable[int]:
    match outcome:
        case HeadraceError():
            return ()
        case Suggested(trial=trial):
            return () if trial is None else (trial.number,)
        case Added(numbers=numbers):
            return numbers
        case _:
            pass
    match one:
        case OnTrial():
            return (one.number,)
        case ExitedArrived(sequence=None):
            return (one.number,)
        case _:
            return ()


def _is_leased(state: CycleState, number: int) -> bool:
    return state.trials[number].lease_id in state.slots


def _view(state: CycleState, number: int) -> TrialView:
    trial, changes = state.trials[number], state.changes
    before = state.histories.get(number, History())
    rungs = [*before.rungs]
    rungs += [
        RungView(entry=c.entry, time=state.study.now) for c in changes.rungs if c.entry.number == number
    ]
    past = {change.rung for change in changes.promotions if change.number == number}
    copied = [exploit for exploit, _ in changes.exploits if exploit.number == number]
    view = TrialView(
        trial=trial,
        worker=None,
        slots=(),
        milli=0,
        last_worker=before.last_worker,
        rungs=tuple(
            replace(rung, entry=replace(rung.entry, promoted=True)) if rung.entry.rung in past else rung
            for rung in rungs
        ),
        lineage=(*before.lineage, *copied),
    )
    slots = state.slots.get(trial.lease_id or "", ())
    if not slots:
        return view
    worker, lease = slots[0].worker_name, state.leases[trial.lease_id or ""]
    grant = state.grants[lease.grant.id] if lease.grant else None
    return replace(
        view,
        worker=worker,
        last_worker=worker,
        slots=lease.slots,
        milli=lease.milli,
        bundle=BundleView.of(grant) if grant is not None and grant.seats > 1 else None,
    )
