"""The operations of a study as flows (see `headrace.client.flows`)."""

from collections.abc import Iterable, Mapping
from typing import Protocol

from headrace.client import convert
from headrace.client.arguments import parameters, whole_number, whole_numbers
from headrace.client.curves import Curves
from headrace.client.deleted import deleted_checkpoint, may_start_over, start_over_warning
from headrace.client.extension import retry_warnings as warnings_of_retry
from headrace.client.extension import schedules_warnings
from headrace.client.flow import Flow, rpc
from headrace.client.flows import PAGE_SIZE, annotated, reports_of, request_id
from headrace.client.machines import Room
from headrace.client.model import (
    Annotation,
    Importance,
    Listing,
    Report,
    Retried,
    StudyInfo,
    TerminationReason,
    TrialInfo,
    TrialState,
    Value,
)
from headrace.client.names import study_name, trial_name
from headrace.client.repeats import trials_warnings
from headrace.client.warning import warn as tell
from headrace.errors import InvalidFieldError, Violation, show_value
from headrace.spec import StudySpec
from headrace.spec.values import params_to_proto
from headrace.v1 import study_pb2 as pb

_FORGOTTEN_AT_ONCE = 1000
_LOOKED_AT = 3
_RETRIED = "Give the numbers of trials, such as retry([3, 5])."


class StudyHandle(Protocol):
    """A handle of one study."""

    @property
    def name(self) -> str: ...


def status(study: StudyHandle) -> Flow[StudyInfo]:
    """The study as of now."""
    response = yield from rpc(pb.GetStudyResponse, pb.GetStudyRequest(name=study_name(study.name)))
    return convert.study(response.study)


def best(study: StudyHandle) -> Flow[TrialInfo | None]:
    """The best feasible trial so far, not counting the baseline; None before the first finite value. A failed
    trial (its `failed` is true) is the best only while no other trial has a value. Trials are compared by their
    `score`, the value that counts by the objective's `scope`. Ties go to a completed trial, then to the one that
    trained further. `checkpoint` is the trial's last one, and `best_checkpoint` that of its best value if the
    study keeps it. `params` are those of `score_step`; a member of a population may have changed them since
    (`last_params`).

    Raises SeveralObjectivesError for a study with several objectives: see `front`.
    """
    return (yield from status(study)).best


def front(study: StudyHandle) -> Flow[tuple[TrialInfo, ...]]:
    """With several objectives: the Pareto front, the feasible trials that no other trial beats in every objective.

    They are ordered by the first objective.
    """
    return (yield from status(study)).front


def trials(
    study: StudyHandle,
    states: Iterable[str] | str = (),
    *,
    filter: str = "",  # noqa: A002  # the name of the field
    order_by: str = "",
) -> Flow[Listing[TrialInfo]]:
    """The study's trials by number. `states` selects by state, such as `running`, or by how a trial ended, such
    as `failed`; `filter` by any field, parameter or metric, such as `lr>1e-3 val_loss<0.1`. `order_by` is a key to
    sort by, such as `score` or `-param.lr`, or `leading` for the best score first.
    """
    chosen = _chosen_states(states)
    order = tuple((yield from status(study)).spec.space)
    over = {TrialState.TERMINATED} if chosen & set(TerminationReason) else set()
    request = pb.ListTrialsRequest(
        page_size=PAGE_SIZE,
        states=[number for number, state in convert.TRIAL_STATES.items() if state in chosen | over],
        filter=filter,
        order_by=order_by,
    )
    found = Listing[TrialInfo]()
    while True:
        page, request.page_token = yield from _trials_page(study, request, order)
        found += [trial for trial in page if not chosen or {trial.state, trial.reason} & chosen]
        found.unshown += page.unshown
        if not request.page_token:
            return found


def trials_page(
    study: StudyHandle,
    space: Iterable[str],
    *,
    size: int,
    token: str = "",
    filter: str = "",  # noqa: A002  # the name of the field
    order_by: str = "",
) -> Flow[tuple[Listing[TrialInfo], str]]:
    """One page of what `trials` returns, and the token of the next one; empty on the last page. `space` names the
    study's parameters in order.
    """
    request = pb.ListTrialsRequest(page_size=size, page_token=token, filter=filter, order_by=order_by)
    return (yield from _trials_page(study, request, tuple(space)))


def _trials_page(
    study: StudyHandle, request: pb.ListTrialsRequest, order: tuple[str, ...]
) -> Flow[tuple[Listing[TrialInfo], str]]:
    request.study = study_name(study.name)
    page = yield from rpc(pb.ListTrialsResponse, request)
    found = Listing[TrialInfo]()
    found += [convert.trial(trial, order=order) for trial in page.trials]
    found.unshown += map(convert.unshown, page.unshown)
    return found, page.next_page_token


def _chosen_states(states: Iterable[str] | str) -> set[str]:
    chosen = {states} if isinstance(states, str) else set(states)
    known = [*convert.TRIAL_STATES.values(), *TerminationReason]
    unknown = sorted(map(str, chosen.difference(known)))
    if unknown:
        remedy = f"Choose among {', '.join(known)}."
        message = "has words that are not states of a trial"
        raise InvalidFieldError(
            [Violation(field="states", value=", ".join(unknown), message=message, remedy=remedy)]
        )
    return chosen


def room(study: StudyHandle) -> Flow[Room]:
    """What the study's trials need and no connected worker has, even if its slots were all free."""
    response = yield from rpc(pb.FindRoomResponse, pb.FindRoomRequest(study=study_name(study.name)))
    return Room(lacking=tuple(response.lacking), sizes=response.sizes)


def importance(study: StudyHandle) -> Flow[tuple[Importance, ...]]:
    """How much each parameter matters for being among the best trials, for each objective (Optuna's PED-ANOVA).

    Trials are compared at one step, the highest rung that enough of them reached. If the importance is unknown,
    `reason` says why, such as too few trials. Each call computes it again, which takes some seconds for a large
    study.
    """
    request = pb.MeasureImportanceRequest(study=study_name(study.name))
    response = yield from rpc(pb.MeasureImportanceResponse, request)
    return tuple(convert.importance(one) for one in response.importances)


def reports(study: StudyHandle) -> Flow[Listing[Report]]:
    """Every report of the study's trials."""
    return reports_of(study_name(study.name))


def curves(
    study: StudyHandle,
    *,
    filter: str = "",  # noqa: A002  # the name of the field
    metrics: Iterable[str] = (),
    most_points: int = 0,
) -> Flow[Curves]:
    """The study's trials with the curves of all their metrics, or of some, in columns. A trial has at most
    `most_points` points, 1000 by default: the first, the last, and evenly spaced ones between.
    """
    found = Curves(space=(yield from status(study)).spec.space)
    request = pb.ReadCurvesRequest(
        study=study_name(study.name),
        filter=filter,
        metrics=[metrics] if isinstance(metrics, str) else metrics,
        most_points=whole_number("most_points", most_points, "Give 2 to 10,000."),
    )
    while True:
        page = yield from rpc(pb.ReadCurvesResponse, request)
        found.add(page)
        if not page.next_page_token:
            return found
        request.page_token = page.next_page_token


def trial_numbers(
    study: StudyHandle,
    filter: str = "",  # noqa: A002  # the name of the field
) -> Flow[list[int]]:
    """The numbers of the study's trials that match a filter, in order. Much faster than `trials` if there are many."""
    request = pb.ReadCurvesRequest(study=study_name(study.name), filter=filter, numbers_only=True)
    found: list[int] = []
    while True:
        page = yield from rpc(pb.ReadCurvesResponse, request)
        found += page.numbers
        if not page.next_page_token:
            return found
        request.page_token = page.next_page_token


def annotate_study(
    study: StudyHandle,
    *,
    add_tags: Iterable[str] = (),
    remove_tags: Iterable[str] = (),
    note: str | None = None,
) -> Flow[Annotation]:
    """Changes the study's tags and, unless `note` is None, its note. Returns both as they are now."""
    return (yield from annotated(study_name(study.name), add_tags, remove_tags, note))


def pause_study(study: StudyHandle) -> Flow[StudyInfo]:
    """Pauses the study: running trials continue to their next rung and pause there, and no others start."""
    request = pb.PauseStudyRequest(request_id=request_id(), name=study_name(study.name))
    response = yield from rpc(pb.PauseStudyResponse, request)
    return convert.study(response.study)


def resume_study(study: StudyHandle) -> Flow[StudyInfo]:
    """Undoes `pause`."""
    request = pb.ResumeStudyRequest(request_id=request_id(), name=study_name(study.name))
    response = yield from rpc(pb.ResumeStudyResponse, request)
    return convert.study(response.study)


def stop_study(study: StudyHandle, reason: str = "") -> Flow[StudyInfo]:
    """Cancels every live trial and ends the study."""
    request = pb.StopStudyRequest(request_id=request_id(), name=study_name(study.name), reason=reason)
    response = yield from rpc(pb.StopStudyResponse, request)
    return convert.study(response.study)


def delete_study(study: StudyHandle) -> Flow[None]:
    """Removes an ended study with its trials and events. Its checkpoints and logs are deleted within the hour,
    on every worker that has some.
    """
    request = pb.DeleteStudyRequest(request_id=request_id(), name=study_name(study.name))
    yield from rpc(pb.DeleteStudyResponse, request)


def forget_checkpoints(study: StudyHandle, uris: Iterable[str], *, cursor: int) -> Flow[None]:
    """Makes the scheduler forget these checkpoints, whose files are going to be deleted: the study's trials no longer
    refer to them. Raises `StudyNotEndedError` if the study has not ended, and `InvalidFieldError` if `cursor` is no
    longer that of its newest event.
    """
    gone = list(uris)
    for start in range(0, len(gone), _FORGOTTEN_AT_ONCE):
        some = gone[start : start + _FORGOTTEN_AT_ONCE]
        request = pb.ForgetCheckpointsRequest(study=study_name(study.name), uris=some, cursor=cursor)
        yield from rpc(pb.ForgetCheckpointsResponse, request)


def add_trials(study: StudyHandle, params: Iterable[Mapping[str, Value]]) -> Flow[list[TrialInfo]]:
    """Adds configurations, each a mapping, to try next, after those that are already proposed."""
    configurations = list(params) if isinstance(params, Iterable) else [params]
    if isinstance(params, Mapping) or not all(isinstance(values, Mapping) for values in configurations):
        message, remedy = "is not a list of configurations", 'Give a list of mappings, such as [{"lr": 0.1}].'
        raise InvalidFieldError(
            [Violation(field="params", value=show_value(params), message=message, remedy=remedy)]
        )
    request = pb.AddTrialsRequest(
        request_id=request_id(),
        study=study_name(study.name),
        parameters=[
            params_to_proto(parameters(f"params[{place}]", values))
            for place, values in enumerate(configurations)
        ],
    )
    response = yield from rpc(pb.AddTrialsResponse, request)
    return [convert.trial(trial) for trial in response.trials]


def retry_warnings(study: StudyHandle, numbers: Iterable[int] | int = ()) -> Flow[list[str]]:
    """Warnings before `retry(...)` of these trials, or of all that failed: which of them failed where a
    learning-rate schedule ends, and would fail again. Empty if there are none.
    """
    chosen = whole_numbers("trials", numbers, _RETRIED)
    failed = yield from trials(study, TerminationReason.FAILED)
    return warnings_of_retry(one for one in failed if not chosen or one.number in chosen)


def retry_trials(study: StudyHandle, trials: Iterable[int] | int = (), *, warn: bool = True) -> Flow[Retried]:
    """Retries failed trials from their last checkpoints, or from the start if they have none: those with these
    numbers, which may include cancelled ones, or all that failed. Their failure counts are reset. A study that
    has ended becomes active again, and trials that its end cut off continue too. Each of `retry_warnings` is
    issued as a `UserWarning`, unless `warn=False`.
    """
    numbers = whole_numbers("trials", trials, _RETRIED)
    if warn:
        for message in (yield from retry_warnings(study, numbers)):
            tell(message)
    request = pb.RetryTrialsRequest(
        request_id=request_id(), study=study_name(study.name), trial_numbers=numbers
    )
    response = yield from rpc(pb.RetryTrialsResponse, request)
    return Retried(trials=tuple(response.trial_numbers), others=response.others)


def extension_warnings(study: StudyHandle, *, trials: int = 0, steps: int = 0) -> Flow[list[str]]:
    """Warnings before `extend`. With `trials`: how many of these trials would repeat a point of a finite space.
    With `steps`: which learning-rate schedules of trials that would continue end before that budget, what will
    happen there, and the remedy. With either: whether trials that have ended may start over because their
    checkpoints were deleted. Empty if there are none.
    """
    trials = whole_number("trials", trials, "Give how many trials more, such as 5.")
    steps = whole_number("steps", steps, "Give the new full budget in steps, such as 81.")
    found = yield from status(study)
    said = [*trials_warnings(found.spec, trials)] if trials > 0 else []
    if steps > 0:
        said += schedules_warnings(found, steps)
    if steps > 0 or (trials > 0 and found.state.ended):
        said += yield from _start_over_warnings(study, found.spec, steps=steps > 0)
    return said


def _start_over_warnings(study: StudyHandle, spec: StudySpec, *, steps: bool) -> Flow[list[str]]:
    """Whether trials that may continue had a checkpoint and have none any more."""
    over = yield from trials(study, TrialState.TERMINATED)
    lost = [one for one in over if may_start_over(one, steps=steps, budget=spec.max_steps)]
    for one in lost[:_LOOKED_AT]:  # else the program saves none, and says so as it runs
        reports = yield from reports_of(trial_name(study.name, one.number))
        if deleted_checkpoint(one, reports, spec) is not None:
            return [start_over_warning([one.number for one in lost])]
    return []


def extend_study(
    study: StudyHandle, *, trials: int = 0, steps: int = 0, warn: bool = True
) -> Flow[StudyInfo]:
    """Continues a study, which may have ended, with this many more `trials`, or with `steps` as the new full
    budget.

    With a new budget, the policy's rungs extend to it. Trials that completed the old one continue from their
    checkpoints if the policy promotes them. Their results stay: a trial that then fails or gets worse counts
    with its earlier result (`TrialInfo.counted_end`). Before anything is changed, each of `extension_warnings`
    is issued as a `UserWarning`, unless `warn=False`.
    """
    trials = whole_number("trials", trials, "Give how many trials more, such as extend(trials=5).")
    steps = whole_number("steps", steps, "Give the new full budget in steps, such as extend(steps=81).")
    if warn:
        for message in (yield from extension_warnings(study, trials=trials, steps=steps)):
            tell(message)
    request = pb.ExtendStudyRequest(
        request_id=request_id(), name=study_name(study.name), trials=trials, steps=steps
    )
    response = yield from rpc(pb.ExtendStudyResponse, request)
    return convert.study(response.study)
