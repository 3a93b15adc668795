"""Bad requests: each is refused with its reason, the field's path, the value and a remedy, and changes nothing."""

from typing import Any

from rpc_site import RpcSite, duration, make_spec

from headrace import errors
from headrace.spec import to_proto
from headrace.v1 import event_pb2, spec_pb2, trial_pb2
from headrace.v1 import study_pb2 as pb

Call = tuple[str, dict[str, Any]]
"""A method, and the fields of its request."""

GOOD = to_proto(make_spec())
BAD = to_proto(make_spec())
BAD.policy.asha.eta = 1
NAN = float("nan")


def assignment(**values: float) -> spec_pb2.ParameterAssignment:
    message = spec_pb2.ParameterAssignment()
    for name, value in values.items():
        message.values[name].float_value = value
    return message


UNSET = spec_pb2.ParameterAssignment(values={"x": spec_pb2.ParameterValue()})
TWO_OF_THREE = [assignment(x=7.0), assignment(x=0.5), assignment(y=1.0)]


def lease(**changes: Any) -> event_pb2.LeaseRef:
    return event_pb2.LeaseRef(**({"lease_id": "l", "trial": "studies/s/trials/0", "attempt": 1} | changes))


def request_of(method: str, fields: dict[str, Any]) -> Any:
    return getattr(pb, f"{method}Request")(**fields)


S, A_STUDY, A_TRIAL = "studies/s", "studies/STUDY", "studies/STUDY/trials/NUMBER"
# (method, what is sent, the fields at fault, part of a remedy)
FIELD_CASES: list[tuple[str, dict[str, Any], str, str]] = [
    ("CreateStudy", {"study_id": "No", "spec": GOOD}, "study_id", "For example: no"),
    ("CreateStudy", {"spec": GOOD}, "study_id", "For example: my-study"),
    ("CreateStudy", {"study_id": "-", "spec": BAD}, "study_id policy.eta", "from 2 to 1000000"),
    ("CreateStudy", {"study_id": "t", "spec": GOOD, "request_id": "x" * 129}, "request_id", "UUID"),
    ("PreviewStudy", {"spec": BAD}, "policy.eta", ""),
    ("PreviewStudy", {"spec": BAD, "slots": -1, "seconds_per_step": NAN}, "slots seconds_per_step", ""),
    ("GetStudy", {"name": "s"}, "name", A_STUDY),
    ("GetStudy", {"name": "studies/a\0"}, "name", A_STUDY),
    ("GetStudy", {}, "name", A_STUDY),
    ("PauseStudy", {"name": "studies/s/trials/0"}, "name", A_STUDY),
    ("ResumeStudy", {}, "name", A_STUDY),
    ("DeleteStudy", {}, "name", A_STUDY),
    ("StopStudy", {"name": S, "request_id": "a\0"}, "request_id", "UUID"),
    ("StopStudy", {"name": S, "reason": "a\0b"}, "reason", "Remove it"),
    ("StopStudy", {"name": S, "reason": "x" * 8193}, "reason", "Shorten"),
    ("ExtendStudy", {"name": S}, "trials", "Give one"),
    ("ExtendStudy", {"name": S, "trials": 1, "steps": 99}, "trials", "Give one"),
    ("ExtendStudy", {"name": S, "trials": -1}, "trials", "from 1 to 1000000"),
    ("WatchStudy", {"name": S, "after_cursor": -1}, "after_cursor", "0 for all"),
    ("WatchStudy", {"name": S, "after_cursor": 999}, "after_cursor", "last event that you saw"),
    ("MeasureImportance", {}, "study", A_STUDY),
    ("FindRoom", {"study": "all"}, "study", A_STUDY),
    ("ReadCurves", {}, "study", A_STUDY),
    ("Annotate", {"note": "x"}, "name", A_TRIAL),
    ("ListStudies", {"page_size": -1}, "page_size", "1 to 1000"),
    ("ListWorkers", {"page_size": -7}, "page_size", "1 to 1000"),
    (
        "ListTrials",
        {"study": S, "states": [trial_pb2.TRIAL_STATE_PAUSED, 77]},
        "states[1]",
        "TRIAL_STATE_PENDING",
    ),
    ("ListTrials", {}, "study", A_STUDY),
    ("ListReports", {}, "parent", A_TRIAL),
    ("ListReports", {"parent": "all"}, "parent", A_STUDY),
    ("GetTrial", {"name": S}, "name", A_TRIAL),
    ("GetTrial", {"name": f"{S}/trials/-1"}, "name", A_TRIAL),
    ("GetTrial", {"name": f"{S}/trials/{10**30}"}, "name", A_TRIAL),
    ("PauseTrial", {}, "name", A_TRIAL),
    ("ResumeTrial", {}, "name", A_TRIAL),
    ("ExplainTrial", {}, "name", A_TRIAL),
    ("StopTrial", {"name": "?"}, "name", A_TRIAL),
    ("StopTrial", {"name": "?", "reason": "\0"}, "reason", "Remove it"),
    ("RetryTrials", {"study": S, "trial_numbers": [-1]}, "trial_numbers[0]", ""),
    ("RetryTrials", {}, "study", A_STUDY),
    ("AddTrials", {"study": S}, "parameters", "Add one"),
    ("AddTrials", {"study": S, "parameters": [assignment(x=0.5)] * 1001}, "parameters", "Split them"),
    (
        "AddTrials",
        {"study": S, "parameters": TWO_OF_THREE},
        "parameters[0].x parameters[2].x parameters[2].y",
        "",
    ),
    ("AddTrials", {"study": S, "parameters": [UNSET]}, "parameters[0].x", "kinds of value"),
    ("SuggestTrial", {}, "study client_id", ""),
    ("SuggestTrial", {"lease_time": duration(0.5)}, "lease_time", "1 s to 2592000 s"),
    (
        "SuggestTrial",
        {"study": S, "client_id": "c", "lease_time": duration(2_592_001)},
        "lease_time",
        "2592000",
    ),
    ("ReportTrial", {"step": 1}, "lease.lease_id lease.attempt lease.trial", ""),
    ("ReportTrial", {"lease": lease(), "step": -1, "metrics": {"": 1.0}}, "step metrics", ""),
    ("ReportTrial", {"lease": lease(), "step": 1, "metrics": {"a\0": 1.0}}, r"metrics['a\x00']", "Remove it"),
    ("CompleteTrial", {"lease": lease(trial="s/0")}, "lease.trial", A_TRIAL),
    ("RenewTrial", {"lease": lease(trial="s/0", attempt=0)}, "lease.attempt lease.trial", A_TRIAL),
    ("ReleaseTrial", {"lease": lease(trial="s/0", attempt=0)}, "lease.attempt lease.trial", A_TRIAL),
]


async def test_the_field_at_fault_is_named_with_a_remedy(site: RpcSite) -> None:
    before = await site.create()
    for method, sent, fields, remedy in FIELD_CASES:
        where = f"{method}({sent})"[:200]
        error = await refusal(site, method, request_of(method, sent))
        assert isinstance(error, errors.InvalidFieldError), where
        assert sorted(violation.field for violation in error.violations) == sorted(fields.split()), where
        assert all(violation.remedy for violation in error.violations), where
        assert any(remedy in violation.remedy for violation in error.violations), where
    without_spec = await site.refusal("CreateStudy", pb.CreateStudyRequest(study_id="t"))
    assert isinstance(without_spec, errors.InvalidFieldError)
    assert {violation.field for violation in without_spec.violations} >= {"max_steps", "max_trials"}
    assert await site.study() == before
    assert len((await site.call("ListStudies", pb.ListStudiesRequest())).studies) == 1


ABSENT, NO_TRIAL = "studies/absent", "studies/s/trials/99"
NO_STUDY: list[Call] = [
    *((f"{verb}Study", {"name": ABSENT}) for verb in ("Get", "Pause", "Resume", "Stop", "Delete", "Watch")),
    ("PauseStudy", {"name": ABSENT, "request_id": "r"}),
    ("ExtendStudy", {"name": ABSENT, "trials": 1}),
    *(
        (method, {"study": ABSENT})
        for method in ("ListTrials", "ReadCurves", "MeasureImportance", "FindRoom", "RetryTrials")
    ),
    ("ListReports", {"parent": ABSENT}),
    ("Annotate", {"name": ABSENT, "note": "x"}),
    ("SuggestTrial", {"study": ABSENT, "client_id": "c"}),
    ("AddTrials", {"study": ABSENT, "parameters": [assignment(x=1.0)]}),
]
REFUSED: list[tuple[type[errors.HeadraceError], list[Call]]] = [
    (errors.StudyNotFoundError, NO_STUDY),
    (
        errors.TrialNotFoundError,
        [
            *((f"{verb}Trial", {"name": NO_TRIAL}) for verb in ("Get", "Pause", "Resume", "Stop", "Explain")),
            ("ListReports", {"parent": NO_TRIAL}),
            ("Annotate", {"name": NO_TRIAL, "note": "x"}),
            ("RetryTrials", {"study": S, "trial_numbers": [99]}),
        ],
    ),
    (errors.StudyNotEndedError, [("DeleteStudy", {"name": S})]),
    (errors.StudyExistsError, [("CreateStudy", {"study_id": "s", "spec": GOOD})]),
    (
        errors.LeaseStaleError,
        [
            ("ReportTrial", {"lease": lease(), "step": 1}),
            ("CompleteTrial", {"lease": lease()}),
            ("RenewTrial", {"lease": lease()}),
            ("ReleaseTrial", {"lease": lease()}),
        ],
    ),
]


async def are_refused(site: RpcSite, expected: type[errors.HeadraceError], calls: list[Call]) -> None:
    for method, sent in calls:
        error = await refusal(site, method, request_of(method, sent))
        assert type(error) is expected, (method, error)
        assert error.remedy, method


async def test_what_is_not_there_or_cannot_be_done_is_refused_by_its_reason(site: RpcSite) -> None:
    await site.create()
    for expected, calls in REFUSED:
        await are_refused(site, expected, calls)


async def test_an_ended_study_takes_no_changes(site: RpcSite) -> None:
    await site.create()
    await site.suggest()
    await site.call("StopStudy", pb.StopStudyRequest(name=S, reason="enough"))
    of_study: list[Call] = [
        ("PauseStudy", {"name": S}),
        ("ResumeStudy", {"name": S}),
        ("AddTrials", {"study": S, "parameters": [assignment(x=0.1)]}),
    ]
    await are_refused(site, errors.StudyEndedError, of_study)
    first = {"name": f"{S}/trials/0"}
    of_trial = [(f"{verb}Trial", first) for verb in ("Pause", "Resume", "Stop")]
    await are_refused(site, errors.TrialEndedError, of_trial)


async def test_trials_of_workers_are_not_for_ask_and_tell(site: RpcSite) -> None:
    await site.create(template={"callable": "train:train", "working_dir": "/tmp"})
    calls: list[Call] = [
        ("SuggestTrial", {"study": S, "client_id": "c"}),
        ("ReportTrial", {"lease": lease(), "step": 1}),
        ("CompleteTrial", {"lease": lease()}),
        ("RenewTrial", {"lease": lease()}),
        ("ReleaseTrial", {"lease": lease()}),
    ]
    await are_refused(site, errors.NotAskTellError, calls)


async def refusal(site: RpcSite, method: str, request: Any) -> errors.HeadraceError:
    if method != "WatchStudy":
        return await site.refusal(method, request)
    try:
        async for response in site.replicas[0].watch(request):
            raise AssertionError(f"the watch was not refused: {response}")
    except errors.HeadraceError as error:
        return error
    raise AssertionError("the watch ended in good order")
