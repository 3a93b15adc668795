"""What the checks say about values at their bounds and beyond."""

from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from headrace import bounds
from headrace.errors import InvalidFieldError
from headrace.v1 import event_pb2, planner_pb2, spec_pb2, worker_pb2
from headrace.v1 import study_pb2 as pb


def with_space(parameters: int, conditions: int = 0, values: int = 1, **fields: Any) -> spec_pb2.StudySpec:
    """A spec with that many parameters, each with that many conditions of that many values."""
    condition = spec_pb2.Condition(values=[spec_pb2.ParameterValue(bool_value=True)] * values)
    parameter = spec_pb2.Parameter(conditions=[condition] * conditions)
    return spec_pb2.StudySpec(space=[parameter] * parameters, **fields)


NOTHING = spec_pb2.ParameterAssignment()
LEASE = event_pb2.LeaseRef(lease_id="l", trial="studies/s/trials/0", attempt=1)


def report(**fields: Any) -> pb.ReportTrialRequest:
    return pb.ReportTrialRequest(lease=LEASE, **fields)


WITHIN = [
    pb.CreateStudyRequest(),
    pb.CreateStudyRequest(spec=with_space(100, conditions=1, enqueued=[NOTHING] * 1000)),
    pb.CreateStudyRequest(spec=with_space(1000, conditions=2, values=10)),
    report(step=2**40, metrics={"loss": float("nan"), "train loss (mean)": float("inf"), "m" * 256: -0.0}),
    report(metrics={f"m{number}": 1.0 for number in range(1000)}),
    pb.StopStudyRequest(name="studies/s", reason="two\nlines\tand ünïcode ✓"),
    pb.SuggestTrialRequest(lease_time=Duration(seconds=30 * 86_400)),
    worker_pb2.SessionRequest(exited=worker_pb2.Exited(error="\0" * 10**5, outcome=77)),
    worker_pb2.SessionRequest(report=worker_pb2.Report(train_time=Duration(seconds=10**9))),
    planner_pb2.PlanRequest(question=planner_pb2.PlanQuestion(model_json='{"a": "[[[[[[[[[[[[[[[[[[[[["}')),
]


@pytest.mark.parametrize("message", WITHIN, ids=lambda message: type(message).__name__)
def test_what_is_within_its_bounds_is_taken(message: Message) -> None:
    assert bounds.violations(message) == []
    bounds.check(message)


OUTSIDE: list[tuple[Message, str, str]] = [
    (report(step=2**40 + 1), "step", "is more than 1099511627776"),
    (report(step=-1), "step", "is less than 0"),
    (report(metrics={f"m{number}": 1.0 for number in range(1001)}), "metrics", "1001 entries"),
    (report(metrics={"": 1.0}), "metrics", "has no name"),
    (report(metrics={"a\0": 1.0}), r"metrics['a\x00']", "NUL"),
    (report(metrics={"x" * 257: 1.0}), f"metrics['{'x' * 37}...", "longer than 256"),
    (report(metrics={f"{number:0>250}": 1.0 for number in range(999)}), "", "larger than 131072 bytes"),
    (report(checkpoint_uri="file:///a\x1b[2J"), "checkpoint_uri", "control character"),
    (pb.GetStudyRequest(name="studies/a\0"), "name", "NUL"),
    (pb.ListTrialsRequest(states=[3, 77]), "states[1]", "is not a known value"),
    (pb.PreviewStudyRequest(slots=2**31 - 1), "slots", "is more than 10000"),
    (pb.PreviewStudyRequest(seconds_per_step=float("nan")), "seconds_per_step", "finite"),
    (
        pb.CreateStudyRequest(
            spec=spec_pb2.StudySpec(
                sampler=spec_pb2.Sampler(grid=spec_pb2.GridSampler(points={"x": 2**31 - 1}))
            )
        ),
        "spec.sampler.grid.points.x",
        "is more than 10000",
    ),
    (
        pb.CreateStudyRequest(spec=spec_pb2.StudySpec(space=[{}, {"float": {"low": float("-inf")}}])),
        "spec.space[1].float.low",
        "finite",
    ),
    (pb.CreateStudyRequest(spec=with_space(63, conditions=32)), "spec.space", "2016 conditions in all"),
    (
        pb.CreateStudyRequest(spec=with_space(3, conditions=1, values=9_999)),
        "spec.space",
        "29997 values in all",
    ),
    (
        pb.PreviewStudyRequest(spec=with_space(1000, enqueued=[NOTHING] * 201)),
        "spec.enqueued",
        "201000 configurations times parameters",
    ),
    (pb.SuggestTrialRequest(lease_time=Duration(nanos=-1)), "lease_time", "out of bounds"),
    (pb.SuggestTrialRequest(lease_time=Duration(seconds=1, nanos=2**31 - 1)), "lease_time", "out of bounds"),
    (
        worker_pb2.SessionRequest(report=worker_pb2.Report(train_time=Duration(seconds=10**17))),
        "report.train_time",
        "0 s to 1000000000 s",
    ),
    (
        worker_pb2.SessionRequest(hello=worker_pb2.Hello(protocol=1, devices=[worker_pb2.Device()] * 10_000)),
        "hello.devices",
        "10000 entries",
    ),
    (
        planner_pb2.PlanRequest(question=planner_pb2.PlanQuestion(cluster_json="[" * 17)),
        "question.cluster_json",
        "nested deeper than 16",
    ),
]


@pytest.mark.parametrize(
    ("message", "path", "says"), OUTSIDE, ids=[case[1][:30] or "size" for case in OUTSIDE]
)
def test_what_is_out_of_bounds_is_named_with_value_bound_and_remedy(
    message: Message, path: str, says: str
) -> None:
    (found,) = bounds.violations(message)
    assert found.field.startswith(path.removesuffix("..."))
    assert says in f"{found.message} {found.value} {found.remedy}"
    assert found.remedy
    assert len(str(found)) < 600, "a hostile value is cut"
    with pytest.raises(InvalidFieldError):
        bounds.check(message)


def test_all_faults_of_a_message_are_reported_at_once() -> None:
    message = report(request_id="x" * 129, step=-1, metrics={"a\0": 1.0, "b\0": 1.0})
    assert [found.field for found in bounds.violations(message)][:2] == ["request_id", "step"]
    assert len(bounds.violations(message)) == 4


def test_the_first_hundred_of_many_faults_are_reported() -> None:
    unknown = report(metrics={f"m\0{number}": 1.0 for number in range(500)})
    assert len(bounds.violations(unknown)) == 100
