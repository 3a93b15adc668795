"""Calls on trials: add, read, pause, resume, stop, explain, and their reports."""
# ruff: noqa: ARG002  (every method takes the call's context)

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial

from google.protobuf.message import Message

from headrace.bounds import numbers
from headrace.spec import StudySpec, check_assignments, params_from_proto
from headrace.spec.space import breadth
from headrace.v1 import event_pb2, spec_pb2, trial_pb2
from headrace.v1 import study_pb2 as pb
from headrace_services.scheduler.core.inputs import (
    Added,
    AddTrials,
    Command,
    Outcome,
    PauseTrial,
    Reopened,
    ResumeTrial,
    RetryTrials,
    StopTrial,
)
from headrace_services.scheduler.core.lifecycle import State
from headrace_services.scheduler.core.records import Params
from headrace_services.scheduler.engine.submissions import Shown
from headrace_services.scheduler.rpc import convert, names, pages
from headrace_services.scheduler.rpc.calls import (
    Calls,
    Context,
    find_study,
    identity_of,
    require_trial,
    shown_trial,
    trial_message,
)
from headrace_services.scheduler.rpc.checks import Checks
from headrace_services.scheduler.rpc.waiting import waits_for
from headrace_services.scheduler.store import history, trials
from headrace_services.scheduler.store.database import transaction
from headrace_services.scheduler.store.defects import Defect, each, within
from headrace_services.scheduler.store.query import trial_keys
from headrace_services.scheduler.store.requests import Request

MOST_EXPLAINED_BYTES = 1024 * 1024
_LEFT_OUT = "older entries are left out here: the list of reports has every report"


class TrialCalls(Calls):
    """Calls about trials."""

    async def AddTrials(self, request: pb.AddTrialsRequest, context: Context) -> pb.AddTrialsResponse:
        """Add configurations to try before the sampler is asked again: all of them, or none."""
        study_id = names.parse_study(request.study, field="study")
        checks = Checks()
        if not request.parameters:
            checks.note("parameters", "0 configurations", "is empty", "Add one.")
        checks.done()

        def answer(outcome: Outcome, shown: Shown) -> pb.AddTrialsResponse:
            added = [shown_trial(shown, number) for number in _added(outcome)]
            return pb.AddTrialsResponse(trials=added)

        response = await self.change(
            identity_of(request, request.request_id),
            study_id,
            lambda study: AddTrials(params=_valid_params(study.spec, request.parameters)),
            answer,
        )
        return pb.AddTrialsResponse.FromString(response)

    async def RetryTrials(self, request: pb.RetryTrialsRequest, context: Context) -> pb.RetryTrialsResponse:
        """Let failed trials continue from their last checkpoints: the named ones, or all."""
        command = RetryTrials(numbers=frozenset(request.trial_numbers) or None)

        def answer(outcome: Outcome, shown: Shown) -> pb.RetryTrialsResponse:  # noqa: ARG001  # called with both, as every Answer is
            assert isinstance(outcome, Reopened)
            return pb.RetryTrialsResponse(trial_numbers=outcome.numbers, others=outcome.others)

        response = await self.change(
            identity_of(request, request.request_id),
            names.parse_study(request.study, field="study"),
            lambda _: command,
            answer,
        )
        return pb.RetryTrialsResponse.FromString(response)

    async def GetTrial(self, request: pb.GetTrialRequest, context: Context) -> pb.GetTrialResponse:
        """One trial."""
        name = names.parse_trial(request.name)
        async with transaction(self.hub.engine) as conn:
            study = await find_study(conn, name.study)
            return pb.GetTrialResponse(trial=await trial_message(conn, study, name.number))

    async def ListTrials(self, request: pb.ListTrialsRequest, context: Context) -> pb.ListTrialsResponse:
        """A study's trials by number, or in another order, a page at a time."""
        study_id = names.parse_study(request.study, field="study")
        states = _valid_states(request.states)
        async with transaction(self.hub.engine) as conn:
            study = await find_study(conn, study_id)
            wanted = _selection(study.spec, request, states)
            window = pages.window(request, wanted.shape)
            try:
                query = wanted.query(study.id, window.after, window.limit)
            except ValueError:
                raise pages.foreign(request.page_token) from None
            keys = await trials.page(conn, query)
            first = keys[: min(window.size, within([key.size for key in keys]))]
            found = await each(conn, first, partial(trials.of_page, conn, study.id))
            views = [item for item in found if not isinstance(item, Defect)]
            waiting = await waits_for(conn, study, [view.trial for view in views])
        page = window.fill(
            keys,
            found,
            lambda view: convert.trial(
                study_id, view, study.spec, waits_for=waiting.get(view.trial.number, "")
            ),
            lambda key: key.place,
            lambda key: names.trial_name(study_id, key.number),
        )
        return pb.ListTrialsResponse(trials=page.messages, next_page_token=page.token, unshown=page.unshown)

    async def PauseTrial(self, request: pb.PauseTrialRequest, context: Context) -> pb.PauseTrialResponse:
        """Pause one trial at its next rung; it stays paused until it is resumed."""
        name = names.parse_trial(request.name)
        response = await self._change_trial(
            identity_of(request, request.request_id),
            name,
            PauseTrial(number=name.number),
            lambda trial: pb.PauseTrialResponse(trial=trial),
        )
        return pb.PauseTrialResponse.FromString(response)

    async def ResumeTrial(self, request: pb.ResumeTrialRequest, context: Context) -> pb.ResumeTrialResponse:
        """Undo PauseTrial."""
        name = names.parse_trial(request.name)
        response = await self._change_trial(
            identity_of(request, request.request_id),
            name,
            ResumeTrial(number=name.number),
            lambda trial: pb.ResumeTrialResponse(trial=trial),
        )
        return pb.ResumeTrialResponse.FromString(response)

    async def StopTrial(self, request: pb.StopTrialRequest, context: Context) -> pb.StopTrialResponse:
        """Cancel one trial."""
        name = names.parse_trial(request.name)
        response = await self._change_trial(
            identity_of(request, request.request_id),
            name,
            StopTrial(number=name.number, reason=request.reason),
            lambda trial: pb.StopTrialResponse(trial=trial),
        )
        return pb.StopTrialResponse.FromString(response)

    async def _change_trial(
        self,
        request: Request | None,
        name: names.TrialName,
        command: Command,
        response: Callable[[trial_pb2.Trial], Message],
    ) -> bytes:
        def answer(outcome: Outcome, shown: Shown) -> Message:  # noqa: ARG001  # called with both, as every Answer is
            return response(shown_trial(shown, name.number))

        return await self.change(request, name.study, lambda _: command, answer)

    async def ExplainTrial(
        self, request: pb.ExplainTrialRequest, context: Context
    ) -> pb.ExplainTrialResponse:
        """The history of a trial, in order."""
        name = names.parse_trial(request.name)
        async with transaction(self.hub.engine) as conn:
            study = await find_study(conn, name.study)
            trial = await trial_message(conn, study, name.number)
            stored, whole = await history.events_of_trial(conn, study.id, name.number, MOST_EXPLAINED_BYTES)
        events = [convert.event(event) for event in stored]
        if not whole:
            events.insert(0, event_pb2.Event(message=_LEFT_OUT, time=trial.create_time))
        return pb.ExplainTrialResponse(trial=trial, events=events)

    async def ListReports(self, request: pb.ListReportsRequest, context: Context) -> pb.ListReportsResponse:
        """The reports of a trial, or of all trials of a study by number, in order."""
        study_id, number = names.parse_parent(request.parent)
        window = pages.window(request, (int, int, int))
        after = [int(part) for part in window.after] if window.after else None
        async with transaction(self.hub.engine) as conn:
            study = await find_study(conn, study_id)
            if number is not None:
                await require_trial(conn, study, number)
            keys = await history.reports_after(conn, study.id, number=number, after=after, limit=window.limit)
            first = keys[: min(window.size, within([key.size for key in keys]))]
            found = await each(conn, first, partial(history.reports, conn, study.id))
        page = window.fill(
            keys,
            found,
            convert.report,
            lambda key: key.place,
            lambda key: names.trial_name(study_id, key.number),
        )
        return pb.ListReportsResponse(reports=page.messages, next_page_token=page.token, unshown=page.unshown)


def _added(outcome: Outcome) -> tuple[int, ...]:
    assert isinstance(outcome, Added)
    return outcome.numbers


def _valid_params(spec: StudySpec, messages: Sequence[spec_pb2.ParameterAssignment]) -> tuple[Params, ...]:
    """The configurations in the form of the space. Raises InvalidFieldError with all violations."""
    most = numbers.CONFIGURATION_CHECKS // breadth(spec.space)
    checks = Checks()
    if len(messages) > most:
        said = f"is more than {most} for a space with this many parameters and conditions"
        checks.note("parameters", f"{len(messages)} configurations", said, "Split them over several calls.")
    checks.done()
    given = {
        field: params_from_proto(message, field=field)
        for field, message in ((f"parameters[{place}]", message) for place, message in enumerate(messages))
    }
    return tuple(check_assignments(spec, given))


def _selection(spec: StudySpec, request: pb.ListTrialsRequest, states: Sequence[State]) -> trials.Selection:
    """What a list has. Raises InvalidFieldError with all violations."""
    checks = Checks()
    which = checks.run(lambda: trial_keys.filtered(spec, request.filter, datetime.now(UTC)))
    order = checks.run(lambda: trial_keys.ordered(spec, request.order_by))
    checks.done()
    return trials.Selection(states=states, which=which, order=order)


def _valid_states(values: Sequence[trial_pb2.TrialState.ValueType]) -> list[State]:
    checks = Checks()
    found = convert.states(values)
    for place, state in enumerate(found):
        if state is None:
            known = ", ".join(f"TRIAL_STATE_{known}" for known in State)
            checks.note(
                f"states[{place}]", values[place], "is not a state of a trial", f"Give some of {known}."
            )
    checks.done()
    return [state for state in found if state is not None]
