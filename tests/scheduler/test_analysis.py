"""Work that a caller can make large is done within limits: it is answered, or refused with what was too large.

The edge refuses most of these numbers. The code behind it must still hold: a bound may be raised, and a
caller may use the maximum of everything at once.
"""

import asyncio
import multiprocessing
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import psutil
import pytest
import pytest_asyncio
from tiers import drawn

from headrace.errors import InvalidFieldError, TooLargeError
from headrace.spec import GridSampler, StudySpec
from headrace_services.sandbox import Limits
from headrace_services.scheduler.analysis import SMALL_FRONT, AnalysisPools
from headrace_services.scheduler.preview import preview
from headrace_services.scheduler.samplers import make_sampler
from headrace_services.scheduler.samplers.history import Result

INT32_MAX = 2**31 - 1
LIMITS = Limits(memory_bytes=256 * 1024 * 1024, time_s=5.0, wait_s=30.0, waiting=2, each=2)


def make_spec(points: int | None = None, **changes: Any) -> StudySpec:
    """A small study; a large number of grid `points` exceeds the bounds of specs."""
    fields: dict[str, Any] = {
        "objective": {"metric": "loss", "goal": "minimize"},
        "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
        "policy": {"kind": "asha", "eta": 3, "rungs": [1, 3, 9]},
        "max_trials": 9,
        "max_steps": 9,
    }
    spec = StudySpec.model_validate({**fields, **changes})
    if points is None:
        return spec
    return spec.model_copy(update={"sampler": GridSampler.model_construct(kind="grid", points={"x": points})})


@pytest_asyncio.fixture
async def analysis() -> AsyncIterator[AnalysisPools]:
    """Pools with small budgets."""
    opened = AnalysisPools(previews=LIMITS, fronts=LIMITS)
    yield opened
    await opened.close()


async def answer(work: Any) -> Any:
    """An answer or an error; the event loop stays free meanwhile."""
    late, before = 0.0, time.monotonic()
    task = asyncio.ensure_future(work)
    while not task.done():
        await asyncio.wait([task], timeout=0.01)
        late, before = max(late, time.monotonic() - before), time.monotonic()
    assert late < drawn(first=10, full=1), f"the event loop was blocked for {late:.1f} s"
    return (await asyncio.gather(task, return_exceptions=True))[0]


SPACES: dict[str, dict[str, Any]] = {
    "a float": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
    "an int": {"x": {"type": "int", "low": 0, "high": 2**40}},
    "a condition": {
        "x": {"type": "int", "low": 0, "high": 2**40},
        "y": {"type": "int", "low": 1, "high": 3, "conditions": [{"parameter": "x", "values": [0]}]},
    },
}


@pytest.mark.parametrize("kind", SPACES)
def test_a_grid_of_very_many_points_is_never_built(kind: str) -> None:
    sampler = make_sampler(make_spec(INT32_MAX, space=SPACES[kind]))
    assert sampler.size == INT32_MAX + (2 if kind == "a condition" else 0)
    assert sampler.suggest(0)
    assert sampler.suggest(INT32_MAX - 1)


def test_a_grid_that_has_to_be_rounded_is_refused() -> None:
    space = {"x": {"type": "int", "low": 1, "high": 2**40, "log": True}}
    with pytest.raises(InvalidFieldError) as refusal:
        make_sampler(make_spec(INT32_MAX, space=space))
    assert refusal.value.violations[0].field == "sampler.points.x"
    assert "10000" in refusal.value.violations[0].remedy


async def test_a_preview_on_very_many_slots(analysis: AnalysisPools) -> None:
    found = await answer(analysis.preview(make_spec(), INT32_MAX, None))
    few = preview(make_spec(), 1000)
    assert found.slots == INT32_MAX
    assert (found.rungs, found.steps, found.samples) == (few.rungs, few.steps, few.samples)


LARGE_TRIALS = {"max_trials": 2400, "template": {"callable": "t:t", "working_dir": "/tmp"}}


@pytest.mark.full
async def test_what_a_preview_cannot_hold_is_refused_and_harms_nobody(analysis: AnalysisPools) -> None:
    """Each simulated machine gets as many devices as a trial asks for."""
    refusal = await answer(analysis.preview(make_spec(**LARGE_TRIALS, resources={"gpus": 1024}), 2400, None))
    assert isinstance(refusal, TooLargeError), refusal
    assert "256 MiB of memory" in refusal.message or "5 s" in refusal.message
    assert refusal.remedy
    assert (await answer(analysis.preview(make_spec(), 1, None))).trials == 9


@pytest.mark.full
async def test_a_front_that_takes_too_long_is_refused(analysis: AnalysisPools) -> None:
    vectors = [(float(place), float(-place), 0.0) for place in range(200_000)]
    refusal = await answer(analysis.front(vectors, [1.0, 1.0, 1.0]))
    assert isinstance(refusal, TooLargeError), refusal
    assert await answer(analysis.front(vectors[: SMALL_FRONT + 1], [1.0, 1.0, 1.0])) == list(
        range(SMALL_FRONT + 1)
    )


@pytest.mark.full
async def test_previews_hold_no_front_up(analysis: AnalysisPools) -> None:
    """A study is shown with its front while others preview."""
    previews = [
        asyncio.ensure_future(
            analysis.preview(make_spec(**LARGE_TRIALS, resources={"gpus": 1024}), 2400, None, caller=caller)
        )
        for caller in ("a", "b")
    ]
    places = await answer(analysis.front([(0.0, 0.0)] * (SMALL_FRONT + 1), [1.0, 1.0]))
    assert len(places) == SMALL_FRONT + 1
    assert not previews[-1].done()
    for preview_ in previews:
        preview_.cancel()
    await asyncio.gather(*previews, return_exceptions=True)


async def test_work_stops_when_its_caller_has_gone(analysis: AnalysisPools) -> None:
    before = set(multiprocessing.active_children())
    assert (await answer(analysis.preview(make_spec(), 1, None))).trials == 9
    (process,) = {psutil.Process(child.pid) for child in set(multiprocessing.active_children()) - before}
    spent_s = process.cpu_times().user
    work = asyncio.ensure_future(
        analysis.preview(make_spec(**LARGE_TRIALS, resources={"gpus": 1024}), 2400, None)
    )
    async with asyncio.timeout(60):
        while process.cpu_times().user < spent_s + 0.1:
            await asyncio.sleep(0.01)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        assert not process.is_running()
    assert (await answer(analysis.preview(make_spec(), 1, None))).trials == 9


async def test_too_many_callers_are_refused(analysis: AnalysisPools) -> None:
    answers: Sequence[Any] = await asyncio.gather(
        *(analysis.preview(make_spec(), 1, None) for _ in range(6)), return_exceptions=True
    )
    refused = [one for one in answers if isinstance(one, TooLargeError)]
    assert len(refused) == 6 - LIMITS.waiting
    assert "Try again" in refused[0].remedy
    assert len([one for one in answers if not isinstance(one, Exception)]) == LIMITS.waiting


@pytest.mark.full
async def test_importance_is_measured_beside_the_event_loop(analysis: AnalysisPools) -> None:
    space = {name: {"type": "float", "low": 0.0, "high": 1.0} for name in ("x", "y")}
    spec = make_spec(space=space, max_trials=2000)
    drawn = [((7 * n % 2000) / 2000, (n % 13) / 13) for n in range(2000)]
    results = [Result(params={"x": x, "y": y}, values=(x,)) for x, y in drawn]
    (found,) = await answer(analysis.importances(spec, 3, results))
    assert found.shares[0].parameter == "x"
    assert (found.level, found.trials) == (3, 2000)
