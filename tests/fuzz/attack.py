"""One hostile caller: it draws a call, makes it, and records what must not happen.

What must not happen: an INTERNAL or UNKNOWN answer, a call that outlasts its deadline by more than a second, and a
lone ListStudies after it that takes longer than a second.
"""

import queue
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc
from fuzz_messages import Draw, Known
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from lines import Lines

from headrace.spec import parse_spec, to_proto
from headrace.v1 import spec_pb2, study_pb2, worker_pb2

DEADLINE_S = 5.0
SHORT_S = 0.5
"""The deadline of calls that wait: watching, planning, a report that waits for its decision."""
SESSION_S = 1.0
PROBE_S = 1.0
MOST_STUDIES = 12
OPEN_S = 60.0
MOST_OPEN = 300
LEFT_OPEN = 0.5
"""How often a stream is left open and unread."""
LARGE = 0.1
"""How often a study is made that is large only in combination."""
FORBIDDEN = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)
POLICIES: tuple[dict[str, Any], ...] = (
    {"kind": "auto"},
    {"kind": "auto", "effort": 0.0},
    {"kind": "run_all"},
    {"kind": "asha", "eta": 3},
    {"kind": "asha", "arrival": "optimistic", "effort": 0.2},
    {"kind": "asha", "variant": "stopping", "eta": 2, "brackets": 2},
    {"kind": "successive_halving"},
    {"kind": "hyperband"},
    {"kind": "pasha"},
    {"kind": "median"},
    {"kind": "median", "variant": "vizier", "completed_only": True},
    {"kind": "rung_median"},
    {"kind": "pbt", "interval": 3},
)
SAMPLERS: tuple[dict[str, Any], ...] = (
    {"kind": "random"},
    {"kind": "grid", "points": {"x": 3}},
    {"kind": "sobol"},
    {"kind": "tpe"},
    {"kind": "multi_fidelity"},
    {"kind": "cmaes"},
    {"kind": "nsga2", "population": 4},
)
# Calls that change much are made as often as those that read.
WEIGHTS = {"CreateStudy": 4, "ReportTrial": 4, "SuggestTrial": 3, "Session": 5, "Report": 3, "PreviewStudy": 3,
           "AddTrials": 2, "Finish": 1, "StopStudy": 1, "DeleteStudy": 1}  # fmt: skip


@dataclass(slots=True)
class Tally:
    """What was observed."""

    calls: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    methods: Counter[str] = field(default_factory=Counter)
    spent_s: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    probes_s: list[float] = field(default_factory=list)

    def fault(self, what: str, message: object) -> None:
        """Record what must not happen, with the first message that caused it."""
        self.faults[what] += 1
        self.examples.setdefault(what, f"{type(message).__name__} {str(message)[:1500]}")

    def __str__(self) -> str:
        slow = sorted(self.probes_s)
        lines = [f"{self.calls} calls: {dict(self.statuses.most_common())}"]
        lines.append(f"ListStudies behind each: p50 {slow[len(slow) // 2]:.4f} s, greatest {slow[-1]:.3f} s")
        for what, count in self.faults.most_common():
            lines.append(f"{count} × {what}\n    {self.examples[what]}")
        return "\n".join(lines)


class Attack:
    """Calls, one after the other."""

    def __init__(self, lines: Lines) -> None:
        self.lines = lines
        self.known = Known()
        self.tally = Tally()
        self.stub = lines.stub
        self._open: deque[tuple[Any, threading.Event]] = deque()

    def close(self) -> None:
        """Close the connections."""
        while self._open:
            self._end_one()
        self.lines.close()

    def one_call(self, chance: random.Random) -> None:
        """Draw a call and make it; then request the list of studies."""
        methods = self.lines.methods
        weights = [WEIGHTS.get(method.name, 1) * self.lines.weight(method) for method in methods]
        method = chance.choices(methods, weights)[0]
        self.known.runtime_leases = [*self.lines.leases(), "none"]
        draw = Draw(chance, self.known)
        self.tally.calls += 1
        if method.name == "Session":
            request: object = self._session(method, draw)
        else:
            request = self._plain(method, draw)
        self._probe(request)
        if len(self.known.studies) > MOST_STUDIES:
            self.end(self.known.studies.pop(chance.randrange(1, len(self.known.studies))))

    def end(self, study: str) -> None:
        """Stop and delete a study, which must always work."""
        began = time.monotonic()
        self._end(study)
        self.tally.spent_s["end"] += time.monotonic() - began

    def _end(self, study: str) -> None:
        name = f"studies/{study}"
        request = study_pb2.StopStudyRequest(name=name)
        try:
            self.stub.StopStudy(request, timeout=60, metadata=self.lines.honest)
            until = time.monotonic() + 20
            while True:
                try:
                    delete = study_pb2.DeleteStudyRequest(name=name)
                    self.stub.DeleteStudy(delete, timeout=60, metadata=self.lines.honest)
                except grpc.RpcError as error:
                    if error.code() is not grpc.StatusCode.FAILED_PRECONDITION or time.monotonic() > until:
                        raise
                    time.sleep(0.2)  # its trials are still on their workers
                else:
                    return
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.NOT_FOUND:
                self.tally.fault(f"a study does not end: {error.code().name} {error.details()}", request)

    def all_studies(self) -> list[str]:
        """The names of all studies, over all pages."""
        found, token = [], ""
        while True:
            asked = study_pb2.ListStudiesRequest(page_token=token)
            page = self.stub.ListStudies(asked, timeout=60, metadata=self.lines.honest)
            found += [study.name.removeprefix("studies/") for study in page.studies]
            token = page.next_page_token
            if not token:
                return found

    # --- the kinds of calls ------------------------------------------------------------------------------

    def _plain(self, method: MethodDescriptor, draw: Draw) -> Message:
        said = [self._request(method, draw)]
        if method.client_streaming:
            said += [self._request(method, draw) for _ in range(draw.chance.randrange(3))]
        channel = self.lines.channel(method)
        if channel is None:
            return said[0]
        path = f"/{method.containing_service.full_name}/{method.name}"
        read = GetMessageClass(method.output_type).FromString
        make = {
            (False, False): channel.unary_unary,
            (False, True): channel.unary_stream,
            (True, False): channel.stream_unary,
            (True, True): channel.stream_stream,
        }[method.client_streaming, method.server_streaming]
        streams = method.client_streaming or method.server_streaming
        limit_s = SHORT_S if streams or "Runtime" in path else DEADLINE_S
        call = make(path, request_serializer=_encoded, response_deserializer=read)

        def run() -> None:
            request = iter(said) if method.client_streaming else said[0]
            answers = call(request, timeout=limit_s, metadata=self.lines.metadata)
            for answer in answers if method.server_streaming else (answers,):
                self._learn(answer)

        if method.server_streaming and draw.chance.random() < LEFT_OPEN:
            self._leave_open(call, said, method.client_streaming)
        else:
            self._watched(method.name, said[0], limit_s, run)
        return said[0]

    def _leave_open(self, call: Any, said: list[Message], client_streaming: bool) -> None:
        """Open a stream that nobody reads, unless there are already many."""
        over = threading.Event()
        request = _until(over, said) if client_streaming else said[0]
        self._open.append((call(request, timeout=OPEN_S, metadata=self.lines.metadata), over))
        self.tally.statuses["left open"] += 1
        if len(self._open) > MOST_OPEN:
            self._end_one()

    def _end_one(self) -> None:
        call, over = self._open.popleft()
        over.set()
        call.cancel()

    def _session(self, method: MethodDescriptor, draw: Draw) -> list[Message]:
        """A worker's session: a greeting, mostly a valid one, and its messages about the leases that it is given."""
        wild = draw.chance.choice([0, 0.1, 0.5])
        number = draw.chance.randrange(3)
        hello = worker_pb2.Hello(
            protocol=1,
            worker=self.lines.worker or f"fuzz-{number}",
            incarnation=str(draw.chance.randrange(3)),
            cpus=4,
            log_dir="/tmp",
        )
        for index in range(draw.chance.choice([0, 1, 2, 4, 1024])):
            kind = draw.chance.choice([worker_pb2.DEVICE_KIND_CPU, worker_pb2.DEVICE_KIND_GPU])
            hello.devices.add(index=index, kind=kind, memory_bytes=2**34, model="g")
        if draw.chance.random() < 0.3:
            draw.spoil(hello, count=1)
        said: list[Message] = [worker_pb2.SessionRequest(hello=hello)]
        outgoing: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        outgoing.put(said[0])

        def run() -> None:
            channel = self.lines.channel(method)
            assert channel is not None
            session = worker_pb2_session(channel)
            responses = session(iter(outgoing.get, None), timeout=SESSION_S, metadata=self.lines.metadata)
            last: Message = said[0]
            try:
                for heard in responses:
                    kind = heard.WhichOneof("message")
                    if kind == "assign":
                        self.known.leases.append(
                            (
                                heard.assign.lease.lease_id,
                                heard.assign.lease.trial,
                                heard.assign.lease.attempt,
                            )
                        )
                    if len(said) < 5:
                        last = draw.message(method.input_type, wild=wild)
                        said.append(last)
                        outgoing.put(last)
                        outgoing.put(worker_pb2.SessionRequest(heartbeat=worker_pb2.Heartbeat(sequence=7)))
                    elif len(said) == 5:
                        said.append(last)
                        outgoing.put(None)
            finally:
                outgoing.put(None)
                responses.cancel()

        self._watched(method.name, said, SESSION_S, run)
        del self.known.leases[:-40]
        return said

    def _request(self, method: MethodDescriptor, draw: Draw) -> Message:
        """A request of a method: plausible, spoilt in a few places, or fully random."""
        way = draw.chance.random()
        request = draw.message(method.input_type, wild=0.0 if way < 0.7 else draw.chance.choice([0.1, 0.5]))
        if isinstance(request, study_pb2.CreateStudyRequest | study_pb2.PreviewStudyRequest) and way < 0.8:
            large = draw.chance.random() < LARGE
            request.spec.CopyFrom(large_spec(draw.chance) if large else to_proto(self._spec(draw.chance)))
        if isinstance(request, study_pb2.AddTrialsRequest) and draw.chance.random() < LARGE:
            request.parameters.extend([spec_pb2.ParameterAssignment()] * 900)
        if 0.3 < way < 0.8:
            draw.spoil(request, count=draw.chance.choice([1, 1, 2, 3]))
        return request

    def _spec(self, chance: random.Random) -> Any:
        """A valid study, with ask/tell or with a template, of any policy and sampler."""
        policy = chance.choice(POLICIES)
        sampler = chance.choice(SAMPLERS)
        fields: dict[str, Any] = {
            "objective": {"metric": "loss", "goal": "minimize"},
            "space": {
                "x": {"type": "float", "low": 0.0, "high": 1.0},
                "y": {"type": "int", "low": 1, "high": 5},
                "z": {"type": "categorical", "values": ["a", 1, True]},
            },
            "policy": policy,
            "sampler": sampler,
            "max_trials": chance.choice([4, 9, 1000, 1_000_000]),
            "max_steps": chance.choice([9, 27, 100]),
        }
        if chance.random() < 0.4:
            fields["template"] = {"callable": "train:train", "working_dir": "/tmp"}
        if (
            policy["kind"] == "run_all"
            and sampler["kind"] not in ("cmaes", "multi_fidelity")
            and chance.random() < 0.5
        ):
            fields["further_objectives"] = [{"metric": "y", "goal": "maximize"}]
        return parse_spec(fields)

    # --- watching ------------------------------------------------------------------------------------------

    def _watched(self, name: str, request: object, limit_s: float, run: Any) -> None:
        began = time.monotonic()
        status = "OK"
        try:
            run()
        except grpc.RpcError as error:
            code = error.code() if isinstance(error, grpc.Call) else grpc.StatusCode.UNKNOWN
            status = code.name
            if code in FORBIDDEN:
                self.tally.fault(f"{name}: {status} {error.details()}", request)
        took_s = time.monotonic() - began
        self.tally.spent_s[name] += took_s
        self.tally.statuses[status] += 1
        self.tally.methods[f"{name} {status}"] += 1
        if took_s > limit_s + 1.0:
            self.tally.fault(f"{name}: it took longer than its deadline of {limit_s} s and 1 s", request)

    def _probe(self, request: object) -> None:
        """A lone ListStudies. Time that the scheduler waited for a core is the machine's fault, not the call's."""
        began, waited_s = time.monotonic(), self.lines.waited_s()
        try:
            asked = study_pb2.ListStudiesRequest()
            page = self.stub.ListStudies(asked, timeout=30, metadata=self.lines.honest)
        except grpc.RpcError as error:
            self.tally.fault(f"ListStudies behind a call: {error.code().name} {error.details()}", request)
            return
        took_s = time.monotonic() - began - (self.lines.waited_s() - waited_s)
        self.tally.probes_s.append(took_s)
        if took_s > PROBE_S:
            self.tally.fault("ListStudies behind a call took longer than 1 s", request)
        names = [study.name.removeprefix("studies/") for study in page.studies]
        self.known.studies[1:] = [name for name in names if not name.startswith("honest")][:40]

    def _learn(self, answer: Message) -> None:
        """Remember the existing names that an answer contains."""
        token = getattr(answer, "next_page_token", "")
        if token:
            self.known.tokens = [*self.known.tokens[-20:], token]
        if isinstance(answer, study_pb2.SuggestTrialResponse) and answer.HasField("lease"):
            lease = answer.lease
            self.known.leases = [*self.known.leases[-40:], (lease.lease_id, lease.trial, lease.attempt)]


def large_spec(chance: random.Random) -> spec_pb2.StudySpec:
    """Many parameters, conditions and configurations to try first: each within its bound, but with large products."""
    spec = spec_pb2.StudySpec(max_trials=10_000, max_steps=9)
    spec.objective.metric, spec.objective.goal = "loss", spec_pb2.GOAL_MINIMIZE
    parents, count = chance.choice([0, 4, 13, 30]), chance.choice([20, 100, 400, 1000])
    for number in range(count):
        parameter = spec.space.add(name=f"p{number}")
        if number < parents:
            parameter.categorical.values.extend(
                [spec_pb2.ParameterValue(bool_value=False), spec_pb2.ParameterValue(bool_value=True)]
            )
        else:
            parameter.int.low, parameter.int.high = 1, 9
            for parent in range(parents if number == count - 1 else chance.choice([0, 0, 1])):
                if parent < parents:
                    values = [spec_pb2.ParameterValue(bool_value=True)] * chance.choice([1, 1, 500])
                    parameter.conditions.add(parameter=f"p{parent}", values=values)
    known = {"p0": spec_pb2.ParameterValue(int_value=1)}
    strange = {f"q{number}": spec_pb2.ParameterValue(int_value=1) for number in range(chance.choice([1, 50]))}
    entry = spec_pb2.ParameterAssignment(values=chance.choice([{}, known, strange]))
    spec.enqueued.extend([entry] * chance.choice([0, 10, 300, 3000]))
    if chance.random() < 0.4:
        spec.sampler.grid.SetInParent()
    else:
        spec.sampler.random.SetInParent()
    spec.policy.run_all.SetInParent()
    return spec


def worker_pb2_session(channel: grpc.Channel) -> Any:
    """The session's method."""
    return channel.stream_stream(
        "/headrace.v1.WorkerService/Session",
        request_serializer=_encoded,
        response_deserializer=worker_pb2.SessionResponse.FromString,
    )


def _encoded(message: Message) -> bytes:
    return message.SerializeToString()


def _until(over: threading.Event, said: list[Message]) -> Iterator[Message]:
    """Messages, and then nothing for as long as the stream is open."""
    yield from said
    over.wait(OPEN_S)


def calls(lines: Lines) -> Iterator[Attack]:
    """An attack that closes its connections at the end."""
    attack = Attack(lines)
    try:
        yield attack
    finally:
        attack.close()
