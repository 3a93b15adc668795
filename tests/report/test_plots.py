"""`study.plot`: the report's figures as objects."""

import sys

import pytest
from fake_study_service import FakeStudyService
from scripted_study import race

from headrace import Client, MissingExtraError
from headrace.client import Study
from headrace.errors import HeadraceError


@pytest.fixture
def study(fake: FakeStudyService, client: Client) -> Study:
    fake.add(race())
    return client.study("digits")


def test_figures_are_those_of_the_report(study: Study) -> None:
    assert {"baseline", "best (trial 22)"} <= {trace.name for trace in study.plot.curves().data}
    assert study.plot.parallel().data[0].type == "parcoords"
    assert {trace.type for trace in study.plot.gantt().data} == {"bar", "scatter"}
    assert {trace.type for trace in study.plot.rungs().data} == {"bar"}


def test_a_study_with_one_objective_has_no_front(study: Study) -> None:
    with pytest.raises(HeadraceError, match="one objective, and so no front"):
        study.plot.front()


def test_an_importance_for_something_else_is_refused(study: Study) -> None:
    with pytest.raises(HeadraceError):
        study.plot.importance("no_such_metric")


def test_without_plotly_it_says_what_to_install(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    with pytest.raises(MissingExtraError, match="report"):
        study.plot.curves()
