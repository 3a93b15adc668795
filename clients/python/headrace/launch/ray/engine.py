"""The engine of Ray: seats as named actors. See the package's docstring."""

import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.launch.decision import Kind
from headrace.launch.engine import Member, Stage
from headrace.launch.ray.cluster import short
from headrace.launch.ray.worker import Worker


class Actors(Protocol):
    """What this needs of a cluster of Ray; `cluster.RayCluster` has it. Calls raise EngineError."""

    def names(self) -> Sequence[str]:
        """The actors that have not ended, also those that have not started."""
        ...

    def create(self, name: str, worker: Worker, prefix: str, *, cpus: float, gpus: float) -> bool:
        """Requests an actor; False if there is one of this name."""
        ...

    def identity(self, name: str) -> str | None:
        """An actor's id; None if it has ended."""
        ...

    def awaiting(self, names: Collection[str]) -> Mapping[str, bool]:
        """Whether the worker of each of these actors waits for a token. Those that have not started, have ended or do
        not answer are left out.
        """
        ...

    def give(self, name: str, token: str) -> bool:
        """Gives it a token; False if it has another one or has ended."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Ray:
    """One launch in a cluster of Ray. Implements `headrace.launch.engine.Engine`."""

    actors: Actors
    worker: Worker
    kind: Kind
    launch: str
    cpus: float
    """The CPUs that Ray sets aside for each worker."""

    def members(self) -> Sequence[Member]:
        """The actors of the launch, by seat."""
        found: dict[int, str] = {}
        for name in self.actors.names():
            prefix, _, seat = name.rpartition("-")
            if prefix != f"headrace-{self.launch}" or not seat.isdecimal():
                continue
            if (actor := self.actors.identity(name)) is not None:
                found[int(seat)] = actor
        awaiting = self.actors.awaiting([self._name(seat) for seat in found])
        return [self._member(seat, found[seat], awaiting.get(self._name(seat))) for seat in sorted(found)]

    def submit(self, seats: Collection[int]) -> None:
        """One actor for each seat. A seat that another loop has filled stays as it is."""
        gpus = self.kind.slots if self.kind.on_gpu else 0
        for seat in seats:
            self.actors.create(self._name(seat), self.worker, self._prefix(seat), cpus=self.cpus, gpus=gpus)

    def withdraw(self, member: Member) -> None:
        """Nothing: Ray has one living actor of a name, so no seat has two."""

    def deliver(self, member: Member, secret: str) -> bool:
        """Calls the actor with its worker's token."""
        name = self._name(member.seat)
        return self.actors.identity(name) == member.id and self.actors.give(name, secret)

    def shown(self, seats: Collection[int]) -> str:
        """What each actor is, and what it runs."""
        gpus = self.kind.slots if self.kind.on_gpu else 0
        lines = []
        for seat in seats:
            line = ["headrace", "worker", *self.worker.options, "--name", f"{self._prefix(seat)}-ID"]
            lines.append(f"{self._name(seat)}: num_cpus={self.cpus:g} num_gpus={gpus}")
            lines.append(f"    {shlex.join([*line, *(['--join', '-'] if self.worker.tokens else [])])}")
        return "\n".join(lines)

    def _member(self, seat: int, actor: str, awaits: bool | None) -> Member:
        return Member(
            seat=seat,
            id=actor,
            stage=Stage.PENDING if awaits is None else Stage.RUNNING,
            worker=f"{self._prefix(seat)}-{short(actor)}",
            why="no node has its resources free, or it is starting" if awaits is None else "",
            awaits_token=bool(awaits),
        )

    def _name(self, seat: int) -> str:
        return f"headrace-{self.launch}-{seat}"

    def _prefix(self, seat: int) -> str:
        return f"ray-{self.launch}-{seat}"
