"""A study that an older release accepted is read as it is stored."""

import pytest

from headrace.client import convert
from headrace.errors import InvalidFieldError
from headrace.spec import StudySpec, from_proto, parse_spec, to_proto
from headrace.v1 import study_pb2


def test_a_study_whose_conditions_can_never_hold_is_still_read() -> None:
    sound = parse_spec(
        {
            "objective": {"metric": "loss", "goal": "minimize"},
            "space": {"kind": {"type": "categorical", "values": ["a", "b"]}},
            "trials": 3,
            "steps": 9,
        }
    )
    columns = sound.model_dump(mode="json")
    when = [{"parameter": "kind", "values": ["a"]}, {"parameter": "kind", "values": ["b"]}]
    columns["space"].append({"name": "x", "type": "float", "low": 0.0, "high": 1.0, "conditions": when})
    older = StudySpec.stored(columns)
    message = to_proto(older)
    with pytest.raises(InvalidFieldError):
        from_proto(message)
    assert convert.study(study_pb2.Study(name="studies/older", spec=message)).spec == older
    message.max_steps = 0
    with pytest.raises(InvalidFieldError, match="max_steps"):
        convert.study(study_pb2.Study(name="studies/unsound", spec=message))
