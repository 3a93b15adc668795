"""A valid call of every method for any permitted caller, about things of project `this`.

Each gets a study of its own, made by an editor of the project. So an admitted call is served to its end, and one
that should be refused shows its status OK. A new method fails here until its request can be made.
"""

import io
import itertools
from pathlib import Path
from typing import Any

from closed_site import WORKER, ClosedSite
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import NameOID
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha import reflection_pb2
from served import METHODS

from headrace.code import read_folder, write_archive
from headrace.protocol import SPOKEN
from headrace.spec import parse_spec, to_proto
from headrace.v1 import (
    bubble_pb2,
    code_pb2,
    event_pb2,
    identity_pb2,
    join_pb2,
    planner_pb2,
    project_pb2,
    spec_pb2,
    study_pb2,
    worker_pb2,
)
from headrace_worker import credential

MARK = "hers"
"""Part of the name of each thing of project `this`."""
SPEC = to_proto(
    parse_spec(
        {
            "objective": {"metric": "loss", "goal": "minimize"},
            "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
            "policy": {"kind": "run_all"},
            "max_trials": 4,
            "max_steps": 9,
            "max_retries": 0,
        }
    )
)
QUESTION = planner_pb2.PlanQuestion(model_name="gpt3-2.7b", cluster_name="a100-16", batch=32)
PACKAGE = "/headrace.v1."
EDITOR, OPERATOR = "editor", "admin of `default`"
_numbers = itertools.count()


class Samples:
    """Makes requests, and the things that they are about."""

    def __init__(self, site: ClosedSite, folder: Path) -> None:
        self._site = site
        self.digest, self.archive = _packed(folder)
        self._refused: dict[str, Message] = {}

    async def begin(self) -> None:
        """Create what must exist first: the projects, code, and a worker that has connected."""
        for name in ("this", "other"):
            request = project_pb2.CreateProjectRequest(project_id=name)
            await self._site.must(f"{PACKAGE}ProjectService/CreateProject", OPERATOR, request)
        await self._site.must(f"{PACKAGE}CodeService/PutCode", EDITOR, await self._put_code())
        session = f"{PACKAGE}WorkerService/Session"
        await self._site.must(session, "certificate, workers' port", await self._session(), "workers")

    async def request(self, path: str, *, works: bool = True) -> Message:
        """The request of a call. A call that need not work gets no study of its own."""
        if not works and path in self._refused:
            return self._refused[path]
        made = self._refused[path] = await self._made(path)
        return made

    async def _made(self, path: str) -> Message:
        service, name = path.split("/")[1].rpartition(".")[2], path.rpartition("/")[2]
        made: Message = GetMessageClass(METHODS[path].input_type)()
        own = _FIXED.get(name) if service != "StudyService" else None
        if own is not None:
            made.MergeFrom(own)
        elif (make := getattr(self, _OWN.get(name, ""), None)) is not None:
            made = await make()
        elif service == "StudyService":
            await self._fill(made, name, await self.study())
        return made

    async def study(self) -> str:
        """The id of a new study of project `this`."""
        study = f"{MARK}-{next(_numbers)}"
        await self._call("CreateStudy", study_pb2.CreateStudyRequest(study_id=study, spec=SPEC))
        return study

    async def _fill(self, request: Any, name: str, study: str) -> None:
        """A request about a study: its fields by their names."""
        fields = request.DESCRIPTOR.fields_by_name
        trial = ""
        match name:
            case "CreateStudy":
                request.study_id = f"made-{next(_numbers)}"
            case "ResumeStudy":
                await self._call("PauseStudy", study_pb2.PauseStudyRequest(name=f"studies/{study}"))
            case "DeleteStudy" | "ForgetCheckpoints":
                await self._call("StopStudy", study_pb2.StopStudyRequest(name=f"studies/{study}"))
                if name == "ForgetCheckpoints":
                    found = await self._call("GetStudy", study_pb2.GetStudyRequest(name=f"studies/{study}"))
                    request.cursor = found.study.status.cursor
            case "ResumeTrial":
                lease = await self._lease(study)
                trial = lease.trial
                report = study_pb2.ReportTrialRequest(
                    lease=lease, step=1, metrics={"loss": 1.0}, checkpoint_uri="mem:/1"
                )
                await self._call("PauseTrial", study_pb2.PauseTrialRequest(name=trial))
                await self._call("ReportTrial", report)
            case "RetryTrials":
                failed = study_pb2.CompleteTrialRequest(
                    lease=await self._lease(study), error="ValueError: no"
                )
                await self._call("CompleteTrial", failed)
            case "AddTrials":
                value = spec_pb2.ParameterValue(float_value=0.5)
                request.parameters.append(spec_pb2.ParameterAssignment(values={"x": value}))
            case "ExtendStudy":
                request.trials = 9
            case "Annotate":
                request.add_tags.append(MARK)
            case "ReportTrial":
                request.step, request.metrics["loss"] = 1, 1.0
        if "spec" in fields:
            request.spec.CopyFrom(SPEC)
        if "lease" in fields:
            request.lease.CopyFrom(await self._lease(study))
        if "client_id" in fields:
            request.client_id = "c"
        if "worker" in fields:
            request.worker = f"workers/{WORKER}"
        if "name" in fields:
            of_trial = name.endswith("Trial") or name == "ReadLog"
            request.name = (trial or (await self._lease(study)).trial) if of_trial else f"studies/{study}"
        for field in ("study", "parent"):
            if field in fields:
                setattr(request, field, f"studies/{study}")

    async def _lease(self, study: str) -> event_pb2.LeaseRef:
        asked = study_pb2.SuggestTrialRequest(study=f"studies/{study}", client_id="c")
        return (await self._call("SuggestTrial", asked)).lease

    async def _call(self, name: str, request: Message) -> Any:
        return await self._site.must(f"{PACKAGE}StudyService/{name}", EDITOR, request)

    async def _put_code(self) -> Message:
        return code_pb2.PutCodeRequest(digest=self.digest, data=self.archive)

    async def _digest(self) -> Message:
        return code_pb2.GetCodeRequest(digest=self.digest)

    async def _has_code(self) -> Message:
        return code_pb2.HasCodeRequest(digest=self.digest)

    async def _revoke_token(self) -> Message:
        create = identity_pb2.CreateTokenRequest(
            display_name=MARK, role=identity_pb2.ROLE_VIEWER, project="this"
        )
        made = await self._site.must(f"{PACKAGE}IdentityService/CreateToken", OPERATOR, create)
        return identity_pb2.RevokeTokenRequest(name=made.token.name)

    async def _create_project(self) -> Message:
        return project_pb2.CreateProjectRequest(project_id=f"project-{next(_numbers)}")

    async def join_token(self, uses: int = 1) -> Any:
        """A new join token, with its secret."""
        create = join_pb2.CreateJoinTokenRequest(uses=uses)
        return await self._site.must(f"{PACKAGE}JoinService/CreateJoinToken", OPERATOR, create)

    async def _revoke_join_token(self) -> Message:
        return join_pb2.RevokeJoinTokenRequest(id=(await self.join_token()).token.id)

    async def _join(self) -> join_pb2.JoinRequest:
        token = (await self.join_token()).secret
        return join_pb2.JoinRequest(
            token=token, worker=f"w-{next(_numbers)}", signing_request=signing_request()
        )

    async def _revoke_worker(self) -> Message:
        joined = await self._join()
        await self._site.must(f"{PACKAGE}JoinService/Join", "no token", joined)
        return join_pb2.RevokeWorkerRequest(worker=joined.worker)

    async def _renew(self) -> Message:
        return join_pb2.RenewRequest(signing_request=signing_request())

    async def _session(self) -> Message:
        hello = worker_pb2.Hello(
            worker=WORKER,
            incarnation="1",
            log_dir="/l",
            protocol=SPOKEN.newest,
            oldest_protocol=SPOKEN.oldest,
        )
        return worker_pb2.SessionRequest(hello=hello)


_OWN = {
    "PutCode": "_put_code",
    "GetCode": "_digest",
    "HasCode": "_has_code",
    "RevokeToken": "_revoke_token",
    "CreateProject": "_create_project",
    "RevokeJoinToken": "_revoke_join_token",
    "Join": "_join",
    "RevokeWorker": "_revoke_worker",
    "Renew": "_renew",
    "Session": "_session",
}
"""How to make the requests that are not about a study, by method name."""
_FIXED: dict[str, Message] = {
    "CreateToken": identity_pb2.CreateTokenRequest(role=identity_pb2.ROLE_VIEWER),
    "SetProject": project_pb2.SetProjectRequest(name="projects/this", slots={"most": 3}),
    "JudgeFolders": worker_pb2.JudgeFoldersRequest(folders=["a-b"]),
    "Plan": planner_pb2.PlanRequest(question=QUESTION, budget=1),
    "Simulate": planner_pb2.SimulateRequest(
        question=QUESTION,
        degrees=planner_pb2.PlanDegrees(data=4, tensor=2, optimizer=4, pipeline=2, micro_batches=4),
    ),
    "Explain": planner_pb2.ExplainRequest(question=QUESTION, count=1),
    "ShareProgress": bubble_pb2.ShareProgressRequest(agent="a", job="j", stages=2, micro_batches=4),
    "ServerReflectionInfo": reflection_pb2.ServerReflectionRequest(list_services=""),
}
"""Requests that are always the same. Those of the remaining methods are empty."""


def _packed(folder: Path) -> tuple[str, bytes]:
    (folder / "train.py").write_text(f"# {MARK}\n")
    found, out = read_folder(folder), io.BytesIO()
    write_archive(found, out)
    return found.manifest.digest, out.getvalue()


def signing_request() -> str:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, WORKER)])
    request = (
        x509.CertificateSigningRequestBuilder().subject_name(name).sign(credential.new_key(), hashes.SHA256())
    )
    return request.public_bytes(serialization.Encoding.PEM).decode()
