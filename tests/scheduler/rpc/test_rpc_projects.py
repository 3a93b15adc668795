"""Projects: whatever belongs to another project does not exist, by any name; and what a project may have."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from rpc_site import TIMEOUT_S, RpcSite, make_spec
from sqlalchemy import text

from headrace.errors import (
    BadPageTokenError,
    HeadraceError,
    InvalidFieldError,
    LeaseStaleError,
    ProjectExistsError,
    ProjectNotFoundError,
    QuotaExceededError,
    StudyExistsError,
    StudyNotFoundError,
)
from headrace.spec import to_proto
from headrace.v1 import event_pb2, project_pb2, spec_pb2
from headrace.v1 import study_pb2 as pb
from headrace_services.identity.roles import Role
from headrace_services.scheduler.rpc.caller import Caller
from headrace_services.scheduler.rpc.choosing import HEADER, in_chosen_project
from headrace_services.scheduler.store import after, proposals, workers
from headrace_services.scheduler.store.database import transaction

OURS, THEIRS = "vision", "speech"
MARK = "theirs"
"""A word that only the other project's study contains."""

Make = Callable[[str, event_pb2.LeaseRef], Any]
"""Makes a request about the study with a given name, or about a lease of it."""


def _spec(mark: str = "ours", **changes: Any) -> spec_pb2.StudySpec:
    space = {f"{mark}_x": {"type": "float", "low": 0.0, "high": 1.0}}
    return to_proto(make_spec(space=space, **changes))


def _assignment() -> spec_pb2.ParameterAssignment:
    return spec_pb2.ParameterAssignment(values={"ours_x": spec_pb2.ParameterValue(float_value=0.5)})


CALLS: dict[str, Make] = {
    "GetStudy": lambda name, _: pb.GetStudyRequest(name=f"studies/{name}"),
    "PauseStudy": lambda name, _: pb.PauseStudyRequest(name=f"studies/{name}"),
    "ResumeStudy": lambda name, _: pb.ResumeStudyRequest(name=f"studies/{name}"),
    "AddTrials": lambda name, _: pb.AddTrialsRequest(study=f"studies/{name}", parameters=[_assignment()]),
    "ExtendStudy": lambda name, _: pb.ExtendStudyRequest(name=f"studies/{name}", trials=1),
    "GetTrial": lambda name, _: pb.GetTrialRequest(name=f"studies/{name}/trials/0"),
    "ListTrials": lambda name, _: pb.ListTrialsRequest(study=f"studies/{name}"),
    "PauseTrial": lambda name, _: pb.PauseTrialRequest(name=f"studies/{name}/trials/0"),
    "ResumeTrial": lambda name, _: pb.ResumeTrialRequest(name=f"studies/{name}/trials/0"),
    "StopTrial": lambda name, _: pb.StopTrialRequest(name=f"studies/{name}/trials/0"),
    "RetryTrials": lambda name, _: pb.RetryTrialsRequest(study=f"studies/{name}", trial_numbers=[0]),
    "WatchStudy": lambda name, _: pb.WatchStudyRequest(name=f"studies/{name}"),
    "ExplainTrial": lambda name, _: pb.ExplainTrialRequest(name=f"studies/{name}/trials/0"),
    "SuggestTrial": lambda name, _: pb.SuggestTrialRequest(study=f"studies/{name}", client_id="c"),
    "ReportTrial": lambda _, lease: pb.ReportTrialRequest(lease=lease, step=1, metrics={"loss": 0.1}),
    "CompleteTrial": lambda _, lease: pb.CompleteTrialRequest(lease=lease),
    "RenewTrial": lambda _, lease: pb.RenewTrialRequest(lease=lease),
    "ReleaseTrial": lambda _, lease: pb.ReleaseTrialRequest(lease=lease),
    "ListReports": lambda name, _: pb.ListReportsRequest(parent=f"studies/{name}"),
    "ReadLog": lambda name, _: pb.ReadLogRequest(name=f"studies/{name}/trials/0"),
    "ReadCurves": lambda name, _: pb.ReadCurvesRequest(study=f"studies/{name}"),
    "Annotate": lambda name, _: pb.AnnotateRequest(name=f"studies/{name}", add_tags=["ours"], note="ours"),
    "FindRoom": lambda name, _: pb.FindRoomRequest(study=f"studies/{name}"),
    "MeasureImportance": lambda name, _: pb.MeasureImportanceRequest(study=f"studies/{name}"),
    "StopStudy": lambda name, _: pb.StopStudyRequest(name=f"studies/{name}"),
    "ForgetCheckpoints": lambda name, _: pb.ForgetCheckpointsRequest(study=f"studies/{name}", uris=["a"]),
    "DeleteStudy": lambda name, _: pb.DeleteStudyRequest(name=f"studies/{name}"),
}
"""The calls about one study. Those that end it come last."""
OTHERS = {"CreateStudy", "ListStudies", "PreviewStudy", "ListWorkers"} | {
    *("DrainWorker", "UndrainWorker", "CordonDevices", "UncordonDevices"),
    *("GetServerInfo", "GetUpkeep", "CleanUp"),
}
"""The calls that are not about a study."""
BY_LEASE = {"ReportTrial", "RenewTrial", "CompleteTrial", "ReleaseTrial"}


async def _theirs(site: RpcSite) -> event_pb2.LeaseRef:
    """Create the other project's study `s` with a running trial. Returns its lease."""
    create = pb.CreateStudyRequest(study_id="s", spec=_spec(MARK))
    await site.replicas[0].call_in(THEIRS, "CreateStudy", create)
    asked = await site.replicas[0].call_in(
        THEIRS, "SuggestTrial", pb.SuggestTrialRequest(study="studies/s", client_id=MARK)
    )
    report = pb.ReportTrialRequest(lease=asked.lease, step=1, metrics={"loss": 0.25}, checkpoint_uri=MARK)
    await site.replicas[0].call_in(THEIRS, "ReportTrial", report)
    assert asked.lease.trial == "studies/s/trials/0"
    lease: event_pb2.LeaseRef = asked.lease
    return lease


async def _rows(site: RpcSite) -> list[Any]:
    """All rows of the other project in the database."""
    of = f"study_id IN (SELECT id FROM study WHERE project = '{THEIRS}')"
    queries = [f"SELECT * FROM study WHERE project = '{THEIRS}'"]
    queries += [
        f"SELECT * FROM {table} WHERE {of} ORDER BY 1, 2" for table in ("trial", "lease", "event", "report")
    ]
    async with site.engine.connect() as conn:
        return [list((await conn.execute(text(query))).all()) for query in queries]


def test_every_call_of_the_service_is_in_the_table() -> None:
    service = pb.DESCRIPTOR.services_by_name["StudyService"]
    assert {method.name for method in service.methods} == set(CALLS) | OTHERS


async def test_another_projects_study_is_not_found_by_any_call(site: RpcSite) -> None:
    lease = await _theirs(site)
    before = await _rows(site)
    for method, make in CALLS.items():
        with pytest.raises(StudyNotFoundError) as caught:
            await site.replicas[0].call_in(OURS, method, make("s", lease))
        assert str(caught.value).startswith("there is no study 's'"), method
    assert await _rows(site) == before


async def test_of_two_studies_of_one_name_every_call_finds_ones_own(site: RpcSite) -> None:
    lease = await _theirs(site)
    ours = site.replicas[0]
    created = await ours.call_in(OURS, "CreateStudy", pb.CreateStudyRequest(study_id="s", spec=_spec()))
    assert created.study.project == OURS
    async with asyncio.timeout(TIMEOUT_S):
        while not (await ours.call_in(OURS, "ListTrials", pb.ListTrialsRequest(study="studies/s"))).trials:
            await asyncio.sleep(0.01)
    before = await _rows(site)
    for method, make in CALLS.items():
        if method in BY_LEASE:
            with pytest.raises(LeaseStaleError):
                await ours.call_in(OURS, method, make("s", lease))
            continue
        request = make("s", lease)
        if method == "ForgetCheckpoints":
            found = await ours.call_in(OURS, "GetStudy", pb.GetStudyRequest(name="studies/s"))
            request.cursor = found.study.status.cursor
        answer = await ours.call_in(OURS, method, request)
        assert MARK not in str(answer), method
        if method in ("GetStudy", "PauseStudy", "StopStudy"):
            assert answer.study.uid == created.study.uid
    assert await _rows(site) == before
    listed = await ours.call_in(THEIRS, "ListStudies", pb.ListStudiesRequest())
    assert [study.name for study in listed.studies] == ["studies/s"], "and theirs is where it was"


async def test_lists_and_names_are_a_projects_own(site: RpcSite) -> None:
    await _theirs(site)
    ours = site.replicas[0]
    assert not (await ours.call_in(OURS, "ListStudies", pb.ListStudiesRequest())).studies
    create = pb.CreateStudyRequest(study_id="s", spec=_spec())
    await ours.call_in(OURS, "CreateStudy", create)
    with pytest.raises(StudyExistsError):
        await ours.call_in(OURS, "CreateStudy", create)
    await ours.call_in(OURS, "CreateStudy", pb.CreateStudyRequest(study_id="t", spec=_spec()))
    page = await ours.call_in(OURS, "ListStudies", pb.ListStudiesRequest(page_size=1))
    again = pb.ListStudiesRequest(page_size=1, page_token=page.next_page_token)
    assert [one.name for one in (await ours.call_in(OURS, "ListStudies", again)).studies] == ["studies/s"]
    with pytest.raises(BadPageTokenError):
        await ours.call_in(THEIRS, "ListStudies", again)


async def test_a_request_id_of_another_project_is_another_request(site: RpcSite) -> None:
    ours = site.replicas[0]
    create = pb.CreateStudyRequest(request_id="r", study_id="s", spec=_spec())
    first = await ours.call_in(THEIRS, "CreateStudy", create)
    second = await ours.call_in(OURS, "CreateStudy", create)
    assert first.study.uid != second.study.uid
    assert await ours.call_in(OURS, "CreateStudy", create) == second
    stop = pb.StopStudyRequest(request_id="stop", name="studies/s")
    await ours.call_in(THEIRS, "StopStudy", stop)
    assert (
        await ours.call_in(OURS, "GetStudy", pb.GetStudyRequest(name="studies/s"))
    ).study.state == pb.STUDY_STATE_ACTIVE
    delete = pb.DeleteStudyRequest(request_id="gone", name="studies/s")
    await ours.call_in(THEIRS, "DeleteStudy", delete)
    with pytest.raises(HeadraceError, match="has not ended"):
        await ours.call_in(OURS, "DeleteStudy", delete)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"after": "s"}, "after"),
        ({"warm_start": {"study": "s"}, "sampler": {"kind": "tpe"}}, "warm_start.study"),
        ({"sampler": {"kind": "best_of", "study": "s"}}, "sampler.study"),
    ],
)
async def test_a_study_names_none_of_another_project(
    site: RpcSite, changes: dict[str, Any], field: str
) -> None:
    await _theirs(site)
    create = pb.CreateStudyRequest(study_id="new", spec=_spec(MARK, **changes))
    with pytest.raises(InvalidFieldError) as caught:
        await site.replicas[0].call_in(OURS, "CreateStudy", create)
    assert [violation.field for violation in caught.value.violations] == [field]


async def test_neither_gates_nor_ends_of_another_projects_studies_count(site: RpcSite) -> None:
    await _theirs(site)
    ours = site.replicas[0]
    await ours.call_in(OURS, "CreateStudy", pb.CreateStudyRequest(study_id="s", spec=_spec()))
    await ours.call_in(OURS, "CreateStudy", pb.CreateStudyRequest(study_id="t", spec=_spec(after="s")))
    ended = "UPDATE study SET checks = 'key', state = 'COMPLETED', end_time = clock_timestamp() WHERE project = :p"
    async with site.engine.begin() as conn:
        await conn.execute(text(ended), {"p": THEIRS})
        assert await after.passed_gate(conn, THEIRS, "key") == "s"
        assert await after.passed_gate(conn, OURS, "key") is None
        assert await after.waits_over(conn) == []
        assert await proposals.source(conn, OURS, "t") is not None
        assert await proposals.source(conn, THEIRS, "t") is None
        assert await after.pilot_trials(conn, THEIRS, "s") != []
        assert not await proposals.earlier(conn, OURS, "s", 1, 10, top=9), "theirs has a result at this step"
        assert await proposals.earlier(conn, THEIRS, "s", 1, 10, top=9)


def test_a_token_says_the_project_and_only_an_admin_without_one_may_choose() -> None:
    admin = Caller(peer="ipv4:127.0.0.1:1")
    assert in_chosen_project(admin, ()) == admin
    assert in_chosen_project(admin, ((HEADER, OURS),)).project == OURS
    bound = Caller(peer="ipv4:127.0.0.1:1", project=OURS, token="abc")
    assert in_chosen_project(bound, ((HEADER, OURS),)) == bound
    for who in (bound, Caller(peer="ipv4:127.0.0.1:1", role=Role.EDITOR)):
        with pytest.raises(InvalidFieldError, match="is not the project of the caller's token"):
            in_chosen_project(who, ((HEADER, THEIRS),))
    with pytest.raises(InvalidFieldError, match="invalid project name"):
        in_chosen_project(admin, ((HEADER, "Vision!"),))


# --- what a project may have ------------------------------------------------------------------------------


async def test_projects_are_created_listed_and_limited(site: RpcSite) -> None:
    ours = site.replicas[0]
    create = project_pb2.CreateProjectRequest(request_id="c", project_id=OURS, slots=4)
    made = (await ours.call_in("default", "CreateProject", create)).project
    assert (made.name, made.slots, made.HasField("studies")) == ("projects/vision", 4, False)
    assert (await ours.call_in("default", "CreateProject", create)).project == made, "a repeat"
    with pytest.raises(ProjectExistsError):
        await ours.call_in("default", "CreateProject", project_pb2.CreateProjectRequest(project_id=OURS))
    change = project_pb2.SetProjectRequest(
        name="projects/vision", slots={}, studies=project_pb2.ProjectLimit(most=1)
    )
    now = (await ours.call_in("default", "SetProject", change)).project
    assert (now.HasField("slots"), now.studies) == (False, 1)
    await ours.call_in(OURS, "CreateStudy", pb.CreateStudyRequest(study_id="s", spec=_spec()))
    found = (await ours.call_in("default", "ListProjects", project_pb2.ListProjectsRequest())).projects
    assert [(one.name, one.studies_unended) for one in found] == [
        ("projects/default", 0),
        ("projects/vision", 1),
    ]
    unknown = project_pb2.SetProjectRequest(name="projects/other", slots={})
    with pytest.raises(ProjectNotFoundError):
        await ours.call_in("default", "SetProject", unknown)
    with pytest.raises(InvalidFieldError):
        await ours.call_in("default", "SetProject", project_pb2.SetProjectRequest(name="vision"))


async def test_a_project_has_no_more_studies_than_it_may(site: RpcSite) -> None:
    ours = site.replicas[0]
    create = project_pb2.CreateProjectRequest(project_id=OURS, studies=1)
    await ours.call_in("default", "CreateProject", create)
    await ours.call_in(OURS, "CreateStudy", pb.CreateStudyRequest(study_id="a", spec=_spec()))
    second = pb.CreateStudyRequest(study_id="b", spec=_spec())
    with pytest.raises(QuotaExceededError, match="has 1 study that has not ended, and may have 1"):
        await ours.call_in(OURS, "CreateStudy", second)
    await ours.call_in(THEIRS, "CreateStudy", second)
    await ours.call_in(OURS, "StopStudy", pb.StopStudyRequest(name="studies/a"))
    await ours.call_in(OURS, "CreateStudy", second)


async def test_a_study_that_has_ended_continues_only_where_the_project_has_room(site: RpcSite) -> None:
    ours = site.replicas[0]
    create = project_pb2.CreateProjectRequest(project_id=OURS, studies=1)
    await ours.call_in("default", "CreateProject", create)
    await ours.call_in(OURS, "CreateStudy", pb.CreateStudyRequest(study_id="a", spec=_spec()))
    extend = pb.ExtendStudyRequest(name="studies/a", trials=1)
    await ours.call_in(OURS, "ExtendStudy", extend)  # the study already counts
    suggested = await ours.call_in(OURS, "SuggestTrial", CALLS["SuggestTrial"]("a", event_pb2.LeaseRef()))
    failed = pb.CompleteTrialRequest(lease=suggested.lease, error="it broke")
    await ours.call_in(OURS, "CompleteTrial", failed)
    await ours.call_in(OURS, "StopStudy", pb.StopStudyRequest(name="studies/a"))
    await ours.call_in(OURS, "CreateStudy", pb.CreateStudyRequest(study_id="b", spec=_spec()))
    retry = pb.RetryTrialsRequest(study="studies/a", trial_numbers=[suggested.trial.number])
    for method, request in (("ExtendStudy", extend), ("RetryTrials", retry)):
        with pytest.raises(
            QuotaExceededError, match="'vision' has 1 study that has not ended, and may have 1"
        ):
            await ours.call_in(OURS, method, request)
    found = (await ours.call_in(OURS, "GetStudy", pb.GetStudyRequest(name="studies/a"))).study
    assert (found.spec.max_trials, found.state) == (10, pb.STUDY_STATE_STOPPED), "nothing is half done"
    await ours.call_in(OURS, "StopStudy", pb.StopStudyRequest(name="studies/b"))
    elsewhere = await site.add_replica()
    said = await asyncio.gather(
        ours.call_in(OURS, "ExtendStudy", extend),
        elsewhere.call_in(OURS, "ExtendStudy", pb.ExtendStudyRequest(name="studies/b", trials=1)),
        return_exceptions=True,
    )
    assert sorted(type(one).__name__ for one in said) == ["ExtendStudyResponse", "QuotaExceededError"]


async def test_a_trial_larger_than_the_quota_is_refused_at_once(site: RpcSite) -> None:
    ours = site.replicas[0]
    await ours.call_in("default", "CreateProject", project_pb2.CreateProjectRequest(project_id=OURS, slots=2))
    template = {"callable": "t:t", "working_dir": "/"}
    large = _spec(template=template, resources={"gpus": 4})
    with pytest.raises(InvalidFieldError) as caught:
        await ours.call_in(OURS, "CreateStudy", pb.CreateStudyRequest(study_id="s", spec=large))
    (violation,) = caught.value.violations
    assert violation.field == "resources"
    assert "the quota of project 'vision', which is 2 slots" in violation.message
    assert not (await ours.call_in(OURS, "ListStudies", pb.ListStudiesRequest())).studies


async def test_a_greater_quota_wakes_the_studies_that_it_kept_off(
    site: RpcSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = site.replicas[0]
    await ours.call_in(OURS, "CreateStudy", pb.CreateStudyRequest(study_id="s", spec=_spec()))
    await ours.call_in(THEIRS, "CreateStudy", pb.CreateStudyRequest(study_id="s", spec=_spec()))
    await ours.hub.drain()  # so that no cycle checks, and finds that nothing holds the studies back
    ours.hub.closing = False
    async with site.engine.begin() as conn:
        await conn.execute(text("UPDATE study SET standing = jsonb_set(standing, '{held_off}', '1000')"))
        query = text("SELECT id FROM study WHERE project = :p")
        (own,) = (await conn.execute(query, {"p": OURS})).scalars()
    kicked: list[int] = []
    monkeypatch.setattr(ours.hub, "kick", kicked.append)
    request = project_pb2.SetProjectRequest(name="projects/vision", slots={"most": 8})
    await ours.call_in("default", "SetProject", request)
    assert kicked == [own]


async def test_a_preview_assumes_no_more_slots_than_the_quota(site: RpcSite) -> None:
    devices = tuple(
        workers.Device(index=n, kind="CPU", model="cpu", memory_bytes=0, uuid="") for n in range(4)
    )
    greeting = workers.Greeting(
        name="w", incarnation="1", devices=devices, labels={}, version="", log_dir="/l"
    )
    async with transaction(site.engine) as conn:
        await workers.greet(conn, greeting, 3600)
    ours = site.replicas[0]
    await ours.call_in("default", "CreateProject", project_pb2.CreateProjectRequest(project_id=OURS, slots=2))
    preview = pb.PreviewStudyRequest(spec=_spec())
    assert (await ours.call_in(OURS, "PreviewStudy", preview)).slots == 2
    assert (await ours.call_in(THEIRS, "PreviewStudy", preview)).slots == 4


async def test_members_of_other_projects_see_their_own(
    site: RpcSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace_services.scheduler.rpc import caller, project_service

    await _theirs(site)
    member = Caller(peer="p", project=THEIRS, role=Role.ADMIN, token="abc")
    for asked in (caller, project_service):
        monkeypatch.setattr(asked, "caller", lambda: member)
    ours = site.replicas[0]
    found = (await ours.call_in("default", "ListProjects", project_pb2.ListProjectsRequest())).projects
    assert [one.name for one in found] == ["projects/speech"]
