"""Bundles on virtual time: seats, the time of a step, shares beside ordinary studies, and processes that die."""

import random
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from bundle_records import most_at_once
from simulated_studies import flat, make_spec, simulate

from headrace.spec import StudySpec
from headrace.spec.fuse import Fuse
from headrace_services.scheduler.core.capacity import capacity
from headrace_services.scheduler.core.inputs import ExitedArrived
from headrace_services.scheduler.core.lifecycle import StudyState
from headrace_services.scheduler.preview import preview
from headrace_services.scheduler.simulator.cluster import machines
from headrace_services.scheduler.simulator.costs import Costs, Failures
from headrace_services.scheduler.simulator.curves import SeedModel
from headrace_services.scheduler.simulator.engine import Simulation
from headrace_services.scheduler.simulator.study import StudySimulation

RUN_ALL = {"kind": "run_all"}
PROGRAM = {"callable": "train:train", "working_dir": "/tmp"}


def fused(most: int = 4, apart: tuple[str, ...] = (), *, auto: bool = False, **changes: Any) -> StudySpec:
    return make_spec(template=PROGRAM, fuse={"most": most, "apart": apart, "auto": auto}, **changes)


def test_a_bundle_takes_the_time_of_one_trial_and_its_slot_is_counted_once() -> None:
    spec = fused(policy=RUN_ALL, max_trials=8)
    _, study = simulate(spec, flat([0.5] * 8))
    assert study.record.end_s == 2 * 90
    assert [(held.start_s, held.end_s) for held in study.record.holdings()] == [(0, 180)], "one process"
    assert set(most_at_once(study.record).values()) == {4}
    assert study.rows.study.standing.usage.settled(180).gpu_s == 180


def test_every_further_member_makes_the_step_longer_by_the_given_share() -> None:
    spec = fused(policy=RUN_ALL, max_trials=8)
    _, study = simulate(spec, flat([0.5] * 8), costs=Costs(crowding={2: 1.5}))
    assert study.record.end_s == pytest.approx(2 * 90 * 2.5)
    lone = fused(policy=RUN_ALL, max_trials=1)
    _, study = simulate(lone, flat([0.5]), costs=Costs(crowding={2: 1.5}))
    assert study.record.end_s == pytest.approx(90)


def test_members_that_leave_make_the_others_faster_at_once() -> None:
    """Two of four members end at half time: from then on the steps of the others take 1.5 instead of 2.5."""
    spec = fused(
        policy={"kind": "asha", "eta": 2, "rungs": [4, 8], "variant": "stopping"}, max_trials=4, max_steps=8
    )
    _, study = simulate(spec, flat([0.1, 0.2, 0.3, 0.4], steps=8), costs=Costs(crowding={2: 1.5}))
    ends = sorted({stay.end_s for stay in study.record.stays})
    assert ends[0] == pytest.approx(4 * 10 * 2.5)
    stopped = sum(stay.end_s == ends[0] for stay in study.record.stays)
    assert 1 <= stopped <= 3
    assert ends[-1] == pytest.approx(ends[0] + 4 * 10 * (1 + 0.5 * (3 - stopped)))


def test_trials_spread_over_the_slots_before_they_share_one() -> None:
    spec = fused(policy=RUN_ALL, max_trials=6)
    _, study = simulate(spec, flat([0.5] * 6), workers=3)
    assert study.record.end_s == 90
    assert sorted(most_at_once(study.record).values()) == [2, 2, 2]


def test_the_decisions_are_those_of_the_same_study_on_as_many_slots() -> None:
    """A policy's decisions depend on when results arrive, not on who shares a process."""
    values = [0.9, 0.1, 0.5, 0.3, 0.7, 0.2, 0.8, 0.4, 0.6]
    _, bundled = simulate(fused(most=3), flat(values), workers=1)
    _, apart = simulate(make_spec(template=PROGRAM), flat(values), workers=3)
    ends = [
        {number: (trial.reason, trial.step) for number, trial in study.rows.trials.items()}
        for study in (bundled, apart)
    ]
    assert ends[0] == ends[1]
    assert bundled.record.end_s == apart.record.end_s


class Site:
    """Studies on one cluster, run up to some moment."""

    def __init__(self, workers: int, *specs: StudySpec, costs: Costs | None = None, **more: Any) -> None:
        self.studies = [
            StudySimulation.of(
                spec,
                SeedModel.of(spec, seed=place, trials=spec.max_trials),
                costs=costs or Costs(write_s=0.1),
                name=f"study-{place}",
                number=place,
                log=True,
            )
            for place, spec in enumerate(specs, start=1)
        ]
        self.simulation = Simulation(machines(workers), self.studies, **more)

    def run(self, until_s: float) -> None:
        """Stop the studies at that time, whatever they are doing."""

        def stop() -> None:
            self.used = [one.rows.study.standing.usage.settled(until_s).gpu_s for one in self.studies]
            raise StoppedError

        self.simulation._at(until_s, (0, 0), stop)
        with pytest.raises(StoppedError):
            self.simulation.run()


class StoppedError(Exception):
    """The moment has been reached."""


ASHA = {"kind": "asha", "eta": 3, "rungs": [1, 3, 9]}


@pytest.mark.cases(1)
@pytest.mark.parametrize("auto", [False, True])
@pytest.mark.parametrize("policy", [ASHA, RUN_ALL])
@pytest.mark.parametrize("workers", [1, 4])
def test_a_study_of_bundles_gets_its_share_of_the_slots_and_uses_it(
    policy: dict[str, Any], workers: int, *, auto: bool
) -> None:
    many: dict[str, Any] = {"max_trials": 9_000, "policy": policy}
    site = Site(workers, fused(most=8, auto=auto, **many), make_spec(**many))
    site.run(300.0)
    total = workers * 300.0
    for used in site.used:
        assert used == pytest.approx(total / 2, rel=0.2)
    bundled, apart = (sum(s.to_step - s.from_step for s in one.record.segments) for one in site.studies)
    assert bundled > 3 * apart, "its seats are filled most of the time"


@pytest.mark.full
@pytest.mark.parametrize("first", [0, 1])
def test_weights_hold_between_bundles_and_ordinary_trials(first: int) -> None:
    many: dict[str, Any] = {"max_trials": 9_000, "policy": ASHA}
    specs = [fused(most=8, weight=3.0, **many), make_spec(**many)]
    site = Site(4, *(specs if not first else specs[::-1]))
    site.run(300.0)
    heavy, light = site.used if not first else site.used[::-1]
    assert heavy / light == pytest.approx(3.0, rel=0.15)


def test_a_small_study_of_bundles_does_not_wait_for_a_large_ordinary_one() -> None:
    ordinary = make_spec(max_trials=9_000, policy=RUN_ALL)
    site = Site(4, ordinary, fused(most=8, max_trials=64, policy=RUN_ALL))
    site.run(200.0)
    assert site.studies[1].rows.study.state is StudyState.COMPLETED


def _dying(site: Site, chance: random.Random, killers: set[int], fits: int) -> None:
    """Now and then the process that a killer is in dies, with all its members; so does one with more members than
    fit."""

    def happen() -> None:
        for study in site.studies:
            if study.over or study.spec.fuse is None:
                continue
            grants = {run.grant_id: study.members(run.grant_id) for run in study.runs.values()}
            for members in grants.values():
                short = len(members) if len(members) > fits else 0
                if not short and not killers & {run.lease.number for run in members}:
                    continue
                for member in members:
                    lost = ExitedArrived(
                        lease_id=member.lease.id,
                        number=member.lease.number,
                        attempt=member.lease.attempt,
                        sequence=member.next_sequence(),
                        outcome="LOST",
                        error="out of memory" if short else "died of SIGKILL",
                        out_of_memory=short,
                    )
                    site.simulation._end(member, "interrupted")
                    site.simulation._step(study, lost)
        if not all(study.over for study in site.studies):
            site.simulation._at(site.simulation.now_s + chance.uniform(0.05, 0.3), (0, 0), happen)

    site.simulation._at(chance.uniform(0.0, 5.0), (0, 0), happen)


def _specs(chance: random.Random) -> Iterator[StudySpec]:
    space = {
        "x": {"type": "float", "low": 0.0, "high": 1.0},
        "width": {"type": "categorical", "values": [8, 16, 32]},
    }
    for _ in range(chance.randint(1, 3)):
        fields: dict[str, Any] = {
            "space": space,
            "policy": chance.choice(
                (ASHA, RUN_ALL, {"kind": "hyperband", "eta": 3}, {**ASHA, "variant": "stopping"})
            ),
            "max_trials": chance.randint(5, 60),
            "max_parallel": chance.choice((0, 0, 2)),
            "weight": chance.choice((1.0, 3.0)),
            "priority": chance.choice((0, 0, 1)),
            "resources": chance.choice(({}, {}, {"gpu_milli": 500, "gpu_memory_bytes": 8 << 30})),
        }
        apart = chance.choice(((), ("width",)))
        most = chance.choice((2, 3, 8, 32))
        auto = chance.random() < 0.4
        chosen = fused(most=most, apart=apart, auto=auto, **fields)
        yield chosen if chance.random() < 0.7 else make_spec(**fields)


@pytest.mark.cases(8)
@pytest.mark.parametrize("seed", range(24))
def test_random_studies_of_bundles_come_to_their_ends(seed: int) -> None:
    """No grant has more trials than seats or two keys, a slot is charged once and returned, and nothing starves."""
    chance = random.Random(f"bundles {seed}")
    failures = Failures(mean_time_s=chance.choice((None, 60.0)), detect_s=2.0, repair_s=5.0, seed=seed)
    costs = chance.choice((Costs(), Costs(write_s=0.1, read_s=0.1, start_s=0.5, crowding={2: 1.05})))
    site = Site(chance.randint(1, 4), *_specs(chance), costs=costs, failures=failures)
    killers = {chance.randrange(5)} if chance.random() < 0.5 else set()
    if killers:
        _dying(site, chance, killers, fits=chance.choice((4, 64)))
    site.simulation.run()
    assert site.simulation.cluster.free_milli() == 1000 * len(site.simulation.cluster.up)
    for study in site.studies:
        assert study.rows.study.state in (StudyState.COMPLETED, StudyState.FAILED)
        usage = study.rows.study.standing.usage
        assert (usage.gpu_milli, study.rows.live_grants, len(study.rows.leases)) == (0, 0, 0)
        held_s = sum(held.slot_s for held in study.record.holdings())
        if failures.mean_time_s is None:
            assert usage.gpu_s == pytest.approx(held_s)
        most = study.spec.fuse.most if study.spec.fuse else 1
        assert max(most_at_once(study.record).values()) <= most
        assert _keys_of_grants(study) <= 1
        failed = {n for n, trial in study.rows.trials.items() if trial.reason == "FAILED"}
        assert failed <= killers, "nobody is charged for another's fault"


def _keys_of_grants(study: StudySimulation) -> int:
    """The largest number of keys among the trials of one grant."""
    if study.spec.fuse is None:
        return 1
    keys = defaultdict(set)
    for stay in study.record.stays:
        keys[stay.grant].add(study.spec.fuse.key(study.rows.trials[stay.trial].params))
    return max(map(len, keys.values()), default=0)


def test_a_preview_knows_of_seats_and_groups() -> None:
    widths = {
        "x": {"type": "float", "low": 0.0, "high": 1.0},
        "width": {"type": "categorical", "values": [8, 16]},
    }
    spec = fused(most=4, policy=RUN_ALL, max_trials=16, space=widths)
    found = preview(spec, 1, seconds_per_step=1.0)
    assert (found.wall_time_s, found.slot_time_s) == (16 / 4 * 9, 16 / 4 * 9)
    assert found.steps == 16 * 9
    assert found.bundle_groups == 1
    assert preview(fused(most=4, apart=("width",), max_trials=16, space=widths), 1).bundle_groups == 2
    assert preview(make_spec(max_trials=16), 1).bundle_groups == 0
    lone = preview(make_spec(max_trials=16, policy=RUN_ALL), 1, seconds_per_step=1.0)
    auto = preview(fused(most=1024, auto=True, policy=RUN_ALL, max_trials=16), 1, seconds_per_step=1.0)
    assert lone.wall_time_s is not None
    assert auto.wall_time_s is not None
    assert auto.wall_time_s < 0.4 * lone.wall_time_s, "it grows in a preview too"


@pytest.mark.parametrize(
    ("crowding", "members", "times"),
    [
        ({}, 9, 1.0),
        ({2: 1.5}, 3, 2.0),
        ({8: 1.0, 16: 2.0}, 8, 1.0),
        ({8: 1.0, 16: 2.0}, 12, 1.5),
        ({8: 1.0, 16: 2.0}, 24, 3.0),
    ],
)
def test_a_step_takes_longer_along_a_curve(crowding: dict[int, float], members: int, times: float) -> None:
    assert Costs(crowding=crowding).slowdown(members) == times


@pytest.mark.parametrize("crowding", [{4: 0.5}, {1: 2.0}])
def test_a_curve_that_makes_a_bundle_quicker_than_one_trial_is_refused(crowding: dict[int, float]) -> None:
    with pytest.raises(ValueError, match="crowding"):
        Costs(crowding=crowding)


def test_auto_finds_the_knee_of_the_curve_and_is_as_quick_as_the_best_number() -> None:
    costs = Costs(crowding={8: 1.0, 64: 8.0})
    curves = flat([0.5] * 400, steps=4)
    ends: dict[object, float] = {}
    for fuse in ("auto", 2, 8):
        chosen = fuse if fuse == "auto" else {"most": fuse}
        spec = make_spec(template=PROGRAM, fuse=chosen, policy=RUN_ALL, max_trials=400, max_steps=4)
        _, study = simulate(spec, curves, costs=costs)
        ends[fuse] = study.record.end_s
        if fuse == "auto":
            (profile,) = study.rows.profiles.values()
            found = capacity(Fuse.model_validate("auto"), profile, 0)
            assert found.trials == 8, found.why
            assert max(most_at_once(study.record).values()) <= 16, "no number is tried that is twice the knee"
    assert ends["auto"] <= 1.2 * ends[8]
    assert ends["auto"] <= 0.35 * ends[2]
