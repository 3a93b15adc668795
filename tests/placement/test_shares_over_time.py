"""Studies share by weight over time, priorities go first, and nothing starves: the production cycle, in memory."""

import random

import pytest
from many_studies import ManyStudies, gpus
from placement_site import spec

from headrace_services.scheduler.core.lifecycle import StudyState


def _study(**changes):
    return spec("walk:train", **{"max_trials": 20_000, "max_steps": 4, **changes})


def _used(one, now_s):
    return one.study.standing.usage.settled(now_s).gpu_s


@pytest.mark.cases(1)
@pytest.mark.parametrize("durations", ["equal", "unequal"])
def test_weights_of_three_to_one_share_three_to_one(durations: str) -> None:
    lengths = {1: 1.0, 2: 1.0} if durations == "equal" else {1: 0.7, 2: 4.0}
    here = ManyStudies(gpus(1, 5), step_s=lambda study, *_: lengths[study])
    heavy, light = here.add(_study(weight=3)), here.add(_study(weight=1))
    here.run(800)
    ratio = _used(heavy, here.now_s) / _used(light, here.now_s)
    assert ratio == pytest.approx(3.0, rel=0.05)
    assert _used(heavy, here.now_s) + _used(light, here.now_s) >= 0.99 * 5 * 800


@pytest.mark.full
def test_a_study_that_comes_later_gets_its_share_from_then_on_and_no_credit_for_before() -> None:
    here = ManyStudies(gpus(1, 4))
    first = here.add(_study())
    here.run(300)
    before = _used(first, here.now_s)
    second = here.add(_study())
    here.run(600)
    since = _used(first, here.now_s) - before
    assert _used(second, here.now_s) / since == pytest.approx(1.0, rel=0.05)


def test_shares_hold_between_studies_of_different_sizes() -> None:
    here = ManyStudies(gpus(1, 8), gpus(2, 8), seed=1)
    small = here.add(_study(resources={"gpus": 1}))
    large = here.add(_study(resources={"gpus": 8}))
    here.run(500)
    ratio = _used(small, here.now_s) / _used(large, here.now_s)
    assert ratio == pytest.approx(1.0, rel=0.05)
    assert _used(small, here.now_s) + _used(large, here.now_s) >= 0.8 * 16 * 500


@pytest.mark.full
def test_quarters_and_whole_gpus_share_too() -> None:
    here = ManyStudies(gpus(1, 4), seed=2)
    quarters = here.add(_study(resources={"gpu_milli": 250}))
    whole = here.add(_study(resources={"gpus": 1}))
    here.run(500)
    assert _used(quarters, here.now_s) / _used(whole, here.now_s) == pytest.approx(1.0, rel=0.05)


def test_a_higher_priority_takes_everything_it_can_use_by_checkpoint() -> None:
    here = ManyStudies(gpus(1, 4))
    low = here.add(_study(max_steps=100))
    here.run(50)
    high = here.add(_study(max_trials=4, max_steps=10, priority=3))
    here.run(50.5)
    assert here.preempted == 0
    assert len(here.cluster.leaving) == 1
    here.run(400)
    assert high.study.state is StudyState.COMPLETED
    assert here.preempted >= 1
    assert all(trial.interruptions == 0 for trial in low.trials.values())


@pytest.mark.cases(8)
@pytest.mark.parametrize("seed", range(24))
def test_random_mixes_never_give_a_device_out_twice_and_all_studies_end(seed: int) -> None:
    """Studies that hang with paused and pending trials and idle workers: ray 30265, ray 6780."""
    draw = random.Random(seed)
    machines = (gpus(1, 8), gpus(2, 8, "A100", 40 << 30), gpus(3, 4, "L4", 24 << 30))
    speeds = {"H200": 0.5, "A100": 1.0, "L4": 2.0}
    here = ManyStudies(*machines, step_s=lambda _, number, model: speeds[model] * (1 + number % 3), seed=seed)
    sizes = [{"gpus": 1}, {"gpus": 2}, {"gpus": 4}, {"gpus": 8}, {"gpu_milli": 250}, {"gpu_milli": 500}]
    asha = {
        "kind": "asha",
        "eta": 2,
        "rungs": [1, 2, 4, 8],
        "variant": draw.choice(["promotion", "stopping"]),
    }
    for resources in draw.sample(sizes, 5):
        here.run(here.now_s + draw.random() * 20)
        here.add(
            spec(
                "walk:train",
                policy=draw.choice([asha, {"kind": "run_all"}]),
                resources=resources,
                weight=draw.choice([1, 2, 5]),
                priority=draw.choice([0, 0, 0, 1]),
                max_trials=draw.randint(8, 30),
            )
        )
    here.run(100_000)
    states = [one.study.state for one in here.studies.values()]
    assert states == [StudyState.COMPLETED] * 5
    assert not any(one.leases for one in here.studies.values())
