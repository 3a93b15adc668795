"""Requests out of bounds are refused before any work is done for them, and nobody else notices."""

import asyncio
import base64
import gc
import hashlib
from collections.abc import Sequence
from typing import Any

import pytest
from rpc_site import RpcSite, make_spec

from headrace import errors
from headrace.spec import to_proto
from headrace.v1 import spec_pb2
from headrace.v1 import study_pb2 as pb
from headrace_services.scheduler.rpc import spec_faults


def forged(request: Any, text: bytes) -> str:
    """A token as the server makes it, with its checksum, but for a key that no list has."""
    binding = type(request).__name__.encode() + b"\0" + request.SerializeToString(deterministic=True)
    checksum = hashlib.blake2b(binding + b"\0" + text, digest_size=8, person=b"headrace page").digest()
    return base64.urlsafe_b64encode(checksum + text).decode().rstrip("=")


FORGED = {
    "not text": ("ListStudies", b"\xff\xfe"),
    "5,000 digits": ("ListStudies", b"[" + b"9" * 5000 + b"]"),
    "more than 64 bits": ("ListStudies", b"[9223372036854775808]"),
    "deep": ("ListStudies", b"[" * 100_000),
    "a flag": ("ListStudies", b"[true]"),
    "a NUL": ("ListWorkers", b'["a\\u0000"]'),
}


@pytest.mark.parametrize(("method", "key"), FORGED.values(), ids=FORGED)
async def test_a_forged_page_token_is_refused(site: RpcSite, method: str, key: bytes) -> None:
    request = getattr(pb, f"{method}Request")()
    request.page_token = forged(request, key)
    expected = errors.InvalidFieldError if len(key) > 10_000 else errors.BadPageTokenError
    assert type(await site.refusal(method, request)) is expected


async def test_steps_beyond_their_bound_are_refused_and_lists_continue(site: RpcSite) -> None:
    await site.create(policy={"kind": "run_all"}, max_steps=2**40)
    for client in ("a", "b"):
        asked = await site.suggest(client=client)
        report = pb.ReportTrialRequest(lease=asked.lease, step=2**63 - 1, metrics={"loss": 1.0})
        error = await site.refusal("ReportTrial", report)
        assert isinstance(error, errors.InvalidFieldError)
        (violation,) = error.violations
        assert (violation.field, violation.value) == ("step", "9223372036854775807")
        assert violation.message == "is more than 1099511627776"
    assert len((await site.call("ListStudies", pb.ListStudiesRequest())).studies) == 1
    await site.call("StopStudy", pb.StopStudyRequest(name="studies/s"))


async def test_the_greatest_numbers_within_bounds_fit_all_that_is_computed_from_them(site: RpcSite) -> None:
    await site.create(policy={"kind": "run_all"}, max_steps=2**40, max_trials=1_000_000)
    asked = await site.suggest()
    await site.report(asked.lease, 2**40, 1e308)
    found = await site.study()
    assert found.status.steps_run_all == 2**40 * 1_000_000
    assert found.status.steps_spent == 2**40


async def violations(site: RpcSite, spec: spec_pb2.StudySpec) -> list[Sequence[errors.Violation]]:
    """The violations of a spec, when a study is created and when it is previewed."""
    created = await site.refusal("CreateStudy", pb.CreateStudyRequest(study_id="t", spec=spec))
    previewed = await site.refusal("PreviewStudy", pb.PreviewStudyRequest(spec=spec))
    assert isinstance(created, errors.InvalidFieldError)
    assert isinstance(previewed, errors.InvalidFieldError)
    return [created.violations, previewed.violations]


async def test_a_spec_beyond_its_bounds_is_refused(site: RpcSite) -> None:
    spec = to_proto(make_spec())
    spec.sampler.CopyFrom(spec_pb2.Sampler(grid=spec_pb2.GridSampler(points={"x": 2**31 - 1})))
    spec.max_steps = 2**62
    for found in await violations(site, spec):
        assert sorted(one.field for one in found) == [
            "max_steps",
            "sampler.points.x",
        ]  # as the Python client writes it


async def test_a_large_spec_beyond_its_bounds_is_not_looked_at_twice(site: RpcSite) -> None:
    spec = to_proto(make_spec(space=unit_space(500)))
    spec.max_steps = 2**62
    spec.template.env["LONG"] = "x" * 60_000
    assert spec.ByteSize() > spec_faults.LARGEST_BYTES
    error = await site.refusal("PreviewStudy", pb.PreviewStudyRequest(spec=spec))
    assert isinstance(error, errors.InvalidFieldError)
    assert {violation.field for violation in error.violations} >= {"spec.max_steps"}


async def test_a_spec_of_a_later_release_is_refused(site: RpcSite) -> None:
    """Protobuf would drop the field, and a policy with it: the study would run with the default policy."""
    spec = to_proto(make_spec())
    spec.ClearField("policy")
    spec.policy.SetInParent()
    spec.policy.MergeFromString(b"\xa2\xc2\x03\x05newer")
    spec.space[0].float.MergeFromString(b"\xa2\xc2\x03\x05newer")
    for found in await violations(site, spec):
        assert [one.field for one in found] == ["space[0].float", "policy"]
        assert found[0].remedy.startswith("Update the scheduler")


def unit_space(parameters: int) -> dict[str, Any]:
    return {f"p{number}": {"type": "float", "low": 0.0, "high": 1.0} for number in range(parameters)}


async def test_a_thousand_configurations_are_taken_at_once(site: RpcSite) -> None:
    await site.create(space=unit_space(50))
    values = {f"p{number}": spec_pb2.ParameterValue(float_value=0.5) for number in range(50)}
    tried = spec_pb2.ParameterAssignment(values=values)
    added = await site.call("AddTrials", pb.AddTrialsRequest(study="studies/s", parameters=[tried] * 1000))
    assert len(added.trials) == 1000


async def test_configurations_times_parameters_are_bounded(site: RpcSite) -> None:
    await site.create(space=unit_space(1000))
    nothing = spec_pb2.ParameterAssignment()
    error = await site.refusal(
        "AddTrials", pb.AddTrialsRequest(study="studies/s", parameters=[nothing] * 201)
    )
    assert isinstance(error, errors.InvalidFieldError)
    (violation,) = error.violations
    assert violation.field == "parameters"
    assert "more than 200" in violation.message
    assert "Split" in violation.remedy


@pytest.mark.parametrize("name", ["studies/absent", "studies/" + "x" * 200, "?"])
async def test_a_refused_request_is_not_kept_until_the_next_collection(site: RpcSite, name: str) -> None:
    gc.collect()
    gc.disable()
    try:
        for _ in range(40):
            await site.refusal("StopStudy", pb.StopStudyRequest(name=name, reason="r" * 8192))
        await asyncio.sleep(0.1)
        kept = sum(type(held) is pb.StopStudyRequest for held in gc.get_objects())
    finally:
        gc.enable()
    assert kept < 10  # the last ones, on either side of the connection
