"""Plans from a planner's server (`headrace planner`): what `Client.plan` and `Client.simulate` call.

A search runs on the server and reports its progress. `SearchCall` is one search: iterate over its progress, or
call `result`; `cancel` ends it at once, on the server too. Nothing is stored, so if a server dies with a
question, the next server in the list of addresses is asked, each at most once.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import grpc
from google.protobuf.message import Message

from headrace.client.arguments import seconds as seconds_of
from headrace.client.connection import name_address
from headrace.client.route import Route
from headrace.error_status import from_rpc_error
from headrace.errors import HeadraceError, InvalidFieldError, UnreachableError, Violation, show_value
from headrace.target import Target, proxy_options
from headrace.v1 import planner_pb2 as pb
from headrace.v1 import planner_pb2_grpc

ADDRESS_ENV: Final = "HEADRACE_PLANNER"
DEFAULT_ADDRESS: Final = "127.0.0.1:7441"
DEFAULT_TIMEOUT_S: Final = 600.0
_START: Final = (
    "Start one with `headrace planner`, or give its address as planner=... or in HEADRACE_PLANNER."
)
_LARGEST_ANSWER: Final = 64 * 1024 * 1024

MessageT = TypeVar("MessageT", bound=Message)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchProgress:
    """The progress of a search."""

    mode: str
    tuples: int
    solved: int
    best_s: float | None

    def __str__(self) -> str:
        best = "" if self.best_s is None else f", best {self.best_s:.3g} s"
        return f"{self.mode}, {self.solved} of {self.tuples} tuples solved{best}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """How to split a training job. All times are predictions."""

    iteration_s: float
    degrees: Mapping[str, int]
    """data, tensor, optimizer, pipeline, micro_batches, expert."""
    record: Mapping[str, Any]
    """The complete plan, with the keys of `headrace plan --json`."""
    notes: tuple[str, ...]
    files: Mapping[str, str]
    """The target's files by name; empty without a target."""
    shortlist: tuple[Mapping[str, int], ...] = ()
    """Degrees of the plans to measure, this one first."""
    complete: bool = True
    """Whether the search was completed."""

    def write(self, folder: str | Path) -> list[Path]:
        """Writes the target's files into a folder."""
        out = Path(folder)
        out.mkdir(parents=True, exist_ok=True)
        for name, text in self.files.items():
            (out / name).write_text(text, encoding="utf-8")
        return [out / name for name in self.files]


class SearchCall:
    """One search on the server."""

    def __init__(self, replicas: "_Replicas", request: pb.PlanRequest, timeout_s: float) -> None:
        self._replicas = replicas
        self._request = request
        self._timeout_s = seconds_of("timeout_s", timeout_s)
        self._plan: TrainingPlan | None = None
        self._cancelled = False
        self._channel, self._answers = self._begun()

    def __iter__(self) -> Iterator[SearchProgress]:
        """Progress until the plan is complete; it starts again if the next server is asked. Raises
        HeadraceError.
        """
        left = len(self._replicas.target.replicas)
        while True:
            try:
                yield from self._told()
            except grpc.RpcError as error:
                left -= 1
                self._replicas.failed(
                    self._channel, from_rpc_error(error), left=0 if self._cancelled else left
                )
                self._channel, self._answers = self._begun()
            else:
                return

    def _begun(self) -> tuple[grpc.Channel, Any]:
        channel = self._replicas.route.channel()
        stub = planner_pb2_grpc.PlannerServiceStub(channel)
        metadata = self._replicas.target.metadata
        return channel, stub.Plan(self._request, timeout=self._timeout_s, metadata=metadata)

    def _told(self) -> Iterator[SearchProgress]:
        for answer in self._answers:
            if answer.HasField("plan"):
                self._plan = _plan(answer.plan, answer)
            else:
                now = answer.progress
                yield SearchProgress(
                    mode=now.mode,
                    tuples=now.tuples,
                    solved=now.solved,
                    best_s=now.best_s if now.HasField("best_s") else None,
                )

    def result(self, on_progress: Callable[[SearchProgress], None] | None = None) -> TrainingPlan:
        """Waits for the plan. Raises HeadraceError if something is wrong with the question, or if nothing fits.

        `on_progress` is called while the search runs; an exception raised there cancels the search."""
        try:
            for progress in self:
                if on_progress is not None:
                    on_progress(progress)
        except BaseException:
            self.cancel()
            raise
        if self._plan is None:
            raise HeadraceError("The planner ended without a plan.", remedy="Ask again.")
        return self._plan

    def cancel(self) -> None:
        """Ends the search, here and on the server."""
        self._cancelled = True
        self._answers.cancel()


class Planner:
    """A connection to a planner's server; a context manager."""

    def __init__(
        self,
        address: str | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        *,
        tls_ca: str | Path | None = None,
        token: str | None = None,
    ) -> None:
        """The default of `address` is `HEADRACE_PLANNER`, or else 127.0.0.1:7441. Of several addresses
        (`a:7441,b:7441`), the first that answers is used.

        `timeout_s` limits each search. Over TLS each call carries `token`, by default that of the scheduler's
        clients."""
        field = "planner" if address else ADDRESS_ENV
        target = Target.of_planner(
            address or os.environ.get(ADDRESS_ENV) or DEFAULT_ADDRESS, field=field, tls_ca=tls_ca, token=token
        )
        self._replicas = _Replicas(target)
        self._timeout_s = timeout_s

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._replicas.close()

    def search(
        self,
        model: str | Mapping[str, Any],
        cluster: str | Mapping[str, Any],
        *,
        seconds: float | None = None,
        budget: int | None = None,
        **options: Any,
    ) -> SearchCall:
        """Starts a search. `model` and `cluster` are names, or descriptions as mappings; `options` are fields of
        `PlanQuestion` (batch, sequence, schedule, chunks, zero, attention, mode, target, ...)."""
        limits = {"seconds": seconds, "budget": budget}
        request = _message(pb.PlanRequest, limits)
        request.question.CopyFrom(_question(model, cluster, options))
        return SearchCall(self._replicas, request, self._timeout_s)

    def plan(
        self,
        model: str | Mapping[str, Any],
        cluster: str | Mapping[str, Any],
        *,
        on_progress: Callable[[SearchProgress], None] | None = None,
        seconds: float | None = None,
        budget: int | None = None,
        **options: Any,
    ) -> TrainingPlan:
        """The fastest plan. `on_progress` is called while the search runs; an exception raised there cancels the
        search.
        """
        search = self.search(model, cluster, seconds=seconds, budget=budget, **options)
        return search.result(on_progress)

    def simulate(
        self,
        model: str | Mapping[str, Any],
        cluster: str | Mapping[str, Any],
        degrees: Mapping[str, int],
        **options: Any,
    ) -> TrainingPlan:
        """The best plan with these degrees (data, tensor, optimizer, pipeline, micro_batches, expert)."""
        request = pb.SimulateRequest(
            question=_question(model, cluster, options), degrees=_message(pb.PlanDegrees, degrees)
        )
        for left in reversed(range(len(self._replicas.target.replicas))):
            channel = self._replicas.route.channel()
            stub = planner_pb2_grpc.PlannerServiceStub(channel)
            try:
                metadata = self._replicas.target.metadata
                return _plan(stub.Simulate(request, timeout=self._timeout_s, metadata=metadata).plan)
            except grpc.RpcError as error:
                self._replicas.failed(channel, from_rpc_error(error), left=left)
        raise AssertionError("the last replica's failure is raised")


class _Replicas:
    """The servers of one target, and the one in use."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._credentials = target.credentials()
        self.route = Route(target.replicas, self._open)

    def failed(self, channel: grpc.Channel, failure: HeadraceError, *, left: int) -> None:
        """Moves on to the next server, if this one is gone and another one remains. Otherwise raises the
        failure.
        """
        self.route.note(channel, failure)
        if not isinstance(failure, UnreachableError) or not left:
            raise name_address(failure, self.target, server="planner", start=_START) from None

    def close(self) -> None:
        """Closes all channels."""
        for channel in self.route.opened():
            channel.close()

    def _open(self, replica: str) -> grpc.Channel:
        options = (("grpc.max_receive_message_length", _LARGEST_ANSWER), *proxy_options(replica))
        if self._credentials is None:
            return grpc.insecure_channel(replica, options)
        return grpc.secure_channel(replica, self._credentials, options)


def _question(
    model: str | Mapping[str, Any], cluster: str | Mapping[str, Any], options: Mapping[str, Any]
) -> pb.PlanQuestion:
    return _message(pb.PlanQuestion, {**_told("model", model), **_told("cluster", cluster), **options})


def _told(field: str, told: str | Mapping[str, Any]) -> dict[str, str]:
    if isinstance(told, str):
        return {f"{field}_name": told}
    try:
        return {f"{field}_json": json.dumps(dict(told))}
    except (TypeError, ValueError) as error:
        raise _refusal(field, told, error, "Give a name, or a description as a mapping.") from None


def _message(kind: type[MessageT], values: Mapping[str, Any]) -> MessageT:
    """A message with the values that are not None. Raises InvalidFieldError for a value that does not fit its
    field.
    """
    message = kind()
    for name, value in values.items():
        try:
            message.MergeFrom(kind(**{name: value}))
        except (TypeError, ValueError) as error:
            fields = ", ".join(kind.DESCRIPTOR.fields_by_name)
            raise _refusal(name, value, error, f"{kind.DESCRIPTOR.name} holds {fields}.") from None
    return message


def _refusal(field: str, value: object, error: Exception, remedy: str) -> InvalidFieldError:
    message = f"cannot be asked: {error}".rstrip(".")
    return InvalidFieldError(
        [Violation(field=field, value=show_value(value), message=message, remedy=remedy)]
    )


def _plan(plan: pb.TrainingPlan, answer: pb.PlanResponse | None = None) -> TrainingPlan:
    return TrainingPlan(
        iteration_s=plan.iteration_s,
        degrees=_degrees(plan.degrees),
        record=json.loads(plan.json),
        notes=tuple(plan.notes),
        files=dict(plan.files),
        shortlist=tuple(_degrees(one.degrees) for one in answer.shortlist) if answer else (),
        complete=answer.complete if answer else True,
    )


def _degrees(degrees: pb.PlanDegrees) -> dict[str, int]:
    return {field.name: getattr(degrees, field.name) for field in degrees.DESCRIPTOR.fields}
