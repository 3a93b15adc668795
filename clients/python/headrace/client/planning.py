"""Plans from a planner's server (`headrace planner`): what `Client.plan` and `Client.simulate` call.

A search runs on the server and tells how far it is. `SearchCall` is one search: iterate over its progress, or ask for
its `result`; `cancel` ends it at once, on the server too. Nothing is kept anywhere, so a call that is lost is asked
again.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import grpc

from headrace.errors import HeadraceError, from_rpc_error
from headrace.target import Target, proxy_options
from headrace.v1 import planner_pb2 as pb
from headrace.v1 import planner_pb2_grpc

DEFAULT_ADDRESS: Final = "127.0.0.1:7441"
DEFAULT_TIMEOUT_S: Final = 600.0
_LARGEST_ANSWER: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchProgress:
    """Where a search stands."""

    mode: str
    tuples: int
    solved: int
    best_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """How to split a training job. All times are predictions."""

    iteration_s: float
    degrees: Mapping[str, int]
    """data, tensor, optimizer, pipeline, micro_batches, expert."""
    record: Mapping[str, Any]
    """All of it, with the keys of `headrace plan --json`."""
    notes: tuple[str, ...]
    files: Mapping[str, str]
    """The target's files by name; empty without a target."""
    shortlist: tuple[Mapping[str, int], ...] = ()
    """Degrees of the plans to measure, this one first."""
    complete: bool = True
    """Whether the search came to its end."""

    def write(self, folder: str | Path) -> list[Path]:
        """Writes the target's files into a folder."""
        out = Path(folder)
        out.mkdir(parents=True, exist_ok=True)
        for name, text in self.files.items():
            (out / name).write_text(text, encoding="utf-8")
        return [out / name for name in self.files]


class SearchCall:
    """One search on the server."""

    def __init__(
        self, stub: planner_pb2_grpc.PlannerServiceStub, request: pb.PlanRequest, timeout_s: float
    ) -> None:
        self._answers = stub.Plan(request, timeout=timeout_s)
        self._plan: TrainingPlan | None = None

    def __iter__(self) -> Iterator[SearchProgress]:
        """Progress until the plan is there. Raises HeadraceError."""
        try:
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
        except grpc.RpcError as error:
            raise from_rpc_error(error) from None

    def result(self, on_progress: Callable[[SearchProgress], None] | None = None) -> TrainingPlan:
        """The plan, when it is there. Raises HeadraceError: what is wrong with the question, that nothing fits.

        `on_progress` is called while the search runs; what it raises cancels the search."""
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
        self._answers.cancel()


class Planner:
    """A connection to a planner's server; a context manager."""

    def __init__(self, address: str | None = None, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """`address`, else `HEADRACE_PLANNER`, else 127.0.0.1:7441. `timeout_s` bounds each search."""
        target = Target.of(address or os.environ.get("HEADRACE_PLANNER") or DEFAULT_ADDRESS)
        where, credentials = target.replicas[0], target.credentials()
        options = (("grpc.max_receive_message_length", _LARGEST_ANSWER), *proxy_options(where))
        self._channel = (
            grpc.insecure_channel(where, options)
            if credentials is None
            else grpc.secure_channel(where, credentials, options)
        )
        self._stub = planner_pb2_grpc.PlannerServiceStub(self._channel)
        self._timeout_s = timeout_s

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channel.close()

    def search(
        self,
        model: str | Mapping[str, Any],
        cluster: str | Mapping[str, Any],
        *,
        seconds: float | None = None,
        budget: int | None = None,
        **options: Any,
    ) -> SearchCall:
        """Begins a search. `model` and `cluster` are names, or descriptions as mappings; `options` are fields of
        `PlanQuestion` (batch, sequence, schedule, chunks, zero, attention, mode, target, ...)."""
        request = pb.PlanRequest(question=_question(model, cluster, options), seconds=seconds, budget=budget)
        return SearchCall(self._stub, request, self._timeout_s)

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
        """The fastest plan. `on_progress` is called while the search runs; what it raises cancels the search."""
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
        try:
            chosen = pb.PlanDegrees(**degrees)
        except ValueError as error:
            raise _unknown(error) from None
        request = pb.SimulateRequest(question=_question(model, cluster, options), degrees=chosen)
        try:
            answer = self._stub.Simulate(request, timeout=self._timeout_s)
        except grpc.RpcError as error:
            raise from_rpc_error(error) from None
        return _plan(answer.plan)


def _question(
    model: str | Mapping[str, Any], cluster: str | Mapping[str, Any], options: Mapping[str, Any]
) -> pb.PlanQuestion:
    said: dict[str, Any] = {
        ("model_name" if isinstance(model, str) else "model_json"): _text(model),
        ("cluster_name" if isinstance(cluster, str) else "cluster_json"): _text(cluster),
    }
    try:
        return pb.PlanQuestion(
            **said, **{name: value for name, value in options.items() if value is not None}
        )
    except (TypeError, ValueError) as error:
        raise _unknown(error) from None


def _text(told: str | Mapping[str, Any]) -> str:
    return told if isinstance(told, str) else json.dumps(dict(told))


def _unknown(error: Exception) -> HeadraceError:
    return HeadraceError(
        f"The question cannot be asked: {error}.", remedy="Options are fields of PlanQuestion."
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
