"""What the page of bubbles gets from an agent, and without one."""

from pathlib import Path

import grpc
import pytest

from headrace.v1 import bubble_pb2 as pb
from headrace.v1 import bubble_pb2_grpc
from headrace_services.bubble_agent.process import SOCKET
from headrace_services.console.pages import bubbles


class Agent(bubble_pb2_grpc.BubbleServiceServicer):
    async def ListBubbleJobs(self, *_: object) -> pb.ListBubbleJobsResponse:
        stage = pb.BubbleStage(stage=1, device="cuda:1", trial=pb.BubbleTrial(pid=7, overruns=2))
        return pb.ListBubbleJobsResponse(jobs=[pb.BubbleJob(name="<gpt>", stages=2, local_stages=[stage])])


async def test_without_an_agent_there_is_no_answer(tmp_path: Path) -> None:
    assert await bubbles.jobs(tmp_path) is None


async def test_the_socket_is_the_agents() -> None:
    assert bubbles.SOCKET == SOCKET


async def test_jobs_are_those_of_the_agent(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("b")
    server = grpc.aio.server()
    bubble_pb2_grpc.add_BubbleServiceServicer_to_server(Agent(), server)
    server.add_insecure_port(f"unix:{folder / bubbles.SOCKET}")
    await server.start()
    try:
        found = await bubbles.jobs(folder)
    finally:
        await server.stop(0)
    assert found is not None
    (job,) = bubbles.plain(found)
    assert (job["name"], job["local_stages"][0]["trial"]["pid"]) == ("<gpt>", 7)
    from headrace_services.console.rendering import _environment

    page = _environment.get_template("bubbles.html").render(
        title="Bubbles",
        data={},
        answer=found,
        folder=folder,
        request=None,
        root="",
        path="/",
        session=None,
    )
    assert "&lt;gpt&gt;" in page
    assert "<gpt>" not in page
