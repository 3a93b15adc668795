"""The page of a training plan, with a real planner's answer and with files that are no answer."""

import json
import re
from typing import Any

import pytest
from console_site import Console, make_study

from headrace.spec import TrialPlan
from headrace_services.console.pages.plan_record import PARTS, PLAN, record_of
from headrace_services.planner import asking
from headrace_services.planner.modes import FULL
from headrace_services.planner.record import plan_record


def planned() -> dict[str, Any]:
    """The record of a plan with several stages."""
    asked = asking.request("gpt3-175b", "a100-64", asking.Options(batch=16))
    plan = asking.search(asked, asking.method("exact"), None).run(FULL).plan
    assert plan is not None
    return plan_record(plan)


def trial_plan(text: str) -> TrialPlan:
    degrees = {"data": 2, "tensor": 1, "optimizer": 1, "pipeline": 2, "micro_batches": 4, "expert": 1}
    return TrialPlan.model_validate({"degrees": degrees, "iteration_s": 1.0, "files": {PLAN: text}})


def test_a_planners_answer_is_read_whole() -> None:
    told = planned()
    found = record_of(trial_plan(json.dumps(told)))
    assert found is not None
    assert len(found.stages) == len(told["stages"]) == told["degrees"]["s"] > 1
    assert found.stages[0].layers.startswith("0-")
    assert [stage.memory.total_bytes for stage in found.stages] == [
        stage["memory"]["total_bytes"] for stage in told["stages"]
    ]
    assert set(PARTS) == set(told["breakdown"])
    assert sum(share for _, _, share in found.parts()) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[" * 100_000,
        "null",
        '{"stages": 3}',
        json.dumps({"capacity_bytes": "<b>", "iteration_s": 1, "mfu": 1, "stages": [], "breakdown": {}}),
        '{"capacity_bytes": NaN, "iteration_s": 1, "mfu": 1, "stages": [], "breakdown": {}}',
    ],
)
def test_a_file_that_is_no_answer_shows_nothing(text: str) -> None:
    assert record_of(trial_plan(text)) is None


def test_an_empty_answer_divides_by_nothing() -> None:
    text = '{"capacity_bytes": 0, "iteration_s": 0, "mfu": 0, "stages": [], "breakdown": {}}'
    found = record_of(trial_plan(text))
    assert found is not None
    assert {share for _, _, share in found.parts()} == {0.0}


async def test_the_page_shows_each_stage(console: Console) -> None:
    told = planned()
    degrees = {"data": 1, "tensor": 1, "optimizer": 1, "pipeline": 2, "micro_batches": 4, "expert": 1}
    plan = {"degrees": degrees, "iteration_s": told["iteration_s"], "files": {PLAN: json.dumps(told)}}
    await make_study(
        console.scheduler,
        template={"callable": "train:f", "working_dir": "/data", "plan": plan},
        resources={"gpus": 2},
    )
    page = (await console.http.get("/studies/s/plan")).text
    stages = re.findall(r'<th scope="row" class="n">(\d+)</th><td>([\d, -]+)</td>', page)
    assert [int(number) for number, _ in stages] == [*range(len(told["stages"]))]
    for name in PARTS.values():
        assert name in page
    assert page.count("<progress") == len(stages) + len(PARTS)
