"""A StudyService on a loopback port, with scripted studies in memory.

Tests add `Script`s and set traps: `fail_next` makes calls of a method fail with a status before (or, with
`after=True`, after) they do their work; `cut_watch_after` ends watch streams after that many messages. Every
request is kept, so that tests see what was sent. It serves from threads: clients under test may then use any event
loop.
"""

import threading
from collections import defaultdict, deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from grpc_status import rpc_status
from scripted_study import Moment, Script

from headrace.error_status import to_status
from headrace.errors import (
    BadPageTokenError,
    HeadraceError,
    InvalidFieldError,
    StudyEndedError,
    StudyExistsError,
    StudyNotEndedError,
    StudyNotFoundError,
    TrialNotFoundError,
    Violation,
)
from headrace.v1 import event_pb2, study_pb2, study_pb2_grpc, trial_pb2


class FakeStudyService(study_pb2_grpc.StudyServiceServicer):
    """The service and its server."""

    def __init__(self) -> None:
        self.scripts: dict[str, Script] = {}
        self.created: set[str] = set()
        self.shown: dict[str, int] = {}
        self.requests: dict[str, list[Any]] = defaultdict(list)
        self.traps: dict[str, deque[tuple[grpc.StatusCode | HeadraceError, bool]]] = defaultdict(deque)
        self.answers: dict[str, Any] = {}
        self.cut_watch_after: deque[tuple[int, grpc.StatusCode | None]] = deque()
        self.repeat_on_watch = 0
        self.watch_delay_s = 0.0
        self.watch_moves_on = True
        self.watch_tells_of_now = False
        """Whether a message has the study as it is now, like a scheduler's messages; otherwise as it was after its
        last event."""
        self.batch = 5
        self.suggestions: deque[study_pb2.SuggestTrialResponse] = deque()
        self.decisions: deque[event_pb2.Decision] = deque()
        self.missing_metrics: list[str] = []
        """What the last reports lack for the constraints."""
        self.companions: list[study_pb2.PreviewCompanion] = []
        """What a preview says about other studies."""
        self.workers: list[study_pb2.WorkerStatus] = []
        self.upkeep = study_pb2.GetUpkeepResponse(
            kinds=[
                study_pb2.KeptKind(
                    kind="events", age="90d", due=2, what="events of the trials of ended studies"
                )
            ],
            tables=[study_pb2.TableSize(table="event", size_bytes=3 << 20, rows=1000)],
        )
        self.lacking: list[str] = []
        """Sizes of trials that fit nowhere."""
        self.importances: list[tuple[str, float, int]] = []
        """For each objective: a parameter, its share and its trials."""
        self.unshown: list[study_pb2.Unshown] = []
        """What lists of studies, trials and reports omit."""
        self.page_size: int | None = None
        self.stopped = threading.Event()
        self._server = grpc.server(ThreadPoolExecutor(16))
        study_pb2_grpc.add_StudyServiceServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def stop(self) -> None:
        self.stopped.set()
        self._server.stop(None).wait()

    def add(self, script: Script, *, shown: int | None = None) -> Script:
        """Adds a study as it is after `shown` events (all of them if None)."""
        self.scripts[script.name] = script
        self.shown[script.name] = len(script.events) if shown is None else shown
        return script

    def fail_next(self, method: str, *errors: grpc.StatusCode | HeadraceError, after: bool = False) -> None:
        self.traps[method].extend((error, after) for error in errors)

    # ---- studies

    def CreateStudy(self, request: Any, context: grpc.ServicerContext) -> Any:
        before = self._begin("CreateStudy", request, context)
        name = f"studies/{request.study_id}"
        if request.request_id not in self.created:
            if not request.study_id:
                _abort(context, InvalidFieldError([Violation(field="study_id", message="is required")]))
            if name in self.scripts:
                _abort(context, StudyExistsError(f"Study {request.study_id} exists."))
            self.add(self.answers["CreateStudy"](request.study_id))
            self.created.add(request.request_id)
        self._finish(before, context)
        return study_pb2.CreateStudyResponse(study=self._moment(name, context).study)

    def GetStudy(self, request: Any, context: grpc.ServicerContext) -> Any:
        before = self._begin("GetStudy", request, context)
        answer = study_pb2.GetStudyResponse(study=self._moment(request.name, context).study)
        self._finish(before, context)
        return answer

    def ListStudies(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._begin("ListStudies", request, context)
        names = sorted(self.scripts)
        page, token = self._page(names, request, context)
        return study_pb2.ListStudiesResponse(
            studies=[self._moment(name, context).study for name in page],
            next_page_token=token,
            unshown=self.unshown,
        )

    def PauseStudy(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._begin("PauseStudy", request, context)
        study = self._moment(request.name, context).study
        if study.state >= study_pb2.STUDY_STATE_COMPLETED:
            _abort(context, StudyEndedError("Study digits has completed."))
        return study_pb2.PauseStudyResponse(study=study)

    def ResumeStudy(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._begin("ResumeStudy", request, context)
        return study_pb2.ResumeStudyResponse(study=self._moment(request.name, context).study)

    def StopStudy(self, request: Any, context: grpc.ServicerContext) -> Any:
        before = self._begin("StopStudy", request, context)
        study = self._moment(request.name, context).study
        self._finish(before, context)
        return study_pb2.StopStudyResponse(study=study)

    def DeleteStudy(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._begin("DeleteStudy", request, context)
        study = self._moment(request.name, context).study
        if study.state < study_pb2.STUDY_STATE_COMPLETED:
            _abort(context, StudyNotEndedError("Study digits is still active."))
        del self.scripts[request.name]
        return study_pb2.DeleteStudyResponse()

    def AddTrials(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._begin("AddTrials", request, context)
        trials = [
            trial_pb2.Trial(name=f"{request.study}/trials/{number}", number=number, parameters=parameters)
            for number, parameters in enumerate(request.parameters, 100)
        ]
        return study_pb2.AddTrialsResponse(trials=trials)

    def RetryTrials(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._begin("RetryTrials", request, context)
        return study_pb2.RetryTrialsResponse(trial_numbers=request.trial_numbers or [3, 5], others=2)

    def ExtendStudy(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._begin("ExtendStudy", request, context)
        answer = study_pb2.ExtendStudyResponse(study=self._moment(request.name, context).study)
        answer.study.spec.max_trials += request.trials
        return answer

    def PreviewStudy(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._begin("PreviewStudy", request, context)
        answer = study_pb2.PreviewStudyResponse(
            trials=27, steps=143, steps_run_all=756, slots=request.slots or 2, samples=request.spec.enqueued
        )
        answer.samples.append(request.spec.baseline)
        # With the baseline's 27 steps they add up to 143.
        for rung, (milestone, trials, steps) in enumerate(
            ((1, 27, 27), (3, 11, 22), (9, 5, 31), (27, 2, 36))
        ):
            answer.rungs.add(rung=rung, milestone=milestone, trials=trials, steps=steps)
        answer.companions.extend(self.companions)
        if request.seconds_per_step:
            answer.slot_time.FromNanoseconds(int(143e9 * request.seconds_per_step))
            answer.wall_time.FromNanoseconds(int(143e9 * request.seconds_per_step / answer.slots))
        return answer

    def FindRoom(self, request: Any, context: grpc.ServicerContext) -> Any:
        before = self._begin("FindRoom", request, context)
        self._finish(before, context)
        return study_pb2.FindRoomResponse(lacking=self.lacking, sizes=2)

    def MeasureImportance(self, request: Any, context: grpc.ServicerContext) -> Any:
        before = self._begin("MeasureImportance", request, context)
        study = self._moment(request.study, context).study
        answer = study_pb2.MeasureImportanceResponse()
        for objective in (study.spec.objective, *study.spec.further_objectives):
            one = answer.importances.add(metric=objective.metric, step=3, trials=11)
            for name, share, trials in self.importances:
                one.parameters.add(parameter=name, share=share, trials=trials)
            if not self.importances:
                one.reason = "at most 3 trials reached the same rung, and at least 10 are needed"
        self._finish(before, context)
        return answer

    def GetUpkeep(self, request: Any, context: grpc.ServicerContext) -> Any:
        before = self._begin("GetUpkeep", request, context)
        self._finish(before, context)
        return self.upkeep

    def CleanUp(self, request: Any, context: grpc.ServicerContext) -> Any:
        before = self._begin("CleanUp", request, context)
        self._finish(before, context)
        return study_pb2.CleanUpResponse()

    def ForgetCheckpoints(self, request: Any, context: grpc.ServicerContext) -> Any:
        before = self._begin("ForgetCheckpoints", request, context)
        found = 0
        for trial in self._moment(request.study, context).trials:
            if trial.HasField("checkpoint") and trial.checkpoint.uri in request.uris:
                trial.ClearField("checkpoint")
                found += 1
        self._finish(before, context)
        return study_pb2.ForgetCheckpointsResponse(trials=found)

    # ---- trials

    def GetTrial(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._begin("GetTrial", request, context)
        return study_pb2.GetTrialResponse(trial=self._trial(request.name, context))

    def ListTrials(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._begin("ListTrials", request, context)
        moment = self._moment(request.study, context)
        wanted = [t for t in moment.trials if not request.states or t.state in request.states]
        page, token = self._page(wanted, request, context)
        return study_pb2.ListTrialsResponse(trials=page, next_page_token=token, unshown=self.unshown)

    def Annotate(self, request: Any, context: grpc.ServicerContext) -> Any:
        before = self._begin("Annotate", request, context)
        self._finish(before, context)
        return study_pb2.AnnotateResponse(tags=request.add_tags, note=request.note)

    def PauseTrial(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._begin("PauseTrial", request, context)
        return study_pb2.PauseTrialResponse(trial=self._trial(request.name, context))

    def ResumeTrial(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._begin("ResumeTrial", request, context)
        return study_pb2.ResumeTrialResponse(trial=self._trial(request.name, context))

    def StopTrial(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._begin("StopTrial", request, context)
        return study_pb2.StopTrialResponse(trial=self._trial(request.name, context))

    def ExplainTrial(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._begin("ExplainTrial", request, context)
        trial = self._trial(request.name, context)
        script = self.scripts[request.name.partition("/trials/")[0]]
        events = [e for e in script.events if e.HasField("trial_number") and e.trial_number == trial.number]
        return study_pb2.ExplainTrialResponse(trial=trial, events=events)

    def ListReports(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._begin("ListReports", request, context)
        study, _, number = request.parent.partition("/trials/")
        self._moment(study, context)
        reports = [r for r in self.scripts[study].reports if not number or r.trial_number == int(number)]
        page, token = self._page(reports, request, context)
        return study_pb2.ListReportsResponse(reports=page, next_page_token=token, unshown=self.unshown)

    def ListWorkers(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._begin("ListWorkers", request, context)
        page, token = self._page(self.workers, request, context)
        return study_pb2.ListWorkersResponse(workers=page, next_page_token=token)

    def DrainWorker(self, request: Any, context: grpc.ServicerContext) -> Any:
        worker = self._change_worker(
            "DrainWorker", request, context, draining=request.reason or "a user drained it"
        )
        return study_pb2.DrainWorkerResponse(worker=worker)

    def UndrainWorker(self, request: Any, context: grpc.ServicerContext) -> Any:
        return study_pb2.UndrainWorkerResponse(
            worker=self._change_worker("UndrainWorker", request, context, draining="")
        )

    def CordonDevices(self, request: Any, context: grpc.ServicerContext) -> Any:
        return study_pb2.CordonDevicesResponse(worker=self._change_worker("CordonDevices", request, context))

    def UncordonDevices(self, request: Any, context: grpc.ServicerContext) -> Any:
        return study_pb2.UncordonDevicesResponse(
            worker=self._change_worker("UncordonDevices", request, context)
        )

    def _change_worker(
        self, method: str, request: Any, context: grpc.ServicerContext, **changes: str
    ) -> study_pb2.WorkerStatus:
        before = self._begin(method, request, context)
        worker = next(worker for worker in self.workers if worker.name == request.worker)
        for name, value in changes.items():
            setattr(worker, name, value)
        self._finish(before, context)
        return worker

    def SuggestTrial(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._begin("SuggestTrial", request, context)
        return self.suggestions.popleft()

    def ReportTrial(self, request: Any, context: grpc.ServicerContext) -> Any:
        before = self._begin("ReportTrial", request, context)
        decision = self.decisions[0]
        self._finish(before, context)
        missing = self.missing_metrics if decision.action == event_pb2.DECISION_ACTION_STOP else ()
        return study_pb2.ReportTrialResponse(decision=decision, missing_metrics=missing)

    def CompleteTrial(self, request: Any, context: grpc.ServicerContext) -> Any:
        before = self._begin("CompleteTrial", request, context)
        self._finish(before, context)
        return study_pb2.CompleteTrialResponse(
            trial=self._trial(request.lease.trial, context), missing_metrics=self.missing_metrics
        )

    def RenewTrial(self, request: Any, context: grpc.ServicerContext) -> Any:
        before = self._begin("RenewTrial", request, context)
        self._finish(before, context)
        return study_pb2.RenewTrialResponse()

    def ReleaseTrial(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._begin("ReleaseTrial", request, context)
        return study_pb2.ReleaseTrialResponse(trial=self._trial(request.lease.trial, context))

    # ---- watching

    def WatchStudy(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        self._begin("WatchStudy", request, context)
        self._moment(request.name, context)
        script = self.scripts[request.name]
        limit, code = self.cut_watch_after.popleft() if self.cut_watch_after else (None, None)
        start = max(0, request.after_cursor - self.repeat_on_watch)
        for sent, first in enumerate(range(start, len(script.events), self.batch)):
            if sent == limit:
                if code is not None:
                    context.abort(code, "cut")
                return
            last = min(first + self.batch, len(script.events))
            if self.stopped.wait(self.watch_delay_s):
                context.abort(grpc.StatusCode.UNAVAILABLE, "the server is killed")
            if not context.is_active():
                return
            if self.watch_moves_on:
                self.shown[request.name] = max(self.shown[request.name], last)
            told = self.shown[request.name] if self.watch_tells_of_now else last
            yield study_pb2.WatchStudyResponse(
                events=script.events[first:last], study=script.moments[told - 1].study
            )

    # ---- machinery

    def _begin(self, method: str, request: Any, context: grpc.ServicerContext) -> Any:
        self.requests[method].append(request)
        trap = self.traps[method].popleft() if self.traps[method] else None
        if trap is not None and not trap[1]:
            _abort(context, trap[0])
        return trap

    def _finish(self, trap: Any, context: grpc.ServicerContext) -> None:
        if trap is not None:
            _abort(context, trap[0])

    def _moment(self, name: str, context: grpc.ServicerContext) -> Moment:
        if name not in self.scripts:
            _abort(context, StudyNotFoundError(f"There is no study {name.removeprefix('studies/')}."))
        return self.scripts[name].moments[self.shown[name] - 1]

    def _trial(self, name: str, context: grpc.ServicerContext) -> trial_pb2.Trial:
        study, _, number = name.partition("/trials/")
        moment = self._moment(study, context)
        if int(number) >= len(moment.trials):
            _abort(context, TrialNotFoundError(f"Study digits has no trial {number}."))
        return moment.trials[int(number)]

    def _page(self, items: list[Any], request: Any, context: grpc.ServicerContext) -> tuple[list[Any], str]:
        size = self.page_size or request.page_size
        if request.page_token and not request.page_token.startswith("after-"):
            _abort(context, BadPageTokenError("The page token is not one of this list."))
        start = int(request.page_token.removeprefix("after-") or 0)
        more = start + size < len(items)
        return items[start : start + size], f"after-{start + size}" if more else ""


def _abort(context: grpc.ServicerContext, error: grpc.StatusCode | HeadraceError) -> None:
    if isinstance(error, grpc.StatusCode):
        context.abort(error, "made to fail")
    context.abort_with_status(rpc_status.to_status(to_status(error)))
