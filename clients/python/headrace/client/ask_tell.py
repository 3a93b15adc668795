"""The operations of ask and tell, as flows: trials that the caller runs in its own loop, under a lease."""

import time
import uuid
from collections.abc import Iterable, Mapping
from typing import SupportsFloat

from google.protobuf.duration_pb2 import Duration

from headrace.bounds.calls import LEASE_TIME
from headrace.client import convert, convert_events, own_code
from headrace.client.arguments import seconds, timeout
from headrace.client.events import Decision
from headrace.client.flow import Flow, Sleep, rpc
from headrace.client.flows import request_id
from headrace.client.model import StudyState, Suggestion, TrialInfo, TrialState
from headrace.client.names import study_name
from headrace.client.renewing import Held
from headrace.client.study_flows import StudyHandle, status, trials
from headrace.client.warning import warn, warn_of_failure
from headrace.errors import HeadraceError, InvalidFieldError, Violation, show_value
from headrace.metrics import MetricError, to_floats
from headrace.steps import whole
from headrace.v1 import study_pb2 as pb

LEASE_S = 600.0
"""How long others wait for a trial whose program has died, unless `lease_s` says otherwise: these clients renew
their leases (`client.renewing`).
"""
_ASK_AGAIN_S = (0.2, 0.5, 1.0, 2.0)
_PATIENCE_S = 10.0
"""After waiting this long, the caller gets a warning that says what it waits for."""
_TRIALS_SHOWN = 8


def suggest(
    study: StudyHandle,
    *,
    client_id: str | None = None,
    lease_s: float | None = None,
    timeout_s: float | None = None,
) -> Flow[Suggestion | None]:
    """The next trial to run in the caller's own loop; None when the study is over, with a warning if it failed.

    While there is nothing to run (every trial waits for the results of others), this waits at most `timeout_s`,
    then raises `TimeoutError`. A warning about a long wait says what it waits for."""
    own_code.watch()
    client_id = client_id or uuid.uuid4().hex
    timeout_s = timeout(timeout_s)
    lease_time = Duration()
    lease_s = LEASE_S if lease_s is None else seconds("lease_s", lease_s, within=LEASE_TIME)
    lease_time.FromNanoseconds(round(lease_s * 1e9))
    began = time.monotonic()
    attempt, warned = 0, False
    while True:
        request = pb.SuggestTrialRequest(
            request_id=request_id(), study=study_name(study.name), client_id=client_id, lease_time=lease_time
        )
        answer = yield from rpc(pb.SuggestTrialResponse, request)
        if answer.HasField("trial"):
            return convert.suggestion(answer)
        if answer.done:
            yield from _warn_of_failure(study)
            return None
        waited_s = time.monotonic() - began
        if timeout_s is not None and waited_s >= timeout_s:
            why = yield from _waiting_for(study)
            raise TimeoutError(f"Study {study.name} has had no trial to run for {timeout_s:g} s{why}")
        if not warned and waited_s >= _PATIENCE_S:
            why = yield from _waiting_for(study)
            warn(f"Study {study.name} has no trial to run now{why}")
            warned = True
        yield Sleep(_ASK_AGAIN_S[min(attempt, len(_ASK_AGAIN_S) - 1)])
        attempt += 1


def _warn_of_failure(study: StudyHandle) -> Flow[None]:
    try:
        info = yield from status(study)
    except HeadraceError:  # deleted or unreachable: the caller gets its answer anyway
        return
    warn_of_failure(info)


def _waiting_for(study: StudyHandle) -> Flow[str]:
    """The end of a sentence: who holds the study's trials, and what can be done."""
    try:
        info = yield from status(study)
        held = yield from trials(study, (TrialState.RUNNING, TrialState.RESUMED))
    except HeadraceError:
        return "; ask again later."
    if info.state is StudyState.PAUSED:
        return ": it is paused. Call study.resume()."
    if not held:
        return "; ask again later."
    numbers = ", ".join(str(trial.number) for trial in held[:_TRIALS_SHOWN])
    more = ", …" if len(held) > _TRIALS_SHOWN else ""
    return (
        f": callers hold trial{'s' * (len(held) > 1)} {numbers}{more}. One whose program has exited is offered "
        "again after its lease_s (10 minutes by default). To release one that this program holds but no longer runs, "
        "as after Ctrl-C in a notebook, call asked.give_back(). "
        f"`headrace stop {study.name} {held[0].number}` ends a trial for good."
    )


def report(
    handle: Held,
    step: int,
    metrics: Mapping[str, SupportsFloat | None] | None = None,
    /,
    *,
    checkpoint_uri: str = "",
    **named: SupportsFloat | None,
) -> Flow[Decision]:
    """Reports a result, as in `report(3, loss=0.2)` or `report(3, {"val/loss": 0.2})`, and returns what to do
    next.

    `checkpoint_uri` says where the caller saved its state; whoever continues the trial finds it as
    `checkpoint.uri`. After PAUSE or STOP the caller no longer holds the trial: leave it and ask again."""
    code = own_code.untold(handle.lease.lease_id)
    request = pb.ReportTrialRequest(
        request_id=request_id(),
        lease=convert.lease_to_proto(handle.lease),
        step=_step(step),
        metrics=_floats(metrics, named),
        checkpoint_uri=checkpoint_uri,
        code=code,
    )
    response = yield from rpc(pb.ReportTrialResponse, request)
    own_code.told(handle.lease.lease_id, code)
    _warn_of_missing(handle, response.missing_metrics)
    decision = convert_events.decision(response.decision)
    handle.held = decision.goes_on
    return decision


def complete(handle: Held, error: str | BaseException | None = None) -> Flow[TrialInfo]:
    """Reports that the caller is done with the trial or, with `error`, that the trial failed (charged to its
    retries).
    """
    if not isinstance(error, str | BaseException | None):
        message, remedy = (
            "is neither a string nor an exception",
            "Pass results to report(step, metric=value).",
        )
        raise InvalidFieldError(
            [Violation(field="error", value=show_value(error), message=message, remedy=remedy)]
        )
    text = f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else error or ""
    request = pb.CompleteTrialRequest(
        request_id=request_id(), lease=convert.lease_to_proto(handle.lease), error=text
    )
    response = yield from rpc(pb.CompleteTrialResponse, request)
    handle.held = False
    _warn_of_missing(handle, response.missing_metrics)
    return convert.trial(response.trial)


def infeasible(handle: Held, reason: str) -> Flow[TrialInfo]:
    """Reports that the configuration makes no sense, as in `infeasible("8 heads do not divide 100 features")`.

    This ends the trial: it is not tried again and does not count as a failure. It has no score, whatever it
    reported before. The sampler avoids such configurations.
    """
    if not isinstance(reason, str):
        message, remedy = (
            "is not a string",
            'Say why, such as infeasible("8 heads do not divide 100 features").',
        )
        raise InvalidFieldError(
            [Violation(field="reason", value=show_value(reason), message=message, remedy=remedy)]
        )
    request = pb.CompleteTrialRequest(
        request_id=request_id(),
        lease=convert.lease_to_proto(handle.lease),
        error=reason.strip(),
        infeasible=True,
    )
    response = yield from rpc(pb.CompleteTrialResponse, request)
    handle.held = False
    return convert.trial(response.trial)


def give_back(handle: Held) -> Flow[TrialInfo]:
    """Gives the trial back: whoever asks next, which may be this caller, continues from its last checkpoint.
    Nothing is charged.
    """
    request = pb.ReleaseTrialRequest(request_id=request_id(), lease=convert.lease_to_proto(handle.lease))
    response = yield from rpc(pb.ReleaseTrialResponse, request)
    handle.held = False
    return convert.trial(response.trial)


def _warn_of_missing(handle: Held, metrics: Iterable[str]) -> None:
    """Warn that a trial ended without a metric that a constraint reads. The text is the same for all trials of a
    study, so Python shows it once.
    """
    missing = " and ".join(f"'{metric}'" for metric in metrics)
    if missing:
        warn(
            f"Study {handle.lease.trial.study}: a trial ended and its last report has no {missing}, which "
            f"a constraint uses. Such a report never counts as a result: report {missing} together with the objective."
        )


def _step(step: object) -> int:
    try:
        found = whole(step)
    except TypeError:
        found = -1
    if 0 <= found < 1 << 63:
        return found
    remedy = "Report the number of steps done so far, then the metrics by name, such as report(3, loss=0.2)."
    raise InvalidFieldError(
        [
            Violation(
                field="step", value=show_value(step), message="is not a whole number of steps", remedy=remedy
            )
        ]
    )


def _floats(metrics: object, named: Mapping[str, object]) -> dict[str, float]:
    try:
        return to_floats(metrics, named)
    except MetricError as error:
        field = f"metrics.{error.name}" if error.name else "metrics"
        remedy = f"{error.remedy[0].upper()}{error.remedy[1:]}."
        violation = Violation(
            field=field, value=show_value(error.value), message=error.problem, remedy=remedy
        )
        raise InvalidFieldError([violation]) from None
