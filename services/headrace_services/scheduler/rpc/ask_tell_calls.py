"""Ask/tell: trials of studies without a template, run in the user's own loop.

A caller owns a trial only through its lease. The lease lasts `lease_time` from each report or renewal. After that
the trial is offered to other callers. Until one of them gets it, the first caller's messages still count
(`core.stale_leases`). From then on they are stale and change nothing.
"""
# ruff: noqa: ARG002  (every method takes the call's context)

import asyncio
from collections.abc import Mapping

from msgspec import Struct

from headrace.bounds.calls import ERROR
from headrace.errors import LeaseStaleError, NotAskTellError, lease_gone
from headrace.spec.objective import unread_constraints
from headrace.v1 import event_pb2
from headrace.v1 import study_pb2 as pb
from headrace_services.scheduler.attempt_messages import attempt_code
from headrace_services.scheduler.core.inputs import (
    Accepted,
    ExitedArrived,
    Outcome,
    ProposalComingError,
    Renewed,
    ReportArrived,
    Stale,
    Suggest,
    Suggested,
)
from headrace_services.scheduler.core.records import Checkpoint, Study
from headrace_services.scheduler.engine.submissions import Shown
from headrace_services.scheduler.rpc import convert, names
from headrace_services.scheduler.rpc.caller import caller
from headrace_services.scheduler.rpc.calls import Calls, Context, identity_of, shown_trial
from headrace_services.scheduler.rpc.checks import Checks
from headrace_services.scheduler.store import leases, studies
from headrace_services.scheduler.store.database import transaction
from headrace_services.scheduler.store.requests import Request

DEFAULT_LEASE_S = 6 * 3600.0
"""For callers that set none, and so may not renew: it must be long enough for a long evaluation."""
LONGEST_WAIT_S = 50.0
ASK_AGAIN_S = 1.0


class AskTellCalls(Calls):
    """The calls of the user's own loop."""

    async def SuggestTrial(
        self, request: pb.SuggestTrialRequest, context: Context
    ) -> pb.SuggestTrialResponse:
        """The next trial for the caller, with a lease; no trial if there is nothing to run now.

        If a model is computing the next trial, the call waits for it within its deadline.
        """
        checks = Checks()
        asking = _valid_asking(checks, request)
        checks.done()
        assert asking is not None
        request_identity = identity_of(request, request.request_id)
        study_id = asking.study
        study = self.known(study_id)
        if study is None:
            async with transaction(self.hub.engine) as conn:
                study = await studies.find(conn, caller().project, study_id)
        loop = asyncio.get_running_loop()
        until = loop.time() + _patience_s(context)
        async with self.hub.watching(study.id if study else 0) as changed:
            while True:
                try:
                    return await self._suggest(request_identity, asking)
                except ProposalComingError:
                    left_s = until - loop.time()
                    if left_s <= 0:
                        return pb.SuggestTrialResponse()
                    # Another replica may be computing it, and would not wake anyone here.
                    await changed.wait(min(left_s, ASK_AGAIN_S))

    async def _suggest(self, request: Request | None, asking: "_Asking") -> pb.SuggestTrialResponse:
        """Ask once. Raises ProposalComingError if a model is computing the next trial."""

        def command(study: Study) -> Suggest:
            _require_ask_tell(study)
            return Suggest(client_id=asking.client_id, ttl_s=asking.ttl_s)

        response = await self.change(request, asking.study, command, _suggestion)
        return pb.SuggestTrialResponse.FromString(response)

    async def ReportTrial(self, request: pb.ReportTrialRequest, context: Context) -> pb.ReportTrialResponse:
        """Record a result and say what to do next. Raises LeaseStaleError for a lease that is over."""
        checks = Checks()
        name = _valid_lease(checks, request.lease)
        uri = request.checkpoint_uri
        checks.done()
        assert name is not None

        def command(study: Study) -> ReportArrived:
            _require_ask_tell(study)
            return ReportArrived(
                lease_id=request.lease.lease_id,
                number=name.number,
                attempt=request.lease.attempt,
                sequence=None,
                step=request.step,
                metrics=dict(request.metrics),
                checkpoint=Checkpoint(uri=uri, step=request.step) if uri else None,
                code=attempt_code(request.code) if request.HasField("code") else None,
            )

        def answer(outcome: Outcome, shown: Shown) -> pb.ReportTrialResponse:
            _require_held(outcome, name)
            assert isinstance(outcome, Accepted)
            assert outcome.decision is not None
            stops = outcome.decision.action == "STOP"
            return pb.ReportTrialResponse(
                decision=convert.decision(outcome.decision),
                missing_metrics=_missing(shown, request.metrics) if stops else (),
            )

        request_identity = identity_of(request, request.request_id)
        response = await self.change(request_identity, name.study, command, answer)
        return pb.ReportTrialResponse.FromString(response)

    async def CompleteTrial(
        self, request: pb.CompleteTrialRequest, context: Context
    ) -> pb.CompleteTrialResponse:
        """End a trial, as infeasible or failed if the request says so. A trial that is already over is returned as
        it is."""
        checks = Checks()
        name = _valid_lease(checks, request.lease)
        checks.done()
        assert name is not None
        outcome = "INFEASIBLE" if request.infeasible else "FAILED" if request.error else "FINISHED"
        ending = _exit(request.lease, name, outcome, ERROR.kept(request.error))
        identity = identity_of(request, request.request_id)
        return await self._end(identity, name, ending)

    async def RenewTrial(self, request: pb.RenewTrialRequest, context: Context) -> pb.RenewTrialResponse:
        """Restart the lease time. A lease that has lapsed is restored in the study's cycle.

        Raises LeaseStaleError for a lease that is over.
        """
        checks = Checks()
        name = _valid_lease(checks, request.lease)
        checks.done()
        assert name is not None
        ref, project = request.lease, caller().project
        async with transaction(self.hub.engine) as conn:
            if await leases.renew(
                conn, project, name.study, name.number, lease_id=ref.lease_id, attempt=ref.attempt
            ):
                return pb.RenewTrialResponse()

        def command(study: Study) -> Renewed:
            _require_ask_tell(study)
            return Renewed(lease_id=ref.lease_id, number=name.number, attempt=ref.attempt, sequence=None)

        def answer(outcome: Outcome, _: Shown) -> pb.RenewTrialResponse:
            _require_held(outcome, name)
            return pb.RenewTrialResponse()

        await self.change(None, name.study, command, answer)
        return pb.RenewTrialResponse()

    async def ReleaseTrial(
        self, request: pb.ReleaseTrialRequest, context: Context
    ) -> pb.ReleaseTrialResponse:
        """Return a trial. A trial that is already over is returned as it is."""
        checks = Checks()
        name = _valid_lease(checks, request.lease)
        checks.done()
        assert name is not None
        ending = _exit(request.lease, name, "RELEASED", "released by its client")
        identity = identity_of(request, request.request_id)
        response = await self._end(identity, name, ending)
        return pb.ReleaseTrialResponse(trial=response.trial)

    async def _end(
        self, request: Request | None, name: names.TrialName, ending: ExitedArrived
    ) -> pb.CompleteTrialResponse:
        """End a lease. Raises LeaseStaleError if it was over, unless it was the last lease of a trial that is over
        too."""

        def command(study: Study) -> ExitedArrived:
            _require_ask_tell(study)
            return ending

        def answer(outcome: Outcome, shown: Shown) -> pb.CompleteTrialResponse:
            _require_held(outcome, name)
            trial = shown_trial(shown, name.number)
            ends = isinstance(outcome, Accepted) and ending.outcome == "FINISHED"
            return pb.CompleteTrialResponse(
                trial=trial, missing_metrics=_missing(shown, trial.metrics) if ends and trial.step else ()
            )

        return pb.CompleteTrialResponse.FromString(await self.change(request, name.study, command, answer))


def _require_held(outcome: Outcome, name: names.TrialName) -> None:
    """Refuse a message whose lease is over, with the cause. Nothing is stored, so a repeat is checked again."""
    if isinstance(outcome, Stale) and not outcome.over:
        raise LeaseStaleError(lease_gone(name.number, outcome.why), remedy=outcome.remedy or None)


def _suggestion(outcome: Outcome, shown: Shown) -> pb.SuggestTrialResponse:
    assert isinstance(outcome, Suggested)
    if outcome.trial is None or outcome.lease is None:
        return pb.SuggestTrialResponse(done=outcome.done)
    return pb.SuggestTrialResponse(
        trial=shown_trial(shown, outcome.trial.number),
        lease=convert.lease(shown.study.name, outcome.lease),
        next_milestone=outcome.trial.milestone or 0,
    )


def _missing(shown: Shown, metrics: Mapping[str, float]) -> list[str]:
    """The metrics that the study's constraints read and that a trial's last report lacks."""
    return unread_constraints(shown.study.spec.constraints, metrics) if isinstance(shown.study, Study) else []


def _patience_s(context: Context) -> float:
    """How long to wait for a proposal in progress: within the call's deadline, with time to answer."""
    left_s = context.time_remaining()
    return LONGEST_WAIT_S if left_s is None else min(LONGEST_WAIT_S, left_s - max(0.5, 0.1 * left_s))


class _Asking(Struct, frozen=True, kw_only=True):
    """The caller that asks for a trial, the study, and the lease time."""

    study: str
    client_id: str
    ttl_s: float


def _valid_asking(checks: Checks, request: pb.SuggestTrialRequest) -> _Asking | None:
    study_id = checks.run(lambda: names.parse_study(request.study, field="study"))
    checks.required("client_id", request.client_id)
    ttl_s = DEFAULT_LEASE_S
    if request.HasField("lease_time"):
        ttl_s = request.lease_time.ToTimedelta().total_seconds()
    return None if study_id is None else _Asking(study=study_id, client_id=request.client_id, ttl_s=ttl_s)


def _exit(ref: event_pb2.LeaseRef, name: names.TrialName, outcome: str, error: str) -> ExitedArrived:
    return ExitedArrived(
        lease_id=ref.lease_id,
        number=name.number,
        attempt=ref.attempt,
        sequence=None,
        outcome=outcome,
        error=error,
    )


def _require_ask_tell(study: Study) -> None:
    if study.spec.template is not None:
        raise NotAskTellError(f"the trials of study '{study.name}' are run by workers")


def _valid_lease(checks: Checks, ref: event_pb2.LeaseRef) -> names.TrialName | None:
    checks.required("lease.lease_id", ref.lease_id)
    checks.at_least("lease.attempt", ref.attempt, 1)
    return checks.run(lambda: names.parse_trial(ref.trial, field="lease.trial"))
