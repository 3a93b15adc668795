"""The advice to reuse processes: once for a study, if imports take most of its processor time."""

from datetime import timedelta

import pytest

from headrace.v1 import runtime_pb2, spec_pb2
from headrace_worker.import_shares import ImportShares

FRESH = spec_pb2.TrialTemplate(callable="train:train")


def said(imports_s: float, processor_s: float) -> runtime_pb2.FinishRequest:
    request = runtime_pb2.FinishRequest()
    request.processor_of_imports.FromTimedelta(timedelta(seconds=imports_s))
    request.processor.FromTimedelta(timedelta(seconds=processor_s))
    return request


def test_it_is_given_once_for_a_study_after_a_few_attempts() -> None:
    shares = ImportShares()
    given = [shares.ended("a", FRESH, said(5, 6)) for _ in range(20)]
    assert [bool(one) for one in given] == [False] * 7 + [True] + [False] * 12
    assert given[7].startswith(
        "83% of the processor time of the study's first 8 attempts on this worker went into"
    )
    assert "headrace check --reuse" in given[7]
    assert [bool(shares.ended("b", FRESH, said(5, 6))) for _ in range(8)] == [False] * 7 + [True]


@pytest.mark.parametrize(
    ("template", "request_"),
    [
        (FRESH, said(2, 6)),
        (FRESH, None),
        (FRESH, runtime_pb2.FinishRequest()),
        (spec_pb2.TrialTemplate(callable="train:train", reuse=True), said(5, 6)),
    ],
    ids=["imports are cheap", "killed", "no function", "reuses already"],
)
def test_it_is_not_given(
    template: spec_pb2.TrialTemplate, request_: runtime_pb2.FinishRequest | None
) -> None:
    shares = ImportShares()
    assert not any(shares.ended("a", template, request_) for _ in range(20))
