"""Finding which study goes first takes time linear in the number of studies, not quadratic."""

from typing import Any

import pytest
from many_studies import ManyStudies, gpus

from headrace.spec import StudySpec
from headrace_services.scheduler.core import cluster_view
from headrace_services.scheduler.core.needs import Devices
from headrace_services.scheduler.core.placement import shares

SPEC = StudySpec.model_validate(
    {
        "objective": {"metric": "loss", "goal": "minimize"},
        "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
        "policy": {"kind": "run_all"},
        "template": {"callable": "train:train", "working_dir": "/"},
        "resources": {"gpus": 1},
        "max_trials": 20,
        "max_steps": 1,
    }
)


def claims_each(count: int, monkeypatch: pytest.MonkeyPatch) -> float:
    """How many claims are computed for each trial that ends, while `count` studies share four GPUs."""
    computed = 0
    claim = shares.claim

    def counted(*arguments: Any) -> tuple[float, float, int]:
        nonlocal computed
        computed += 1
        return claim(*arguments)

    many = ManyStudies(gpus(1, 4))
    for _ in range(count):
        many.add(SPEC)
    with monkeypatch.context() as patched:
        patched.setattr(shares, "claim", counted)
        many.run(until_s=5)
    return computed / 20


def test_the_claims_of_a_placement_grow_with_the_number_of_studies(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = claims_each(12, monkeypatch), claims_each(48, monkeypatch)
    assert many < 6 * few


def test_who_runs_where_is_read_only_by_the_study_that_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0
    devices = cluster_view.Devices

    def counted(**fields: Any) -> Devices:
        nonlocal asked
        asked += 1
        return devices(**fields)

    many = ManyStudies(gpus(1, 4))
    for _ in range(48):
        many.add(SPEC)
    monkeypatch.setattr(cluster_view, "Devices", counted)
    many.run(until_s=5)
    assert not asked
