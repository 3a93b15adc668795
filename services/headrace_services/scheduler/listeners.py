"""The ports of a scheduler: one for users, and one for workers if workers have certificates.

gRPC cannot accept connections both with and without a certificate on one port. So there are two listeners, and
this module defines which services each has. Without a listener for workers, workers use the users' listener and
state themselves who they are.
"""

from typing import TYPE_CHECKING, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headrace.v1 import (
    code_pb2,
    code_pb2_grpc,
    identity_pb2,
    identity_pb2_grpc,
    join_pb2,
    join_pb2_grpc,
    project_pb2,
    project_pb2_grpc,
    study_pb2,
    study_pb2_grpc,
    worker_pb2,
    worker_pb2_grpc,
)
from headrace_services import reflecting
from headrace_services.identity.gate import Gate
from headrace_services.scheduler.rpc.interceptors import make_server_interceptors
from headrace_services.serving.admission import AdmissionInterceptor
from headrace_services.serving.health import Health
from headrace_services.serving.limits import Known
from headrace_services.serving.server import Server

if TYPE_CHECKING:
    from headrace_services.identity.authority import Authority

STUDIES: Final = study_pb2.DESCRIPTOR.services_by_name["StudyService"].full_name
WORKERS: Final = worker_pb2.DESCRIPTOR.services_by_name["WorkerService"].full_name
IDENTITIES: Final = identity_pb2.DESCRIPTOR.services_by_name["IdentityService"].full_name
PROJECTS: Final = project_pb2.DESCRIPTOR.services_by_name["ProjectService"].full_name
CODE: Final = code_pb2.DESCRIPTOR.services_by_name["CodeService"].full_name
JOINS: Final = join_pb2.DESCRIPTOR.services_by_name["JoinService"].full_name
HEALTH: Final = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name


class Listener:
    """A server and its port, bound but not yet serving."""

    def __init__(
        self,
        option: str,
        address: str,
        credentials: grpc.ServerCredentials | None,
        gate: Gate | None = None,
        known: Known | None = None,
    ) -> None:
        """`option` is how the address was given; `gate` checks tokens; `known` limits what a caller may use. Raise
        HeadraceError if the address is not available."""
        self.asks_for_tokens = gate is not None
        admission = AdmissionInterceptor(gate, known=known)
        self._serving = Server(make_server_interceptors(admission), admission.connections)
        self.server = self._serving.grpc
        self.port = self._serving.bind(option, address, credentials)
        self.address = f"{address.rpartition(':')[0]}:{self.port}"
        self._names: list[str] = []

    def add_studies(self, servicer: study_pb2_grpc.StudyServiceServicer) -> None:
        """Add the services for users."""
        study_pb2_grpc.add_StudyServiceServicer_to_server(servicer, self.server)
        self._names.append(STUDIES)

    def add_workers(self, servicer: worker_pb2_grpc.WorkerServiceServicer) -> None:
        """Add the service for workers."""
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(servicer, self.server)
        self._names.append(WORKERS)

    def add_identities(self, servicer: identity_pb2_grpc.IdentityServiceServicer) -> None:
        """Add the service for identities and tokens."""
        identity_pb2_grpc.add_IdentityServiceServicer_to_server(servicer, self.server)
        self._names.append(IDENTITIES)

    def add_projects(self, servicer: project_pb2_grpc.ProjectServiceServicer) -> None:
        """Add the service for projects."""
        project_pb2_grpc.add_ProjectServiceServicer_to_server(servicer, self.server)
        self._names.append(PROJECTS)

    def add_code(self, servicer: code_pb2_grpc.CodeServiceServicer) -> None:
        """Add the service for clients that ship code, and workers that fetch it."""
        code_pb2_grpc.add_CodeServiceServicer_to_server(servicer, self.server)
        self._names.append(CODE)

    def add_joins(self, servicer: join_pb2_grpc.JoinServiceServicer) -> None:
        """Add the service for workers that join, or renew their certificate."""
        join_pb2_grpc.add_JoinServiceServicer_to_server(servicer, self.server)
        self._names.append(JOINS)

    async def start(self, health: Health) -> None:
        """Start serving, with health and reflection."""
        health_pb2_grpc.add_HealthServicer_to_server(health, self.server)
        reflecting.enable([*self._names, HEALTH], self.server)
        await self._serving.start()

    async def stop(self, grace_s: float) -> None:
        """Stop, after calls that finish within the grace."""
        await self._serving.stop(grace_s)


def certified(authority: "Authority") -> grpc.ServerCredentials:
    """TLS that requires a certificate of this authority."""
    pair = (authority.server_key_pem, authority.server_pem)
    return grpc.ssl_server_credentials(
        [pair], root_certificates=authority.trusted_pem, require_client_auth=True
    )


def encrypted(key_pem: bytes, certificate_pem: bytes) -> grpc.ServerCredentials:
    """TLS that requires no certificate."""
    return grpc.ssl_server_credentials([(key_pem, certificate_pem)])
