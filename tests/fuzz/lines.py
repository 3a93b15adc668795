"""Where an attack's calls go, and as whom: at an open service as anybody, at a closed one as one kind of caller."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import grpc
from closed_site import ClosedSite
from fuzz_messages import Known
from fuzz_site import Site
from google.protobuf.descriptor import MethodDescriptor
from sample_calls import Samples, signing_request
from served import METHODS as CLOSED_METHODS
from served import path

from headrace.spiffe import WORKERS_HOST
from headrace.v1 import identity_pb2, planner_pb2, runtime_pb2, study_pb2, worker_pb2
from headrace.v1.study_pb2_grpc import StudyServiceStub
from headrace_services.identity.callers import Caller, Cell, Place, Project, cell

SERVED = 20
"""How many calls of served methods are made for each call of a refused one."""
Metadata = tuple[tuple[str, str], ...]


class Lines(Protocol):
    """The connections of an attack."""

    methods: Sequence[MethodDescriptor]
    metadata: Metadata
    stub: Any
    """The stub of an honest user of the same project, who sees its studies and ends them."""
    honest: Metadata
    worker: str
    """The worker whose certificate the attacker shows; empty if none."""

    def channel(self, method: MethodDescriptor) -> grpc.Channel | None:
        """The channel for a method; None if it is not served now."""
        ...

    def weight(self, method: MethodDescriptor) -> int:
        """The relative frequency of calls of a method."""
        ...

    def waited_s(self) -> float:
        """How long the scheduler's event loop has been ready so far without a core."""
        ...

    def leases(self) -> list[str]:
        """The leases of the trials whose worker is called."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


class OpenLines:
    """Connections to a service on one machine, which lets everybody in."""

    methods: Sequence[MethodDescriptor] = [
        method
        for module in (study_pb2, worker_pb2, identity_pb2, planner_pb2, runtime_pb2)
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    ]
    metadata: Metadata = ()
    honest: Metadata = ()
    worker = ""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._scheduler = grpc.insecure_channel(site.scheduler)
        self._planner = grpc.insecure_channel(site.planner)
        self._runtime: tuple[str, grpc.Channel] | None = None
        self.stub: Any = StudyServiceStub(self._scheduler)  # type: ignore[no-untyped-call]  # generated

    def weight(self, method: MethodDescriptor) -> int:  # noqa: ARG002  # all are served
        return 1

    def waited_s(self) -> float:
        return self._site.waited_s()

    def leases(self) -> list[str]:
        return [lease for _, lease in self._site.runtimes()[-2:]]

    def channel(self, method: MethodDescriptor) -> grpc.Channel | None:
        match method.containing_service.name:
            case "PlannerService":
                return self._planner
            case "TrialRuntimeService":
                return self._runtime_channel()
            case _:
                return self._scheduler

    def close(self) -> None:
        for channel in (self._scheduler, self._planner, *(self._runtime or ())[1:]):
            channel.close()

    def _runtime_channel(self) -> grpc.Channel | None:
        """A channel to the worker, in the name of its newest trial; None before it runs one."""
        found = self._site.runtimes()
        if not found:
            return None
        address, _ = found[-1]
        if self._runtime is None or self._runtime[0] != address:
            self._runtime = (address, grpc.insecure_channel(address))
        return self._runtime[1]


class ClosedLines:
    """Connections to a closed service over TLS, as one caller on the permissions page."""

    methods: Sequence[MethodDescriptor] = list(CLOSED_METHODS.values())

    def __init__(self, site: ClosedSite, caller: Caller, chance: random.Random, waited_s: Any) -> None:
        self._site, self._caller, self._chance = site, caller, chance
        self._channels: dict[str, grpc.Channel] = {}
        self.waited_s = waited_s
        self.metadata = _token(site, caller.heading)
        ends = {
            Project.THIS: "editor",
            Project.OTHER: "editor elsewhere",
            Project.DEFAULT: "admin of `default`",
        }
        self.honest = _token(site, ends[caller.project])
        self.worker = "w1" if caller.place is Place.WORKERS else ""
        self._users = self._opened(site.addresses.users, certificate=False)
        self.stub: Any = StudyServiceStub(self._users)  # type: ignore[no-untyped-call]  # generated

    def weight(self, method: MethodDescriptor) -> int:
        """What is refused at the gate is called now and then."""
        return 1 if cell(path(method), self._caller) in (Cell.NO, Cell.UNSERVED) else SERVED

    def leases(self) -> list[str]:
        return []

    def channel(self, method: MethodDescriptor) -> grpc.Channel | None:
        """The channel of a server that has the method, or if none has, of one that refuses it."""
        service = method.containing_service.name
        if self._caller.place is Place.WORKERS:
            server = "agent" if service == "BubbleService" else "workers"
        else:
            both = service in ("Health", "ServerReflection") and self._chance.random() < 0.5
            server = "planner" if both or service == "PlannerService" else "users"
        if server not in self._channels:
            shown = "certificate" in self._caller.heading
            self._channels[server] = self._opened(getattr(self._site.addresses, server), certificate=shown)
        return self._channels[server]

    def close(self) -> None:
        for channel in (self._users, *self._channels.values()):
            channel.close()

    def _opened(self, address: str, *, certificate: bool) -> grpc.Channel:
        held = self._site.worker
        pair = (held.key, held.certificate) if certificate else (None, None)
        # A connection of its own, as from another machine.
        options = [("grpc.use_local_subchannel_pool", 1)]
        if address == self._site.addresses.agent:
            options.append(("grpc.ssl_target_name_override", WORKERS_HOST))
        return grpc.secure_channel(address, grpc.ssl_channel_credentials(self._site.trusted, *pair), options)


async def known_at(site: ClosedSite, folder: Path) -> Known:
    """Valid values, for the fields that accept them."""
    (code := folder / "code").mkdir()
    samples = Samples(site, code)
    await samples.begin()
    token = await samples.join_token(uses=1000)
    given = {
        "signing_request": (signing_request(),),
        "digest": (samples.digest,),
        "token": (token.secret,),
        "id": (token.token.id,),
        "project_id": ("fuzz-1", "fuzz-2"),
        "service": ("", "headrace.v1.StudyService", "x" * 3_900_000),
    }
    return Known(given=given, archives=(samples.archive,))


def _token(site: ClosedSite, heading: str) -> Metadata:
    text = site.tokens.get(heading)
    return () if text is None else (("authorization", f"Bearer {text}"),)
