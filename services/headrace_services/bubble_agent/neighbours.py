"""Tells the agents of other machines how the stages here progress, over one stream per agent.

A message gives the current state, so a lost or late one costs only a hint. A broken stream is reopened, after a
pause that doubles up to `LONGEST_PAUSE_S`. Queues are short, because waiting messages soon become outdated.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any, Final

import grpc

from headrace.target import proxy_options
from headrace.v1 import bubble_pb2 as pb
from headrace.v1 import bubble_pb2_grpc
from headrace_services.bubble_agent.agent import Agent, Place
from headrace_services.bubble_agent.certificate import OPTIONS, WorkerCertificate

log = logging.getLogger(__name__)

QUEUE: Final = 64
SILENCE_S: Final = 0.5
"""An unchanged state is sent again after this long."""
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 5.0
REACHED_S: Final = 10.0
"""How long a peer is waited for before a new connection is tried."""


class Neighbours:
    """The streams to all peers."""

    def __init__(
        self, agent: Agent, name: str, peers: Sequence[str], certificate: WorkerCertificate | None = None
    ) -> None:
        """Opens nothing before `run`; without a certificate it communicates without TLS."""
        self._agent, self._name, self._certificate = agent, name, certificate
        self._queues = {peer: asyncio.Queue[pb.ShareProgressRequest](QUEUE) for peer in peers}
        self._told: dict[Place, tuple[pb.ShareProgressRequest, float]] = {}

    async def run(self) -> None:
        """Sends to every peer until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for peer, queue in self._queues.items():
                tasks.create_task(self._tell(peer, queue))

    def share(self) -> None:
        """Puts changes into the queues."""
        if not self._queues:
            return
        now = asyncio.get_running_loop().time()
        for (name, replica, stage), known, progress in self._agent.progress():
            job = self._agent.jobs[name]
            message = pb.ShareProgressRequest(
                agent=self._name,
                job=name,
                replica=replica,
                stage=stage,
                stages=known.registration.stages,
                micro_batches=known.registration.micro_batches,
                step=progress.step,
                forwards=progress.forwards,
                backwards=progress.backwards,
                level=job.controller.index,
                control_share=job.controller.control_share,
                busy=self._agent.busy(name),
            )
            before = self._told.get((name, replica, stage))
            if before is not None and before[0] == message and now < before[1] + SILENCE_S:
                continue
            self._told[name, replica, stage] = message, now
            for queue in self._queues.values():
                if queue.full():
                    queue.get_nowait()
                queue.put_nowait(message)

    async def _tell(self, peer: str, queue: "asyncio.Queue[pb.ShareProgressRequest]") -> None:
        pause_s, reached = FIRST_PAUSE_S, True
        while True:
            began = asyncio.get_running_loop().time()
            with suppress(grpc.aio.AioRpcError, TimeoutError):
                async with self._channel(peer) as channel:
                    async with asyncio.timeout(REACHED_S):
                        await channel.channel_ready()
                    if not reached:
                        log.info("the agent at %s answers again", peer)
                    reached = True
                    stub: Any = bubble_pb2_grpc.BubbleServiceStub(channel)
                    await stub.ShareProgress(_drained(queue))
            if reached:
                log.warning("the agent at %s does not answer: its stages give no hints", peer)
            reached = False
            if asyncio.get_running_loop().time() - began > LONGEST_PAUSE_S:
                pause_s = FIRST_PAUSE_S
            await asyncio.sleep(pause_s)
            pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)

    def _channel(self, peer: str) -> grpc.aio.Channel:
        """A new channel each time, because the certificate may be new too."""
        if self._certificate is None:
            return grpc.aio.insecure_channel(peer, options=proxy_options(peer))
        options = (*proxy_options(peer), *OPTIONS, ("grpc.use_local_subchannel_pool", 1))
        return grpc.aio.secure_channel(peer, self._certificate.channel(), options)


async def _drained(queue: "asyncio.Queue[pb.ShareProgressRequest]") -> AsyncIterator[pb.ShareProgressRequest]:
    while True:
        yield await queue.get()
