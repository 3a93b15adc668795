"""Asks the bubble agent of this machine, again and again, which stages trials may have."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import grpc

from headrace.target import proxy_options
from headrace.v1 import bubble_pb2, bubble_pb2_grpc
from headrace_torch.bubble_words import AT, StageFile, StageFileError, folder

log = logging.getLogger(__name__)

EVERY_S: Final = 1.0
PATIENCE_S: Final = 2.0
SOCKET: Final = "agent.sock"
"""In the folder of the stages' files."""
Heard = Callable[[Sequence[bubble_pb2.BubbleJob] | None], None]


async def watch_agent(heard: Heard) -> None:
    """Tell `heard` what the agent says, None where it says nothing, until this is cancelled."""
    target = f"unix:{folder() / SOCKET}"
    async with grpc.aio.insecure_channel(target, options=proxy_options(target)) as channel:
        stub: Any = bubble_pb2_grpc.BubbleServiceStub(channel)
        while True:
            try:
                answer = await stub.ListBubbleJobs(bubble_pb2.ListBubbleJobsRequest(), timeout=PATIENCE_S)
                heard(answer.jobs)
            except grpc.aio.AioRpcError as error:
                log.debug("the bubble agent does not answer: %s", error.details())
                heard(None)
            await asyncio.sleep(EVERY_S)


def tell_to_leave(gate: str) -> None:
    """Tell the trial of a stage whose rank has ended to leave: its gate, which nobody opens any more, lets it go on to
    its next report. The agent has let go of the file."""
    with suppress(StageFileError):
        file = StageFile.open(Path(gate))
        if not file.alive():
            file.words[AT["evict"]] = 1
        file.close()
