"""Filters and orders of lists, over a real database, against the same rules written in Python."""

import math
from collections.abc import Callable
from typing import Any

import pytest
from rpc_site import RpcSite
from sqlalchemy import text, update

from headrace.errors import BadPageTokenError, InvalidFieldError
from headrace.spec import StudySpec, params_from_proto
from headrace.v1 import study_pb2 as pb
from headrace.v1 import trial_pb2
from headrace_services.scheduler.store import tables, trials
from headrace_services.scheduler.store.database import transaction
from headrace_services.scheduler.store.query import trial_keys

NAN = math.nan
SPACE = {
    "lr": {"type": "float", "low": 1e-6, "high": 1.0},
    "layers": {"type": "int", "low": 1, "high": 9},
    "opt": {"type": "categorical", "values": ["adam", "sgd", 3, True]},
    "step": {"type": "float", "low": 0.0, "high": 1.0},
}
GIVEN: list[tuple[Any, ...]] = [
    # lr, layers, opt, step, last value, another metric
    (1e-3, 2, "adam", 0.5, 0.3, 10.0),
    (1e-2, 3, "sgd", 0.1, NAN, 30.0),
    (1e-1, 9, 3, 0.9, 0.1, NAN),
    (1e-4, 1, True, 0.2, math.inf, None),
    (1e-3, 5, "adam", 0.3, -0.5, 20.0),
    (0.5, 2, "sgd", 0.4, 0.3, -math.inf),
]


@pytest.fixture
async def full_site(site: RpcSite) -> RpcSite:
    """Seven trials: six with a report each, of which three have ended, and one without."""
    await site.create("s", space=SPACE, policy={"kind": "run_all"}, max_trials=7, max_steps=3)
    for number, (lr, layers, opt, step, value, other) in enumerate(GIVEN):
        lease = (await site.suggest(client=f"c{number}")).lease
        metrics = {"loss": value} | ({"acc/5": other} if other is not None else {})
        await site.call(
            "ReportTrial", pb.ReportTrialRequest(lease=lease, step=1 + number % 3, metrics=metrics)
        )
        async with transaction(site.engine) as conn:
            t = tables.trial
            params = {"lr": lr, "layers": layers, "opt": opt, "step": step}
            await conn.execute(update(t).where(t.c.number == number).values(params=params))
    await site.call("StopTrial", pb.StopTrialRequest(name="studies/s/trials/0", reason="too slow, I think"))
    await site.call(
        "Annotate",
        pb.AnnotateRequest(name="studies/s/trials/1", add_tags=["paper", "old"], note="Looks odd"),
    )
    return site


async def select(site: RpcSite, which: str = "", order: str = "", size: int = 0) -> list[int]:
    request = pb.ListTrialsRequest(study="studies/s", filter=which, order_by=order, page_size=size)
    found: list[int] = []
    while True:
        page = await site.call("ListTrials", request)
        found += [trial.number for trial in page.trials]
        request.page_token = page.next_page_token
        if not page.next_page_token:
            return found


async def test_filters_select_what_they_say(full_site: RpcSite) -> None:
    last = {place: value for place, (*_, value, _) in enumerate(GIVEN)}
    expected: dict[str, Callable[[int], bool]] = {
        "lr>1e-3": lambda n: GIVEN[n][0] > 1e-3,
        "lr:1e-3": lambda n: GIVEN[n][0] == 1e-3,
        "lr!=1e-3 lr<1": lambda n: GIVEN[n][0] != 1e-3,
        "layers:2,9": lambda n: GIVEN[n][1] in (2, 9),
        "opt:adam": lambda n: GIVEN[n][2] == "adam",
        "opt:3": lambda n: GIVEN[n][2] == 3 and GIVEN[n][2] is not True,
        "opt:true": lambda n: GIVEN[n][2] is True,
        "opt~GD": lambda n: GIVEN[n][2] == "sgd",
        "opt>2": lambda n: GIVEN[n][2] == 3,
        "param.step>=0.4": lambda n: GIVEN[n][3] >= 0.4,
        "step>=2": lambda n: 1 + n % 3 >= 2,
        "loss<0.2": lambda n: not math.isnan(last[n]) and last[n] < 0.2,
        "loss>0": lambda n: not math.isnan(last[n]) and last[n] > 0,
        "loss:nan": lambda n: math.isnan(last[n]),
        "loss:inf": lambda n: last[n] == math.inf,
        "metric.acc/5>=10": lambda n: n in (0, 1, 4),
        "-metric.acc/5>=10 lr>0": lambda n: n in (2, 3, 5),
        "state:cancelled": lambda n: n == 0,
        "state:TERMINATED": lambda n: n in (0, 2, 5),
        "state:running -tag:paper": lambda n: n in (3, 4),
        "tag:paper,none": lambda n: n == 1,
        "tag~pap": lambda n: n == 1,
        'note~"looks ODD"': lambda n: n == 1,
        'detail~"too slow"': lambda n: n == 0,
        "ended>1h": lambda n: n in (0, 2, 5),
        "started<1h": lambda n: n < 0,
        "created>2026-01-01 number<3": lambda n: n < 3,
        "seconds>=0": lambda n: n >= 0,
    }
    for which, wanted in expected.items():
        found = await select(full_site, which)
        assert [n for n in found if n < len(GIVEN)] == [n for n in range(len(GIVEN)) if wanted(n)], which


async def test_orders_hold_at_any_page_size(full_site: RpcSite) -> None:
    def key(row: int, value: Any) -> tuple[int, float, str, int]:
        if value is None:
            return 3, 0.0, "", row
        if isinstance(value, float | int) and not isinstance(value, bool):
            return (2, 0.0, "", row) if math.isnan(value) else (0, float(value), "", row)
        return 1, 0.0, {True: "true"}.get(value, value), row

    columns: dict[str, list[Any]] = {
        "lr": [row[0] for row in GIVEN],
        "layers": [row[1] for row in GIVEN],
        "opt": [row[2] for row in GIVEN],
        "loss": [row[4] for row in GIVEN],
        "metric.acc/5": [row[5] for row in GIVEN],
        "note": [None, "Looks odd", None, None, None, None],
    }
    sixth = (await full_site.call("GetTrial", pb.GetTrialRequest(name="studies/s/trials/6"))).trial
    params = params_from_proto(sixth.parameters)
    for name, values in columns.items():
        values = [*values, params.get(name)]
        keys = sorted(key(row, value) for row, value in enumerate(values))
        up = [row for *_, row in keys]
        ranks = sorted({rank for rank, *_ in keys})
        down: list[int] = []
        for rank in ranks:  # only the values turn around: equals stay in the order of numbers
            some = [one for one in keys if one[0] == rank]
            down += [row for *_, row in sorted(some, key=lambda one: (one[1:3], -one[3]), reverse=True)]
        for size in (0, 1, 2, 3):
            assert await select(full_site, order=name, size=size) == up, (name, size)
            assert await select(full_site, order=f"-{name}", size=size) == down, (name, size)


async def test_the_leading_trials_come_first(full_site: RpcSite) -> None:
    assert await select(full_site, order="leading", size=2) == await select(full_site, order="score")
    assert await select(full_site, order="leading") != await select(full_site)


def spec(goal: str = "minimize", **more: Any) -> StudySpec:
    given = {"objective": {"metric": "loss", "goal": goal}, "space": SPACE, "policy": {"kind": "run_all"}}
    return StudySpec.model_validate({**given, "max_trials": 7, "max_steps": 3, **more})


@pytest.mark.parametrize("goal", ["minimize", "maximize"])
def test_which_trials_lead_depends_on_the_goal(goal: str) -> None:
    order = trial_keys.ordered(spec(goal), "leading")
    assert order is not None
    assert order.descending is (goal == "maximize")
    several = spec(goal, further_objectives=[{"metric": "mem", "goal": "minimize"}])
    assert trial_keys.ordered(several, "leading") is None


async def test_what_cannot_be_filtered_by_is_refused(full_site: RpcSite) -> None:
    refused = {
        "nope>1": "neither a field of trials nor a parameter",
        "state:busy": "is no state",
        "state>running": "cannot use >",
        "lr>big": "not a number",
        "lr>1,2": "compares with 2 values",
        "tag>1": "cannot use > with tags",
        "note>1": "by size",
        "step~1": "looks for text in a number",
        "created:2026-01-01": "cannot use : with a time",
        "created>soon": "is not a time",
        "loss>nan": "orders by NaN",
        "lr:big": "not a number",
        "opt:rmsprop": "is no choice of opt",
        "opt:4": "is no choice of opt",
        "-opt:false": "is no choice of opt",
        "x": "has no operator",
    }
    for which, said in refused.items():
        for method, request in (
            ("ListTrials", pb.ListTrialsRequest(study="studies/s", filter=which)),
            ("ReadCurves", pb.ReadCurvesRequest(study="studies/s", filter=which)),
        ):
            error = await full_site.refusal(method, request)
            assert isinstance(error, InvalidFieldError)
            [violation] = error.violations
            assert violation.field == "filter"
            assert said in violation.message
            assert violation.remedy
    error = await full_site.refusal("ListStudies", pb.ListStudiesRequest(filter="lr>1"))
    assert "is no field of studies" in error.message
    for order in ("nope", "tag", "-state"):
        error = await full_site.refusal("ListTrials", pb.ListTrialsRequest(study="studies/s", order_by=order))
        assert isinstance(error, InvalidFieldError)
        assert [violation.field for violation in error.violations] == ["order_by"]


async def test_a_metric_that_is_no_number_hides_nothing(full_site: RpcSite) -> None:
    async with transaction(full_site.engine) as conn:
        await conn.execute(text("""UPDATE trial SET metrics = '{"loss": "x"}' WHERE number = 3"""))
        await conn.execute(text("""UPDATE trial SET metrics = '[1]' WHERE number = 4"""))
    assert await select(full_site, "loss<0.2") == [2]
    assert (await select(full_site, "number<7", "loss"))[:2] == [2, 0]


async def test_a_token_of_another_filter_or_order_is_refused(full_site: RpcSite) -> None:
    request = pb.ListTrialsRequest(study="studies/s", page_size=1, order_by="lr")
    token = (await full_site.call("ListTrials", request)).next_page_token
    for fields in ({"order_by": "-lr"}, {"order_by": ""}, {"order_by": "lr", "filter": "lr>0"}):
        other = pb.ListTrialsRequest(study="studies/s", page_token=token, **fields)
        assert isinstance(await full_site.refusal("ListTrials", other), BadPageTokenError), fields


@pytest.mark.parametrize("place", [(2**62, "1.0", 1), (-1, "1.0", 1), (1, "\ud800", 1), (0, "one", 1)])
def test_a_place_that_no_trial_can_have_is_refused(place: tuple[int, str, int]) -> None:
    order = trial_keys.ordered(spec(), "opt")
    with pytest.raises(ValueError):
        trials.Selection(order=order).query(1, place, 10)


async def test_studies_are_filtered(site: RpcSite) -> None:
    for name in ("first", "second", "third"):
        await site.create(name)
    await site.call("StopStudy", pb.StopStudyRequest(name="studies/second", reason="a mistake"))
    await site.call("Annotate", pb.AnnotateRequest(name="studies/third", add_tags=["paper"], note="ours"))

    async def found(which: str) -> list[str]:
        page = await site.call("ListStudies", pb.ListStudiesRequest(filter=which))
        return [study.name.removeprefix("studies/") for study in page.studies]

    assert await found("") == ["third", "second", "first"]
    assert await found("state:active") == ["third", "first"]
    assert await found("tag:paper") == ["third"]
    assert await found("-tag:paper created>1h") == ["second", "first"]
    assert await found("name~ir") == ["third", "first"]
    assert await found("note:ours") == ["third"]
    assert await found('detail~"a mistake"') == ["second"]
    assert await found("ended>1h") == ["second"]
    assert await found("created<1h") == []


async def test_a_list_in_an_order_shows_whole_trials(full_site: RpcSite) -> None:
    page = await full_site.call("ListTrials", pb.ListTrialsRequest(study="studies/s", order_by="-layers"))
    by_number = {trial.number: trial for trial in await full_site.trials()}
    assert [by_number[trial.number] for trial in page.trials] == list(page.trials)
    assert by_number[1].tags == ["old", "paper"]
    assert by_number[0].state == trial_pb2.TRIAL_STATE_TERMINATED
