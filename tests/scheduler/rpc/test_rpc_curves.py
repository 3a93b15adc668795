"""Curves in columns: every page size and thinning, against the list of reports; and annotations."""

import math
from itertools import pairwise
from typing import Any

import pytest
from rpc_site import RpcSite, expire
from sqlalchemy import insert, text, update

from headrace.client.curves import Curves
from headrace.errors import InvalidFieldError, RequestIdReusedError, StudyNotFoundError, TrialNotFoundError
from headrace.spec import from_proto
from headrace.v1 import study_pb2 as pb
from headrace_services.scheduler.rpc import curve_calls, pages
from headrace_services.scheduler.store import tables
from headrace_services.scheduler.store.database import transaction

SPACE = {
    "x": {"type": "float", "low": 0.0, "high": 1.0},
    "n": {"type": "int", "low": 1, "high": 9},
    "opt": {"type": "categorical", "values": ["adam", 3, True]},
}


async def read(site: RpcSite, size: int = 0, study: str = "s", **fields: Any) -> Curves:
    found = Curves(space=from_proto((await site.study(study)).spec).space)
    request = pb.ReadCurvesRequest(study=f"studies/{study}", page_size=size, **fields)
    while True:
        page = await site.call("ReadCurves", request)
        assert page.ByteSize() <= pages.MAX_BYTES + 100_000
        assert len(page.numbers) <= (size or 1000)
        found.add(page)
        request.page_token = page.next_page_token
        if not page.next_page_token:
            return found


def plain(found: Curves) -> dict[str, Any]:
    """Everything, with NaN as text so that it is equal to itself."""
    metrics = {name: [str(value) for value in column] for name, column in found.metrics.items()}
    scores = [str(score) for score in found.scores]
    return vars(found) | {"metrics": metrics, "scores": scores}


@pytest.fixture
async def full_site(site: RpcSite) -> RpcSite:
    """Four trials: with 5, 4 and 1 reports, and without; the second one repeated steps after a lease expired."""
    await site.create("s", space=SPACE, policy={"kind": "run_all"}, max_trials=4, max_steps=50)
    for number, steps in enumerate(([1, 2, 3, 5, 8], [1, 2], [7])):
        lease = (await site.suggest(client=f"c{number}")).lease
        for step in steps:
            metrics = {"loss": number + step / 10} | ({"acc": float(step)} if step % 2 else {})
            await site.call("ReportTrial", pb.ReportTrialRequest(lease=lease, step=step, metrics=metrics))
    await expire(site, 1)
    lease = (await site.suggest(client="again")).lease
    for step in (2, 3, 4):
        await site.call(
            "ReportTrial", pb.ReportTrialRequest(lease=lease, step=step, metrics={"loss": -1.0 * step})
        )
    return site


async def test_the_columns_hold_what_the_reports_do(full_site: RpcSite) -> None:
    found = await read(full_site)
    trials = await full_site.trials()
    assert list(found.numbers) == [trial.number for trial in trials] == [0, 1, 2, 3]
    assert [str(state) for state in found.states] == ["running", "running", "running", "pending"]
    assert found.reasons == [None] * 4
    for place, trial in enumerate(trials):
        params = trial.parameters.values
        assert found.params["x"][place] == params["x"].float_value
        assert found.params["n"][place] == params["n"].int_value
        assert type(found.params["n"][place]) is int
        score = found.scores[place]
        assert score == trial.score if trial.HasField("score") else math.isnan(score)
    assert found.curve(0, "loss") == [(1, 0.1), (2, 0.2), (3, 0.3), (5, 0.5), (8, 0.8)]
    assert found.curve(0, "acc") == [(1, 1.0), (3, 3.0), (5, 5.0)]
    assert found.curve(1, "loss") == [(1, 1.1), (2, -2.0), (3, -3.0), (4, -4.0)]
    assert found.curve(2, "loss") == [(7, 2.7)]
    assert found.curve(3, "loss") == []
    assert list(found.times_s[:5]) == sorted(found.times_s[:5])
    assert 0 <= found.times_s[0] < 600
    assert sorted(found.metrics) == ["acc", "loss"]


async def test_pages_of_every_size_make_the_same_columns(full_site: RpcSite) -> None:
    whole = plain(await read(full_site))
    for size in (1, 2, 3, 4, 1000):
        assert plain(await read(full_site, size)) == whole, size
    whole = plain(await read(full_site, metrics=["loss", "never"]))
    assert list(whole["metrics"]) == ["loss", "never"]
    assert set(whole["metrics"]["never"]) == {"nan"}
    chosen = await read(full_site, filter="loss>0", size=1)
    assert list(chosen.numbers) == [0, 2]
    assert chosen.curve(2, "loss") == [(7, 2.7)]


async def test_numbers_alone(full_site: RpcSite, monkeypatch: pytest.MonkeyPatch) -> None:
    for most in (1, 2, 3, 4, 5):
        monkeypatch.setattr(curve_calls, "MOST_NUMBERS", most)
        for which, wanted in (
            ("", [0, 1, 2, 3]),
            ("loss>0", [0, 2]),
            ("state:pending", [3]),
            ("step>99", []),
        ):
            request = pb.ReadCurvesRequest(study="studies/s", filter=which, numbers_only=True, page_size=2)
            found: list[int] = []
            while True:
                page = await full_site.call("ReadCurves", request)
                assert len(page.numbers) <= most
                assert (
                    pb.ReadCurvesResponse(numbers=page.numbers, next_page_token=page.next_page_token) == page
                )
                found += page.numbers
                request.page_token = page.next_page_token
                if not page.next_page_token:
                    break
            assert found == wanted, (most, which)
    wrong = pb.ReadCurvesRequest(study="studies/s", filter="lr>>", numbers_only=True)
    assert isinstance(await full_site.refusal("ReadCurves", wrong), InvalidFieldError)


async def long_study(site: RpcSite, trials: int, points: int, metrics: int) -> None:
    await site.create("s", policy={"kind": "run_all"}, max_trials=trials, max_steps=100_000)
    async with transaction(site.engine) as conn:
        study_id = (await conn.execute(text("SELECT id FROM study"))).scalar_one()
        numbers = [row.number for row in await conn.execute(text("SELECT number FROM trial ORDER BY number"))]
        for number in range(len(numbers), trials):
            row = {"study_id": study_id, "number": number, "state": "PENDING", "params": {"x": 0.5}}
            await conn.execute(insert(tables.trial).values(row))
        await conn.execute(
            text(
                "INSERT INTO report (study_id, number, attempt, sequence, step, metrics, action, next_milestone)"
                " SELECT :study, number, 1, step, step,"
                " (SELECT jsonb_object_agg('m' || m, step + m) FROM generate_series(1, :metrics) m),"
                " 'CONTINUE', 9 FROM generate_series(0, :trials - 1) number, generate_series(1, :points) step"
            ),
            {"study": study_id, "trials": trials, "points": points, "metrics": metrics},
        )


async def test_long_curves_are_thinned_evenly(site: RpcSite) -> None:
    await long_study(site, 3, 1000, 1)
    for most in (2, 3, 7, 100, 999, 1000, 1001):
        found = await read(site, most_points=most)
        for number in range(3):
            steps = [step for step, _ in found.curve(number, "m1")]
            assert len(steps) == min(most, 1000), most
            assert (steps[0], steps[-1]) == (1, 1000)
            gaps = [later - step for step, later in pairwise(steps)]
            assert max(gaps) - min(gaps) <= 1, most
            assert found.curve(number, "m1") == [(step, step + 1.0) for step in steps]


async def test_an_answer_is_never_too_large(site: RpcSite, monkeypatch: pytest.MonkeyPatch) -> None:
    await long_study(site, 12, 200, 20)
    whole = plain(await read(site))
    assert len(whole["steps"]) == 12 * 200
    monkeypatch.setattr(pages, "MAX_BYTES", 100_000)
    monkeypatch.setattr(curve_calls, "MOST_VALUES", 22_000)
    spec_page = await site.call("ReadCurves", pb.ReadCurvesRequest(study="studies/s"))
    assert len(spec_page.numbers) == 2
    assert plain(await read(site)) == whole


async def test_what_cannot_be_read_is_refused_or_named(full_site: RpcSite) -> None:
    for fields, field in (
        ({"most_points": 1}, "most_points"),
        ({"most_points": 10_001}, "most_points"),
        ({"most_points": 10_000, "metrics": [f"m{n}" for n in range(64)]}, "most_points"),
        ({"metrics": ["a b"]}, "metrics[0]"),
    ):
        error = await full_site.refusal("ReadCurves", pb.ReadCurvesRequest(study="studies/s", **fields))
        assert isinstance(error, InvalidFieldError)
        assert [violation.field for violation in error.violations] == [field]
    error = await full_site.refusal("ReadCurves", pb.ReadCurvesRequest(study="studies/none"))
    assert isinstance(error, StudyNotFoundError)
    async with transaction(full_site.engine) as conn:
        await conn.execute(update(tables.trial).where(tables.trial.c.number == 2).values(params=[1, 2]))
    for size in (0, 1, 3):
        found = await read(full_site, size)
        assert list(found.numbers) == [0, 1, 3]
        assert [one.name for one in found.unshown] == ["studies/s/trials/2"]
    async with transaction(full_site.engine) as conn:
        wrong = {"x": "text", "n": 1, "opt": "adam"}
        await conn.execute(update(tables.trial).where(tables.trial.c.number == 2).values(params=wrong))
        await conn.execute(
            text("""UPDATE report SET metrics = '{"loss": "text"}' WHERE number = 0 AND step = 2""")
        )
        await conn.execute(text("""UPDATE report SET metrics = '[1]' WHERE number = 0 AND step = 3"""))
    found = await read(full_site)
    assert [one.name for one in found.unshown] == ["studies/s/trials/2"]
    assert found.curve(0, "loss") == [(1, 0.1), (5, 0.5), (8, 0.8)]
    assert found.curve(1, "loss")[0] == (1, 1.1)


async def test_many_metrics_shorten_curves_or_are_left_out(site: RpcSite) -> None:
    await long_study(site, 2, 400, 70)
    found = await read(site, most_points=10_000)
    assert found.more_metrics
    assert len(found.metrics) == 64
    assert len(found.curve(1, "m1")) == 400
    chosen = await read(site, metrics=["m1", "m70"])
    assert not chosen.more_metrics
    assert chosen.curve(0, "m70")[0] == (1, 71.0)


async def test_annotations_change_nothing_else(full_site: RpcSite) -> None:
    async def annotate(name: str = "studies/s", **fields: Any) -> tuple[list[str], str]:
        answer = await full_site.call("Annotate", pb.AnnotateRequest(name=name, **fields))
        return list(answer.tags), answer.note

    before = await full_site.study()
    assert await annotate(add_tags=["b", "a"], note="first\nline") == (["a", "b"], "first\nline")
    assert await annotate(add_tags=["b", "c"], remove_tags=["a", "none"]) == (["b", "c"], "first\nline")
    assert await annotate(note="") == (["b", "c"], "")
    study = await full_site.study()
    assert list(study.tags) == ["b", "c"]
    study.ClearField("tags")
    assert study == before
    trial = "studies/s/trials/3"
    assert await annotate(trial, add_tags=["odd"], note="why?") == (["odd"], "why?")
    lease = (await full_site.suggest(client="later")).lease  # a cycle changes the row
    await full_site.report(lease, 1, 0.5)
    found = (await full_site.call("GetTrial", pb.GetTrialRequest(name=trial))).trial
    assert (list(found.tags), found.note, found.step) == (["odd"], "why?", 1)
    await full_site.call("StopStudy", pb.StopStudyRequest(name="studies/s"))
    assert await annotate(add_tags=["over"]) == (["b", "c", "over"], "")


async def test_an_annotation_that_arrives_late_or_twice_counts_once(full_site: RpcSite) -> None:
    first = pb.AnnotateRequest(request_id="r1", name="studies/s", add_tags=["a"])
    answer = await full_site.call("Annotate", first)
    await full_site.call("Annotate", pb.AnnotateRequest(request_id="r2", name="studies/s", remove_tags=["a"]))
    assert await full_site.call("Annotate", first) == answer
    assert not (await full_site.study()).tags
    other = pb.AnnotateRequest(request_id="r1", name="studies/s", add_tags=["b"])
    assert isinstance(await full_site.refusal("Annotate", other), RequestIdReusedError)


async def test_a_wrong_annotation_is_refused(full_site: RpcSite) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({}, "add_tags"),
        ({"add_tags": ["a b"]}, "add_tags[0]"),
        ({"add_tags": ["a"], "remove_tags": ["<script>"]}, "remove_tags[0]"),
        ({"add_tags": ["a"], "remove_tags": ["a"]}, "add_tags[0]"),
        ({"add_tags": [f"t{n}" for n in range(33)]}, "add_tags"),
        ({"note": "\0"}, "note"),
    ]
    for fields, field in wrong:
        error = await full_site.refusal("Annotate", pb.AnnotateRequest(name="studies/s", **fields))
        assert isinstance(error, InvalidFieldError), fields
        assert [violation.field for violation in error.violations] == [field]
    for start in (0, 20):
        request = pb.AnnotateRequest(name="studies/s", add_tags=[f"t{n}" for n in range(start, start + 20)])
        if not start:
            await full_site.call("Annotate", request)
            continue
        error = await full_site.refusal("Annotate", request)
        assert "more than 32 tags" in error.message
    assert len((await full_site.study()).tags) == 20
    missing = pb.AnnotateRequest(name="studies/s/trials/99", note="x")
    assert isinstance(await full_site.refusal("Annotate", missing), TrialNotFoundError)
    missing = pb.AnnotateRequest(name="studies/none", note="x")
    assert isinstance(await full_site.refusal("Annotate", missing), StudyNotFoundError)
