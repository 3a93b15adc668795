"""`headrace project`, and the project that a client's calls name."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from commands_run import Invoke

from headrace import Client, InvalidFieldError
from headrace.v1 import project_pb2 as pb
from headrace.v1 import project_pb2_grpc


class Projects(project_pb2_grpc.ProjectServiceServicer):
    """Echoes each request, and keeps the metadata."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.named: list[str] = []

    def CreateProject(self, request: pb.CreateProjectRequest, context: Any) -> pb.CreateProjectResponse:
        self._note(request, context)
        project = pb.Project(name=f"projects/{request.project_id}")
        if request.HasField("slots"):
            project.slots = request.slots
        return pb.CreateProjectResponse(project=project)

    def ListProjects(self, request: pb.ListProjectsRequest, context: Any) -> pb.ListProjectsResponse:
        self._note(request, context)
        vision = pb.Project(
            name="projects/vision", slots=4, slots_held=2.5, studies_unended=3, code_mib_held=12.5
        )
        return pb.ListProjectsResponse(projects=[pb.Project(name="projects/default"), vision])

    def SetProject(self, request: pb.SetProjectRequest, context: Any) -> pb.SetProjectResponse:
        self._note(request, context)
        return pb.SetProjectResponse(project=pb.Project(name=request.name, slots=1, studies=1))

    def _note(self, request: Any, context: Any) -> None:
        self.asked.append(request)
        self.named += [value for key, value in context.invocation_metadata() if key == "headrace-project"]


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Projects]:
    server, projects = grpc.server(ThreadPoolExecutor(2)), Projects()
    project_pb2_grpc.add_ProjectServiceServicer_to_server(projects, server)
    monkeypatch.setenv("HEADRACE_ADDRESS", f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
    server.start()
    yield projects
    server.stop(0)


def test_a_project_is_created_with_the_limits_that_are_given(service: Projects, invoke: Invoke) -> None:
    said = invoke("project", "create", "vision", "--slots", "8")
    assert said.code == 0
    assert "Its studies may hold 8 slots at once, and hold 0." in said.err
    assert "It may have any number of studies that have not ended, and has 0." in said.err
    (asked,) = service.asked
    assert (asked.project_id, asked.slots, asked.HasField("studies")) == ("vision", 8, False)
    assert asked.request_id


def test_only_the_limits_that_are_given_change(service: Projects, invoke: Invoke) -> None:
    assert "1 study that" not in invoke("project", "set", "vision", "--slots", "none").out
    (asked,) = service.asked
    assert (asked.name, asked.HasField("slots"), asked.slots.HasField("most")) == (
        "projects/vision",
        True,
        False,
    )
    assert not asked.HasField("studies")


@pytest.mark.parametrize("wrong", ["-1", "many", "1.5", ""])
def test_a_limit_that_is_none_is_refused_before_anything_is_asked(
    service: Projects, invoke: Invoke, wrong: str
) -> None:
    said = invoke("project", "set", "vision", f"--slots={wrong}")
    assert said.code == 2
    assert "--slots: is neither a number from 0 on nor `none`" in said.err
    assert invoke("project", "set", "vision").code == 2
    assert not service.asked


def test_projects_are_listed(service: Projects, invoke: Invoke) -> None:
    assert json.loads(invoke("project", "list", "--json").out)[1] == {
        "name": "vision",
        "slots": 4,
        "studies": None,
        "code_mib": None,
        "slots_held": 2.5,
        "studies_unended": 3,
        "code_mib_held": 12.5,
    }
    assert "vision" in invoke("project", "list").out


def test_calls_name_the_project_that_was_chosen(
    service: Projects, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    invoke("project", "list")
    assert service.named == []
    monkeypatch.setenv("HEADRACE_PROJECT", "vision")
    invoke("project", "list")
    with Client(project="speech") as client:
        assert [one.name for one in client.projects()] == ["default", "vision"]
    assert service.named == ["vision", "speech"]
    with pytest.raises(InvalidFieldError, match="project"):
        Client(project="a\nb")
