"""BubbleService: convert, ask the agent, convert. The agent is in memory, so no call waits."""

import time
from collections.abc import AsyncIterator
from typing import Any, Final

import grpc

from headrace.bounds import violations
from headrace.bounds.edge import refuse
from headrace.errors import InvalidFieldError, Violation
from headrace.v1 import bubble_pb2 as pb
from headrace.v1 import bubble_pb2_grpc
from headrace_services.bubble_agent.agent import Agent
from headrace_services.bubble_agent.convert import job_message, timeline_message
from headrace_services.bubble_agent.job import PeerSaid

Context = grpc.aio.ServicerContext[Any, Any]
SECONDS: Final = 2.0


class BubbleServicer(bubble_pb2_grpc.BubbleServiceServicer):
    """Answers for one agent, on its event loop."""

    def __init__(self, agent: Agent, pid: int) -> None:
        """Starts nothing by itself."""
        self._agent, self._pid = agent, pid

    async def ListBubbleJobs(
        self, request: pb.ListBubbleJobsRequest, context: Context
    ) -> pb.ListBubbleJobsResponse:
        """Every job, or the named one."""
        _ = context
        jobs = [job for name, job in sorted(self._agent.jobs.items()) if request.job in ("", name)]
        return pb.ListBubbleJobsResponse(
            jobs=[job_message(self._agent, job) for job in jobs if job.stages],
            agent_pid=self._pid,
            folder=str(self._agent.folder),
        )

    async def GetBubbleTimeline(
        self, request: pb.GetBubbleTimelineRequest, context: Context
    ) -> pb.GetBubbleTimelineResponse:
        """The timeline of the named job, or of the only job."""
        jobs = self._agent.jobs
        name = request.job or (next(iter(jobs)) if len(jobs) == 1 else "")
        if name not in jobs:
            known = ", ".join(sorted(jobs)[:20]) or "none"
            refuse(
                context,
                InvalidFieldError(
                    [
                        Violation(
                            field="job",
                            value=request.job,
                            message="names no job on this machine",
                            remedy=f"Give one of: {known}.",
                        )
                    ]
                ),
            )
            return pb.GetBubbleTimelineResponse()
        seconds = request.seconds if request.HasField("seconds") else SECONDS
        return timeline_message(self._agent, jobs[name], now=time.monotonic_ns(), seconds=seconds)

    async def ShareProgress(
        self, requests: AsyncIterator[pb.ShareProgressRequest], context: Context
    ) -> pb.ShareProgressResponse:
        """Receives hints until the sender ends. A message out of bounds ends the call."""
        taken = 0
        async for one in requests:
            if found := violations(one):
                refuse(context, InvalidFieldError(found))
                return pb.ShareProgressResponse(taken=taken)
            self._agent.hear(
                one.agent,
                (one.job, one.replica, one.stage),
                PeerSaid(
                    stages=one.stages,
                    micro_batches=one.micro_batches,
                    level=one.level,
                    control_share=one.control_share,
                    busy=one.busy,
                ),
                step=one.step,
                forwards=one.forwards,
                backwards=one.backwards,
            )
            taken += 1
        return pb.ShareProgressResponse(taken=taken)
