"""Bad requests: each is refused with its reason, the field's path, the value and a remedy, and changes nothing."""

from collections.abc import Callable
from typing import Any

from rpc_site import RpcSite, duration, make_spec

from headrace import errors
from headrace.spec import to_proto
from headrace.v1 import event_pb2, spec_pb2, trial_pb2
from headrace.v1 import study_pb2 as pb


def good_spec(**changes: Any) -> spec_pb2.StudySpec:
    return to_proto(make_spec(**changes))


def broken_spec(breaks: Callable[[spec_pb2.StudySpec], None]) -> spec_pb2.StudySpec:
    spec = good_spec()
    breaks(spec)
    return spec


def assignment(**values: float) -> spec_pb2.ParameterAssignment:
    message = spec_pb2.ParameterAssignment()
    for name, value in values.items():
        message.values[name].float_value = value
    return message


def low_over_high(spec: spec_pb2.StudySpec) -> None:
    spec.space[0].float.low = 2.0


def eta_of_one(spec: spec_pb2.StudySpec) -> None:
    spec.policy.asha.eta = 1


def lease(**changes: Any) -> event_pb2.LeaseRef:
    return event_pb2.LeaseRef(**({"lease_id": "l", "trial": "studies/s/trials/0", "attempt": 1} | changes))


FIELD_CASES: list[tuple[str, str, Any, list[str], str]] = [
    ("no spec", "CreateStudy", pb.CreateStudyRequest(study_id="t"), ["max_steps", "max_trials"], ""),
    (
        "bad id",
        "CreateStudy",
        pb.CreateStudyRequest(study_id="No", spec=good_spec()),
        ["study_id"],
        "For example: no",
    ),
    ("no id", "CreateStudy", pb.CreateStudyRequest(spec=good_spec()), ["study_id"], "For example: my-study"),
    (
        "low over high",
        "CreateStudy",
        pb.CreateStudyRequest(study_id="t", spec=broken_spec(low_over_high)),
        ["space.x.low"],
        "",
    ),
    (
        "bad id and bad spec",
        "CreateStudy",
        pb.CreateStudyRequest(study_id="-", spec=broken_spec(eta_of_one)),
        ["study_id", "policy.eta"],
        "",
    ),
    (
        "long request id",
        "CreateStudy",
        pb.CreateStudyRequest(study_id="t", spec=good_spec(), request_id="x" * 129),
        ["request_id"],
        "UUID",
    ),
    (
        "request id with a NUL",
        "StopStudy",
        pb.StopStudyRequest(name="studies/s", request_id="a\0"),
        ["request_id"],
        "UUID",
    ),
    ("bare name", "GetStudy", pb.GetStudyRequest(name="s"), ["name"], "studies/STUDY"),
    ("no good id", "GetStudy", pb.GetStudyRequest(name="studies/a\0"), ["name"], "studies/STUDY"),
    ("no name", "GetStudy", pb.GetStudyRequest(), ["name"], "studies/STUDY"),
    ("a trial's name", "PauseStudy", pb.PauseStudyRequest(name="studies/s/trials/0"), ["name"], "studies/"),
    ("no name", "ResumeStudy", pb.ResumeStudyRequest(), ["name"], "studies/STUDY"),
    (
        "NUL",
        "StopStudy",
        pb.StopStudyRequest(name="studies/s", reason="a\0b"),
        ["reason"],
        "Remove it",
    ),
    (
        "long reason",
        "StopStudy",
        pb.StopStudyRequest(name="studies/s", reason="x" * 8193),
        ["reason"],
        "Shorten",
    ),
    ("no name", "DeleteStudy", pb.DeleteStudyRequest(), ["name"], "studies/STUDY"),
    ("negative page", "ListStudies", pb.ListStudiesRequest(page_size=-1), ["page_size"], "1 to 1000"),
    ("negative page", "ListWorkers", pb.ListWorkersRequest(page_size=-7), ["page_size"], "1 to 1000"),
    (
        "unknown state",
        "ListTrials",
        pb.ListTrialsRequest(study="studies/s", states=[trial_pb2.TRIAL_STATE_PAUSED, 77]),
        ["states[1]"],
        "TRIAL_STATE_PENDING",
    ),
    ("no study", "ListTrials", pb.ListTrialsRequest(), ["study"], "studies/STUDY"),
    ("no parent", "ListReports", pb.ListReportsRequest(), ["parent"], "studies/STUDY/trials/NUMBER"),
    ("no study", "MeasureImportance", pb.MeasureImportanceRequest(), ["study"], "studies/STUDY"),
    ("a word", "FindRoom", pb.FindRoomRequest(study="all"), ["study"], "studies/STUDY"),
    ("a word", "ListReports", pb.ListReportsRequest(parent="all"), ["parent"], "studies/STUDY"),
    ("a study", "GetTrial", pb.GetTrialRequest(name="studies/s"), ["name"], "trials/NUMBER"),
    ("negative", "GetTrial", pb.GetTrialRequest(name="studies/s/trials/-1"), ["name"], "trials/NUMBER"),
    (
        "huge",
        "GetTrial",
        pb.GetTrialRequest(name=f"studies/s/trials/{10**30}"),
        ["name"],
        "trials/NUMBER",
    ),
    ("no name", "PauseTrial", pb.PauseTrialRequest(), ["name"], "trials/NUMBER"),
    ("no name", "ResumeTrial", pb.ResumeTrialRequest(), ["name"], "trials/NUMBER"),
    ("bad name", "StopTrial", pb.StopTrialRequest(name="?"), ["name"], "trials/NUMBER"),
    ("bad reason", "StopTrial", pb.StopTrialRequest(name="?", reason="\0"), ["reason"], "Remove it"),
    ("no name", "ExplainTrial", pb.ExplainTrialRequest(), ["name"], "trials/NUMBER"),
    (
        "no trial",
        "RetryTrials",
        pb.RetryTrialsRequest(study="studies/s", trial_numbers=[-1]),
        ["trial_numbers[0]"],
        "",
    ),
    ("no name", "RetryTrials", pb.RetryTrialsRequest(), ["study"], "studies/STUDY"),
    ("nothing", "ExtendStudy", pb.ExtendStudyRequest(name="studies/s"), ["trials"], "Give one"),
    (
        "both",
        "ExtendStudy",
        pb.ExtendStudyRequest(name="studies/s", trials=1, steps=99),
        ["trials"],
        "Give one",
    ),
    ("fewer", "ExtendStudy", pb.ExtendStudyRequest(name="studies/s", trials=-1), ["trials"], ""),
    ("nothing", "AddTrials", pb.AddTrialsRequest(study="studies/s"), ["parameters"], "Add one"),
    (
        "too many",
        "AddTrials",
        pb.AddTrialsRequest(study="studies/s", parameters=[assignment(x=0.5)] * 1001),
        ["parameters"],
        "Split them",
    ),
    (
        "two of three wrong",
        "AddTrials",
        pb.AddTrialsRequest(
            study="studies/s", parameters=[assignment(x=7.0), assignment(x=0.5), assignment(y=1.0)]
        ),
        ["parameters[0].x", "parameters[2].x", "parameters[2].y"],
        "",
    ),
    (
        "no value",
        "AddTrials",
        pb.AddTrialsRequest(
            study="studies/s",
            parameters=[spec_pb2.ParameterAssignment(values={"x": spec_pb2.ParameterValue()})],
        ),
        ["parameters[0].x"],
        "kinds of value",
    ),
    (
        "everything",
        "SuggestTrial",
        pb.SuggestTrialRequest(lease_time=duration(0.5)),
        ["study", "client_id", "lease_time"],
        "1 s to 86400 s",
    ),
    (
        "long lease",
        "SuggestTrial",
        pb.SuggestTrialRequest(study="studies/s", client_id="c", lease_time=duration(86_401)),
        ["lease_time"],
        "86400",
    ),
    (
        "no lease",
        "ReportTrial",
        pb.ReportTrialRequest(step=1),
        ["lease.lease_id", "lease.attempt", "lease.trial"],
        "",
    ),
    (
        "negative step",
        "ReportTrial",
        pb.ReportTrialRequest(lease=lease(), step=-1, metrics={"": 1.0}),
        ["step", "metrics"],
        "",
    ),
    (
        "NUL in metric",
        "ReportTrial",
        pb.ReportTrialRequest(lease=lease(), step=1, metrics={"a\0": 1.0}),
        [r"metrics['a\x00']"],
        "Remove it",
    ),
    (
        "bad trial",
        "CompleteTrial",
        pb.CompleteTrialRequest(lease=lease(trial="s/0")),
        ["lease.trial"],
        "studies/STUDY/trials/NUMBER",
    ),
    (
        "bad lease",
        "ReleaseTrial",
        pb.ReleaseTrialRequest(lease=lease(trial="s/0", attempt=0)),
        ["lease.attempt", "lease.trial"],
        "studies/STUDY/trials/NUMBER",
    ),
    (
        "negative cursor",
        "WatchStudy",
        pb.WatchStudyRequest(name="studies/s", after_cursor=-1),
        ["after_cursor"],
        "0 for all",
    ),
    (
        "future cursor",
        "WatchStudy",
        pb.WatchStudyRequest(name="studies/s", after_cursor=999),
        ["after_cursor"],
        "last event that you saw",
    ),
    (
        "everything",
        "PreviewStudy",
        pb.PreviewStudyRequest(spec=broken_spec(eta_of_one), slots=-1, seconds_per_step=float("nan")),
        ["slots", "seconds_per_step"],
        "",
    ),
    ("bad spec", "PreviewStudy", pb.PreviewStudyRequest(spec=broken_spec(eta_of_one)), ["policy.eta"], ""),
]


async def test_the_field_at_fault_is_named_with_a_remedy(site: RpcSite) -> None:
    before = await site.create()
    for what, method, request, fields, remedy in FIELD_CASES:
        where = f"{method}: {what}"
        error = await refusal(site, method, request)
        assert isinstance(error, errors.InvalidFieldError), where
        found = [violation.field for violation in error.violations]
        assert [field for field in fields if field not in found] == [], where
        assert what == "no spec" or sorted(found) == sorted(fields), where
        assert all(violation.remedy for violation in error.violations), where
        assert any(remedy in violation.remedy for violation in error.violations), where
    assert await site.study() == before
    assert len((await site.call("ListStudies", pb.ListStudiesRequest())).studies) == 1


ABSENT = "studies/absent"
MISSING_CASES: list[tuple[str, Any, type[errors.HeadraceError]]] = [
    ("GetStudy", pb.GetStudyRequest(name=ABSENT), errors.StudyNotFoundError),
    ("PauseStudy", pb.PauseStudyRequest(name=ABSENT), errors.StudyNotFoundError),
    ("PauseStudy", pb.PauseStudyRequest(name=ABSENT, request_id="r"), errors.StudyNotFoundError),
    ("ResumeStudy", pb.ResumeStudyRequest(name=ABSENT), errors.StudyNotFoundError),
    ("StopStudy", pb.StopStudyRequest(name=ABSENT), errors.StudyNotFoundError),
    ("DeleteStudy", pb.DeleteStudyRequest(name=ABSENT), errors.StudyNotFoundError),
    ("WatchStudy", pb.WatchStudyRequest(name=ABSENT), errors.StudyNotFoundError),
    ("ListTrials", pb.ListTrialsRequest(study=ABSENT), errors.StudyNotFoundError),
    ("ListReports", pb.ListReportsRequest(parent=ABSENT), errors.StudyNotFoundError),
    ("MeasureImportance", pb.MeasureImportanceRequest(study=ABSENT), errors.StudyNotFoundError),
    ("FindRoom", pb.FindRoomRequest(study=ABSENT), errors.StudyNotFoundError),
    ("SuggestTrial", pb.SuggestTrialRequest(study=ABSENT, client_id="c"), errors.StudyNotFoundError),
    (
        "AddTrials",
        pb.AddTrialsRequest(study=ABSENT, parameters=[assignment(x=1.0)]),
        errors.StudyNotFoundError,
    ),
    ("RetryTrials", pb.RetryTrialsRequest(study=ABSENT), errors.StudyNotFoundError),
    ("ExtendStudy", pb.ExtendStudyRequest(name=ABSENT, trials=1), errors.StudyNotFoundError),
    ("RetryTrials", pb.RetryTrialsRequest(study="studies/s", trial_numbers=[99]), errors.TrialNotFoundError),
    ("GetTrial", pb.GetTrialRequest(name="studies/s/trials/99"), errors.TrialNotFoundError),
    ("PauseTrial", pb.PauseTrialRequest(name="studies/s/trials/99"), errors.TrialNotFoundError),
    ("ResumeTrial", pb.ResumeTrialRequest(name="studies/s/trials/99"), errors.TrialNotFoundError),
    ("StopTrial", pb.StopTrialRequest(name="studies/s/trials/99"), errors.TrialNotFoundError),
    ("ExplainTrial", pb.ExplainTrialRequest(name="studies/s/trials/99"), errors.TrialNotFoundError),
    ("ListReports", pb.ListReportsRequest(parent="studies/s/trials/99"), errors.TrialNotFoundError),
    ("DeleteStudy", pb.DeleteStudyRequest(name="studies/s"), errors.StudyNotEndedError),
    ("ReportTrial", pb.ReportTrialRequest(lease=lease(), step=1), errors.LeaseStaleError),
    ("CompleteTrial", pb.CompleteTrialRequest(lease=lease()), errors.LeaseStaleError),
    ("ReleaseTrial", pb.ReleaseTrialRequest(lease=lease()), errors.LeaseStaleError),
    ("CreateStudy", pb.CreateStudyRequest(study_id="s", spec=good_spec()), errors.StudyExistsError),
]


async def test_what_is_not_there_or_cannot_be_done_is_refused_by_its_reason(site: RpcSite) -> None:
    await site.create()
    for method, request, expected in MISSING_CASES:
        error = await refusal(site, method, request)
        assert type(error) is expected, (method, error)
        assert error.remedy, method


async def test_an_ended_study_takes_no_changes(site: RpcSite) -> None:
    await site.create()
    await site.suggest()
    await site.call("StopStudy", pb.StopStudyRequest(name="studies/s", reason="enough"))
    for method, request in (
        ("PauseStudy", pb.PauseStudyRequest(name="studies/s")),
        ("ResumeStudy", pb.ResumeStudyRequest(name="studies/s")),
        ("AddTrials", pb.AddTrialsRequest(study="studies/s", parameters=[assignment(x=0.1)])),
    ):
        assert isinstance(await site.refusal(method, request), errors.StudyEndedError), method
    for method, request in (
        ("PauseTrial", pb.PauseTrialRequest(name="studies/s/trials/0")),
        ("ResumeTrial", pb.ResumeTrialRequest(name="studies/s/trials/0")),
        ("StopTrial", pb.StopTrialRequest(name="studies/s/trials/0")),
    ):
        assert isinstance(await site.refusal(method, request), errors.TrialEndedError), method


async def test_trials_of_workers_are_not_for_ask_and_tell(site: RpcSite) -> None:
    await site.create(template={"callable": "train:train", "working_dir": "/tmp"})
    for method, request in (
        ("SuggestTrial", pb.SuggestTrialRequest(study="studies/s", client_id="c")),
        ("ReportTrial", pb.ReportTrialRequest(lease=lease(), step=1)),
        ("CompleteTrial", pb.CompleteTrialRequest(lease=lease())),
        ("ReleaseTrial", pb.ReleaseTrialRequest(lease=lease())),
    ):
        assert isinstance(await site.refusal(method, request), errors.NotAskTellError), method


async def refusal(site: RpcSite, method: str, request: Any) -> errors.HeadraceError:
    if method != "WatchStudy":
        return await site.refusal(method, request)
    try:
        async for response in site.replicas[0].watch(request):
            raise AssertionError(f"the watch was not refused: {response}")
    except errors.HeadraceError as error:
        return error
    raise AssertionError("the watch ended in good order")
