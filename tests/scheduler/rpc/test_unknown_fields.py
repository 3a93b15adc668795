"""A spec with fields that this release does not know is refused, at any depth."""

import pytest

from headrace.errors import InvalidFieldError
from headrace.v1 import spec_pb2
from headrace_services.scheduler.rpc.spec_faults import refuse_unknown

NEWER = b"\xa2\xc2\x03\x05newer"
"""Field 7204, with a string."""


def test_what_is_known_passes() -> None:
    refuse_unknown(
        spec_pb2.StudySpec(
            space=[spec_pb2.Parameter(name="x")], template=spec_pb2.TrialTemplate(env={"A": "b"})
        )
    )


def test_a_field_of_a_later_release_is_named_by_its_place() -> None:
    spec = spec_pb2.StudySpec(space=[spec_pb2.Parameter(name="x"), spec_pb2.Parameter(name="y")])
    spec.MergeFromString(NEWER)
    spec.space[1].float.MergeFromString(NEWER)
    with pytest.raises(InvalidFieldError) as caught:
        refuse_unknown(spec)
    assert [one.field for one in caught.value.violations] == ["spec", "space[1].float"]
    assert all("later release" in one.message for one in caught.value.violations)
    assert all("Update the scheduler" in one.remedy for one in caught.value.violations)
