"""Ask and tell: trials of studies without a template, run in a loop of the user's own.

The caller's lease is all that makes it the trial's owner. It lasts `lease_time` from each report; after that the
trial is offered to another caller, and whatever the first one still says about it is stale and changes nothing.
"""
# ruff: noqa: ARG002  (every method takes the call's context)

import asyncio
from collections.abc import AsyncIterator

from msgspec import Struct
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace import bounds
from headrace.bounds.calls import ERROR, LEASE_TIME
from headrace.errors import LeaseStaleError, NotAskTellError, lease_gone
from headrace.v1 import event_pb2
from headrace.v1 import study_pb2 as pb
from headrace_services.scheduler.arrivals import (
    Accepted,
    ExitedArrived,
    Outcome,
    ProposalComingError,
    ReportArrived,
    Stale,
    Suggest,
    Suggested,
)
from headrace_services.scheduler.lifecycle import State, StudyState
from headrace_services.scheduler.records import Checkpoint, Study
from headrace_services.scheduler.rpc import convert, names
from headrace_services.scheduler.rpc.calls import Calls, Context, identify, shown_trial
from headrace_services.scheduler.rpc.checks import Checks
from headrace_services.scheduler.rpc.interceptors import UNARY_DEADLINE_S, presentable
from headrace_services.scheduler.step.submissions import Shown
from headrace_services.scheduler.store import studies, trials
from headrace_services.scheduler.store.database import transaction
from headrace_services.scheduler.store.requests import Request

DEFAULT_LEASE_S = 600.0
SHORTEST_LEASE_S = 1.0
LONGEST_WAIT_S = 60.0
ASK_AGAIN_S = 1.0


class AskTellCalls(Calls):
    """The user's own loop."""

    async def SuggestTrial(
        self, request: pb.SuggestTrialRequest, context: Context
    ) -> pb.SuggestTrialResponse:
        """The next trial for the caller, with a lease; no trial where there is nothing to run now.

        Where a model is at work on the next trial, the call waits for it within its deadline.
        """
        checks = Checks()
        asking = _valid_asking(checks, request)
        checks.done()
        assert asking is not None
        request_identity = identify(request, request.request_id)
        study_id = asking.study
        study = self.known(study_id)
        if study is None:
            async with transaction(self.hub.engine) as conn:
                study = await studies.find(conn, study_id)
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
                    # Another replica may be the one that computes it, and wakes nobody here.
                    await changed.wait(min(left_s, ASK_AGAIN_S))

    async def _suggest(self, request: Request | None, asking: "_Asking") -> pb.SuggestTrialResponse:
        """Ask once. Raises ProposalComingError where a model is at work on the next trial."""

        def arrival(study: Study) -> Suggest:
            _require_ask_tell(study)
            return Suggest(client_id=asking.client_id, ttl_s=asking.ttl_s)

        response = await self.change(
            request, asking.study, arrival, _suggestion, shows=_suggested, lasting=True
        )
        return pb.SuggestTrialResponse.FromString(response)

    async def ReportTrial(self, request: pb.ReportTrialRequest, context: Context) -> pb.ReportTrialResponse:
        """Record a result and say what to do next. Raises LeaseStaleError for a lease that is over."""
        checks = Checks()
        name = _valid_lease(checks, request.lease)
        uri = request.checkpoint_uri
        checks.done()
        assert name is not None

        def arrival(study: Study) -> ReportArrived:
            _require_ask_tell(study)
            return ReportArrived(
                lease_id=request.lease.lease_id,
                number=name.number,
                epoch=request.lease.epoch,
                sequence=None,
                step=request.step,
                metrics=dict(request.metrics),
                checkpoint=Checkpoint(uri=uri, step=request.step) if uri else None,
            )

        request_identity = identify(request, request.request_id)
        response = await self.change(request_identity, name.study, arrival, _decision, lasting=True)
        return pb.ReportTrialResponse.FromString(await self._fresh(response, request.lease, name))

    async def CompleteTrial(
        self, request: pb.CompleteTrialRequest, context: Context
    ) -> pb.CompleteTrialResponse:
        """End a trial, as failed where there is an error. One that is over already is returned as it is.

        With `next`, what is to run next is asked for, as a rule in the same step. It does not wait for a model.
        """
        checks = Checks()
        name = _valid_lease(checks, request.lease)
        asking = _valid_next(checks, request, name) if request.HasField("next") else None
        checks.done()
        assert name is not None
        outcome = "FAILED" if request.error else "FINISHED"
        ending = _exit(request.lease, name, outcome, ERROR.kept(request.error))
        identity = identify(request, request.request_id)
        if asking is None:
            return await self._end(identity, request.lease, name, ending)
        of_next = identify(request.next, request.next.request_id)
        if self.known(name.study) is None:  # both would look for the study, and one might overtake the other
            response = await self._end(identity, request.lease, name, ending)
            response.next.CopyFrom(await self._suggest_or_nothing(of_next, asking))
            return response
        # It begins when the end of this trial waits for its step, and joins it there.
        following = asyncio.create_task(self._suggest_or_nothing(of_next, asking))
        try:
            response = await self._end(identity, request.lease, name, ending)
        except BaseException:
            following.cancel()  # whatever became of it: with the same id the caller gets what it got
            await asyncio.gather(following, return_exceptions=True)
            raise
        response.next.CopyFrom(await following)
        return response

    async def ReleaseTrial(
        self, request: pb.ReleaseTrialRequest, context: Context
    ) -> pb.ReleaseTrialResponse:
        """Give a trial back. One that is over already is returned as it is."""
        checks = Checks()
        name = _valid_lease(checks, request.lease)
        checks.done()
        assert name is not None
        ending = _exit(request.lease, name, "RELEASED", "given back by its client")
        identity = identify(request, request.request_id)
        response = await self._end(identity, request.lease, name, ending)
        return pb.ReleaseTrialResponse(trial=response.trial)

    async def TellTrials(
        self, request_iterator: AsyncIterator[pb.TellTrialsRequest], context: Context
    ) -> None:
        """Answer reports and ends one after the other, until the caller is gone or this scheduler shuts down."""
        async with self.hub.until_drained():
            writing = asyncio.Future[None]()
            writing.set_result(None)
            try:
                async for request in request_iterator:
                    answer = await self._told(request, context)
                    await writing
                    # The next request is read meanwhile.
                    writing = asyncio.ensure_future(context.write(answer))
            finally:
                await asyncio.gather(writing, return_exceptions=True)

    async def _told(self, request: pb.TellTrialsRequest, context: Context) -> pb.TellTrialsResponse:
        try:
            bounds.check(request)
            async with asyncio.timeout(UNARY_DEADLINE_S):
                match request.WhichOneof("request"):
                    case "report":
                        return pb.TellTrialsResponse(report=await self.ReportTrial(request.report, context))
                    case "complete":
                        ended = await self.CompleteTrial(request.complete, context)
                        return pb.TellTrialsResponse(complete=ended)
        except Exception as error:  # noqa: BLE001  (the call of the same request says what it is)
            presentable(error, "TellTrials")
        return pb.TellTrialsResponse()

    async def _suggest_or_nothing(
        self, request: Request | None, asking: "_Asking"
    ) -> pb.SuggestTrialResponse:
        try:
            return await self._suggest(request, asking)
        except ProposalComingError:
            return pb.SuggestTrialResponse()

    async def _end(
        self,
        request: Request | None,
        lease: event_pb2.LeaseRef,
        name: names.TrialName,
        ending: ExitedArrived,
    ) -> pb.CompleteTrialResponse:
        """End a lease. Raises LeaseStaleError where it was over, but for the last one of a trial that is over too."""

        def arrival(study: Study) -> ExitedArrived:
            _require_ask_tell(study)
            return ending

        async def answer(study: Study, outcome: Outcome, shown: Shown) -> pb.CompleteTrialResponse:
            if isinstance(outcome, Stale) and not await _is_over(shown.conn, study, lease):
                return pb.CompleteTrialResponse()
            return pb.CompleteTrialResponse(trial=shown_trial(study, shown, name.number))

        response = await self.change(
            request, name.study, arrival, answer, shows=lambda _: (name.number,), lasting=True
        )
        return pb.CompleteTrialResponse.FromString(await self._fresh(response, lease, name))

    async def _fresh(self, response: bytes, ref: event_pb2.LeaseRef, name: names.TrialName) -> bytes:
        """The response; raises LeaseStaleError for the empty one, which is the answer to a stale lease."""
        if response:
            return response
        async with transaction(self.hub.engine) as conn:
            study = await studies.find(conn, name.study)
        if study is None or study.state is not StudyState.FAILED:
            raise LeaseStaleError(lease_gone(ref.trial))
        raise LeaseStaleError(f"{lease_gone(ref.trial)}: study '{study.name}' has failed: {study.detail}")


def _suggested(outcome: Outcome) -> tuple[int, ...]:
    assert isinstance(outcome, Suggested)
    return (outcome.trial.number,) if outcome.trial else ()


async def _suggestion(study: Study, outcome: Outcome, shown: Shown) -> pb.SuggestTrialResponse:
    assert isinstance(outcome, Suggested)
    if outcome.trial is None or outcome.lease is None:
        return pb.SuggestTrialResponse(done=outcome.done)
    return pb.SuggestTrialResponse(
        trial=shown_trial(study, shown, outcome.trial.number),
        lease=convert.lease(study.name, outcome.lease),
        next_milestone=outcome.trial.milestone or 0,
    )


async def _decision(study: Study, outcome: Outcome, shown: Shown) -> pb.ReportTrialResponse:  # noqa: ARG001  # an Answer
    if isinstance(outcome, Accepted) and outcome.decision is not None:
        return pb.ReportTrialResponse(decision=convert.decision(outcome.decision))
    return pb.ReportTrialResponse()


async def _is_over(conn: AsyncConnection, study: Study, ref: event_pb2.LeaseRef) -> bool:
    """Whether the lease was the trial's last one and the trial is terminated."""
    lease = await trials.find_lease(conn, ref.lease_id)
    if lease is None or (lease.study_id, lease.epoch) != (study.id, ref.epoch):
        return False
    view = await trials.one(conn, study.id, lease.number)
    return view is not None and view.trial.state is State.TERMINATED and view.trial.epoch == lease.epoch


def _patience_s(context: Context) -> float:
    """How long to wait for a proposal that is being computed: within the call's deadline, with time to answer."""
    left_s = context.time_remaining()
    return LONGEST_WAIT_S if left_s is None else min(LONGEST_WAIT_S, left_s - max(0.5, 0.1 * left_s))


class _Asking(Struct, frozen=True, kw_only=True):
    """Who asks for a trial of what study, and for how long between two reports."""

    study: str
    client_id: str
    ttl_s: float


def _valid_asking(checks: Checks, request: pb.SuggestTrialRequest, within: str = "") -> _Asking | None:
    study_id = checks.take(lambda: names.parse_study(request.study, field=f"{within}study"))
    checks.required(f"{within}client_id", request.client_id)
    ttl_s = DEFAULT_LEASE_S
    if request.HasField("lease_time"):
        ttl_s = checks.seconds(
            f"{within}lease_time", request.lease_time, least=SHORTEST_LEASE_S, most=LEASE_TIME.most_s
        )
    return None if study_id is None else _Asking(study=study_id, client_id=request.client_id, ttl_s=ttl_s)


def _valid_next(
    checks: Checks, request: pb.CompleteTrialRequest, name: names.TrialName | None
) -> _Asking | None:
    """What is asked for with the end of a trial. A repeat must not get a further trial: it has its own id."""
    asking = _valid_asking(checks, request.next, "next.")
    if asking is not None and name is not None and asking.study != name.study:
        checks.note("next.study", request.next.study, "is not the trial's", "Ask for it by SuggestTrial.")
    own_id = request.next.request_id
    checks.required("next.request_id", own_id)
    if own_id and own_id == request.request_id:
        checks.note("next.request_id", own_id, "is the request's own id", "Use another UUID.")
    return asking


def _exit(ref: event_pb2.LeaseRef, name: names.TrialName, outcome: str, error: str) -> ExitedArrived:
    return ExitedArrived(
        lease_id=ref.lease_id,
        number=name.number,
        epoch=ref.epoch,
        sequence=None,
        outcome=outcome,
        error=error,
    )


def _require_ask_tell(study: Study) -> None:
    if study.spec.template is not None:
        raise NotAskTellError(f"the trials of study '{study.name}' are run by workers")


def _valid_lease(checks: Checks, ref: event_pb2.LeaseRef) -> names.TrialName | None:
    checks.required("lease.lease_id", ref.lease_id)
    checks.at_least("lease.epoch", ref.epoch, 1)
    return checks.take(lambda: names.parse_trial(ref.trial, field="lease.trial"))
