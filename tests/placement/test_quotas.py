"""Quotas of projects: a hard limit, handed out in order, and no slot idles because of one; in memory."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from many_studies import ManyStudies, gpus
from placement_site import spec

from headrace_services.scheduler.core.inputs import PlaceNow
from headrace_services.scheduler.core.lifecycle import StudyState
from headrace_services.scheduler.core.placement.quotas import Quota, left
from headrace_services.scheduler.core.placement.shares import BEHIND_ALL, Share, Totals, claim
from headrace_services.scheduler.core.study_status import Usage

TOTALS = Totals(gpu_milli=16_000, cpu_slots=0)


def _study(**changes):
    return spec("walk:train", **{"max_trials": 20_000, "max_steps": 4, **changes})


def _used(one, now_s):
    return one.study.standing.usage.settled(now_s).gpu_s


waiting = st.lists(
    st.builds(
        Share,
        study_id=st.integers(1, 4),
        name=st.just("s"),
        weight=st.sampled_from([1.0, 3.0]),
        priority=st.sampled_from([0, 0, 1]),
        usage=st.builds(
            Usage, gpu_milli=st.sampled_from([0, 1000, 2000]), gpu_s=st.sampled_from([0.0, 50.0, 500.0])
        ),
        wanted=st.integers(0, 3),
        held_off=st.sampled_from([0, 250, 1000, 2000, 4000]),
    ),
    max_size=4,
    unique_by=lambda share: share.study_id,
)


@settings(max_examples=300, derandomize=True)
@given(
    slots=st.integers(0, 8),
    others_milli=st.integers(0, 40).map(lambda n: 250 * n),
    own=st.sampled_from([0, 250, 1000, 3000]),
    ahead=waiting,
    place=st.sampled_from([0, 1, 2, 3, 4]),
)
def test_what_is_left_is_what_handing_out_one_grant_after_the_other_leaves(
    slots: int, others_milli: int, own: int, ahead: list[Share], place: int
) -> None:
    """Compared with every order in which grants could be handed out; the claims allow one of them."""
    claims = sorted(claim(share, TOTALS, 0.0) for share in ahead)
    before = claims[place] if place < len(claims) else BEHIND_ALL
    quota, usage = Quota(slots=slots, others_milli=others_milli), Usage(gpu_milli=own)
    found = left(quota, usage, ahead, before, TOTALS, 0.0)
    room = max(0, 1000 * slots - others_milli - own)
    assert 0 <= found.milli <= room
    assert (
        left(
            Quota(slots=slots, others_milli=others_milli, is_taken=True), usage, ahead, before, TOTALS, 0.0
        ).milli
        == 0
    )

    def orders(room: int, held: Counter[int]) -> list[tuple[int, tuple[int, ...]]]:
        """All outcomes of handing out: what is left, and to whom. At each point every possible next one is tried."""
        can = [share for share in ahead if share.held_off and held[share.study_id] < share.wanted]
        claimed = {s.study_id: claim(_richer(s, held[s.study_id]), TOTALS, 0.0) for s in can}
        nexts = [
            s for s in can if claimed[s.study_id] < before and claimed[s.study_id] == min(claimed.values())
        ]
        if not nexts:
            return [(room, tuple(sorted(+held)))]
        ends = []
        for share in nexts:
            if share.held_off > room:
                ends.append((0, tuple(sorted(+held))))
            else:
                ends += orders(room - share.held_off, held + Counter([share.study_id]))
        return ends

    assert (found.milli, tuple(sorted(found.to_others))) in orders(room, Counter())


def _richer(share: Share, grants: int) -> Share:
    for _ in range(grants):
        share = share.with_more(share.held_off, 0.0)
    return share


def test_a_project_never_holds_more_than_its_quota_and_others_take_the_rest() -> None:
    here = ManyStudies(gpus(1, 8), quotas={"vision": 3})
    first, second = here.add(_study(), "vision"), here.add(_study(), "vision")
    other = here.add(_study(), "speech")
    here.run(400)
    assert here.held("vision") == 3000
    assert here.held("speech") == 5000
    assert _used(first, here.now_s) / _used(second, here.now_s) == pytest.approx(1.0, rel=0.05)
    assert sum(_used(one, here.now_s) for one in (first, second, other)) >= 0.99 * 8 * 400


@pytest.mark.full
def test_weights_hold_within_a_quota() -> None:
    here = ManyStudies(gpus(1, 16), quotas={"vision": 4})
    heavy, light = here.add(_study(weight=3), "vision"), here.add(_study(), "vision")
    here.run(800)
    assert _used(heavy, here.now_s) / _used(light, here.now_s) == pytest.approx(3.0, rel=0.05)
    assert here.held("vision") == 4000


def test_a_study_that_the_quota_kept_off_earns_no_credit_among_other_projects() -> None:
    here = ManyStudies(gpus(1, 8), quotas={"vision": 1})
    here.add(_study(), "vision")
    late, other = here.add(_study(), "vision"), here.add(_study(), "speech")
    here.run(100)
    here.cluster.quotas.clear()
    before = [_used(one, here.now_s) for one in (late, other)]
    here.cycle(late, PlaceNow())
    here.run(200)
    mine, others = (_used(one, here.now_s) - was for one, was in zip((late, other), before, strict=True))
    assert mine <= 1.1 * others, "it takes what it did not have before"


@pytest.mark.full
def test_a_gang_counts_whole_and_gets_its_turn_among_small_trials() -> None:
    here = ManyStudies(gpus(1, 8), quotas={"vision": 4})
    small = here.add(_study(), "vision")
    here.run(20)
    gang = here.add(_study(resources={"gpus": 4}, max_trials=3), "vision")
    here.run(200)
    assert gang.study.state is StudyState.COMPLETED
    assert _used(small, here.now_s) > 0
    assert here.held("vision") == 4000


def test_a_gang_larger_than_the_quota_never_runs_and_holds_nobody_up() -> None:
    here = ManyStudies(gpus(1, 8), quotas={"vision": 3})
    gang = here.add(_study(resources={"gpus": 4}), "vision")
    other = here.add(_study(), "speech")
    here.run(50)
    assert not gang.leases
    assert here.held("speech") == 8000
    assert other.study.standing.left_to == {}, "nothing is left to a study that cannot have it"


def test_a_quota_that_is_lowered_stops_nothing_and_grants_nothing_more() -> None:
    here = ManyStudies(gpus(1, 8), quotas={"vision": 8})
    one = here.add(_study(), "vision")
    here.run(10)
    running = set(one.leases)
    here.cluster.quotas["vision"] = 3
    here.cycle(one, PlaceNow())
    assert set(one.leases) == running
    here.run(30)
    assert here.held("vision") == 3000
    here.cluster.quotas["vision"] = 5
    here.cycle(one, PlaceNow())
    assert here.held("vision") == 5000


@pytest.mark.full
def test_shares_of_gpus_count_as_the_parts_that_they_are() -> None:
    here = ManyStudies(gpus(1, 4), quotas={"vision": 1})
    here.add(_study(resources={"gpu_milli": 250}), "vision")
    here.add(_study(resources={"gpu_milli": 500}), "vision")
    here.run(100)
    assert here.held("vision") == 1000


def test_spare_slots_are_within_the_quota() -> None:
    """A lone finalist on eight GPUs takes as many as the quota allows."""
    policy = {"kind": "asha", "variant": "stopping", "eta": 2, "rungs": [1, 4]}
    alone = {"max_trials": 1, "policy": policy, "elastic": {"spare": 8}}
    taken = {}
    for slots in (3, 8):
        here = ManyStudies(gpus(1, 8), quotas={"vision": slots})
        here.add(_study(**alone), "vision")
        here.run(1.5)
        taken[slots] = here.held("vision")
    assert taken == {3: 3000, 8: 8000}


@pytest.mark.cases(6)
@pytest.mark.parametrize("seed", range(16))
def test_random_mixes_keep_every_quota_leave_no_room_idle_and_all_studies_end(seed: int) -> None:
    """At every moment, by brute force: no device is free for which a study waits whose project has quota left."""
    draw = random.Random(seed)
    projects = {"a": draw.randint(1, 4), "b": draw.randint(1, 8), "c": None}
    here = ManyStudies(
        gpus(1, 6),
        gpus(2, 4, "A100", 40 << 30),
        seed=seed,
        step_s=lambda _, number, model: (0.5 if model == "H200" else 1.0) * (1 + number % 3),
        quotas={name: slots for name, slots in projects.items() if slots is not None},
    )
    asha = {
        "kind": "asha",
        "eta": 2,
        "rungs": [1, 2, 4, 8],
        "variant": draw.choice(["promotion", "stopping"]),
    }
    for _ in range(7):
        here.run(here.now_s + draw.random() * 10)
        study = _study(
            policy=asha,
            max_trials=draw.randint(2, 30),
            max_steps=8,
            weight=draw.choice([1, 1, 3]),
            priority=draw.choice([0, 0, 1]),
        )
        here.add(study, draw.choice(sorted(projects)))
    for _ in range(200):
        here.run(here.now_s + 1.0)
        _no_room_is_idle(here)
        if draw.random() < 0.05:
            name = draw.choice(["a", "b"])
            here.cluster.quotas[name] = draw.randint(1, 6)
            for one in here.studies.values():
                if one.study.project == name and not one.study.state.ended:
                    here.cycle(one, PlaceNow())
    here.run(here.now_s + 3000)
    assert {one.study.state for one in here.studies.values()} == {StudyState.COMPLETED}


def _no_room_is_idle(here: ManyStudies) -> None:
    free = here.cluster.free_milli()
    for one in here.studies.values():
        if one.study.state is not StudyState.ACTIVE or not one.pending:
            continue
        quota = here.cluster.quotas.get(one.study.project)
        room = free if quota is None else min(free, 1000 * quota - here.held(one.study.project))
        assert room < 1000, (
            f"{one.study.name} of {one.study.project} waits, and {room / 1000:g} slots are idle"
        )
