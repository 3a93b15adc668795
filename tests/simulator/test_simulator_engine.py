"""Time on the virtual cluster, computed by hand."""

import math
import random
from dataclasses import replace

import pytest
from simulated_studies import flat, make_spec, simulate
from tiers import processor_time

from headrace_services.scheduler.core.lifecycle import Reason, StudyState
from headrace_services.scheduler.simulator.cluster import machines, parse_types
from headrace_services.scheduler.simulator.costs import Costs, Failures
from headrace_services.scheduler.simulator.curves import SeedModel
from headrace_services.scheduler.simulator.engine import Simulation, SimulationError
from headrace_services.scheduler.simulator.recorded import RecordedCurve, RecordedCurves
from headrace_services.scheduler.simulator.study import StudySimulation
from headrace_services.scheduler.simulator.summary import summarise

RUN_ALL = {"kind": "run_all"}


def test_run_all_takes_what_its_steps_take():
    simulation, study = simulate(make_spec(policy=RUN_ALL, max_trials=5), flat([5, 4, 3, 2, 1]), workers=2)
    summary = summarise(simulation, study)
    assert summary.wall_s == 3 * 90
    assert (summary.slot_s, summary.steps) == (5 * 90, 45)
    assert summary.idle == pytest.approx(1 / 6)
    assert (summary.winner, summary.regret, summary.completed) == (4, 0.0, 5)


def test_asha_promotes_the_best_thirds_and_they_resume():
    simulation, study = simulate(make_spec(), flat([9, 8, 7, 6, 5, 4, 3, 2, 1]))
    summary = summarise(simulation, study)
    entries = [(rung, trial) for _, _, rung, trial in study.record.occupancy]
    assert [rung for rung, _ in entries].count(0) == 9
    at_top = {trial for rung, trial in entries if rung == 2}
    assert at_top
    assert summary.completed == len(at_top)
    assert summary.resumes == summary.pauses - (9 - summary.completed), (
        "who was paused for good was not resumed"
    )
    assert study.rows.study.state is StudyState.COMPLETED


def test_checkpoints_cost_a_write_at_each_rung_and_a_read_at_each_resume():
    """C = 84 GB at B = 2 GB/s: 42 s each way."""
    costs = Costs.of_size(84e9, 2e9)
    assert (costs.write_s, costs.read_s) == (42.0, 42.0)
    free, _ = simulate(make_spec(), flat([1, 2, 3, 4, 5, 6, 7, 8, 9]))
    dear, study = simulate(make_spec(), flat([1, 2, 3, 4, 5, 6, 7, 8, 9]), costs=costs)
    reports, resumes = len(study.record.segments), study.record.resumes
    assert resumes > 0
    assert dear.now_s == free.now_s + 42.0 * (reports + resumes)


def test_fast_machines_divide_the_time():
    spec = make_spec(policy=RUN_ALL, max_trials=3)
    simulation, study = simulate(spec, flat([3, 2, 1]), machines=parse_types("fast:1@2,slow:1"))
    by_worker = {stay.worker: stay.end_s - stay.start_s for stay in study.record.stays}
    assert by_worker == {1: 45.0, 2: 90.0}
    assert simulation.now_s == 90.0, "the third trial follows the first one on the fast machine"


def test_a_gang_holds_all_its_slots():
    spec = make_spec(policy=RUN_ALL, max_trials=3, resources={"gpus": 2})
    simulation, study = simulate(spec, flat([3, 2, 1]), machines=machines(1, slots=4))
    assert simulation.now_s == 180.0
    assert all(len(stay.slots) == 2 for stay in study.record.stays)
    assert summarise(simulation, study).slot_s == 3 * 2 * 90


def test_gangs_train_slower_on_slots_that_are_not_joined_and_that_is_learnt():
    """Three slots, two of them with a fast interconnect: the first gang gets those, and only one gang fits at a
    time."""
    spec = make_spec(policy=RUN_ALL, max_trials=3, resources={"gpus": 2})
    single = make_spec(policy=RUN_ALL, max_trials=1, resources={"gpus": 1}, priority=1)
    studies = [
        StudySimulation.of(single, flat([1]), name="single", number=1),
        StudySimulation.of(spec, flat([3, 2, 1]), name="gangs", number=2, costs=Costs(apart=0.5)),
    ]
    Simulation(parse_types("h100:1x3~2"), studies).run()
    alone, gangs = studies
    assert [stay.slots for stay in alone.record.stays] == [(2,)], "it leaves the pair whole"
    assert {stay.slots for stay in gangs.record.stays} == {(0, 1)}
    Simulation(
        parse_types("h100:1x2~1"),
        [apart := StudySimulation.of(spec, flat([3, 2, 1]), costs=Costs(apart=0.5))],
    ).run()
    assert gangs.rows.study.standing.speeds == {"h100 (NVLink) x2": (27.0, 270.0)}
    assert apart.rows.study.standing.speeds == {"h100 (across NUMA nodes) x2": (27.0, 540.0)}


def test_shares_of_a_gpu_run_beside_each_other():
    spec = make_spec(policy=RUN_ALL, max_trials=4, resources={"gpu_milli": 250})
    simulation, study = simulate(spec, flat([4, 3, 2, 1]))
    assert simulation.now_s == 90.0
    assert summarise(simulation, study).slot_s == 90.0


def test_what_never_fits_is_reported_and_not_waited_for():
    with pytest.raises(SimulationError, match="do its resources fit"):
        simulate(make_spec(resources={"gpus": 8}), flat([1.0]), machines=machines(2, slots=4))


def test_no_more_trials_at_once_than_the_study_allows():
    spec = make_spec(policy=RUN_ALL, max_trials=4, max_parallel=2)
    simulation, study = simulate(spec, flat([4, 3, 2, 1]), workers=4)
    assert simulation.now_s == 180.0
    assert summarise(simulation, study).idle_pending == 0.0


def test_a_program_that_ends_by_itself_completes_with_its_last_value():
    short = RecordedCurve(name="s", steps=(1, 2), seconds=(10.0, 20.0), values=(0.5, 0.25), params={})
    curves = RecordedCurves((short, *flat([3.0]).order))
    simulation, study = simulate(make_spec(policy=RUN_ALL, max_trials=2), curves)
    trial = study.rows.trials[0]
    assert (trial.reason, trial.step, trial.value) == (Reason.COMPLETED, 2, 0.25)
    assert simulation.now_s == 110.0


def test_missing_and_infinite_values_are_never_promoted():
    values = [4.0, None, math.nan, math.inf, 3.0, 2.0, 1.0, 0.5, 0.4]
    _, study = simulate(make_spec(), flat(values))
    past = {trial for _, _, rung, trial in study.record.occupancy if rung > 0}
    assert past
    assert past.isdisjoint({1, 2, 3})


def test_maximising_is_the_mirror_image():
    values = [0.3, 0.9, 0.1, 0.7, 0.5, 0.2, 0.8, 0.4, 0.6]
    _, least = simulate(make_spec(), flat(values), workers=3)
    maximise = make_spec(objective={"metric": "loss", "goal": "maximize"})
    _, most = simulate(maximise, flat([-value for value in values]), workers=3)
    assert least.record.stays == most.record.stays


def test_failing_machines_cost_at_most_a_rung_each_and_lose_nothing():
    spec = make_spec(max_trials=27, max_steps=27, policy={"kind": "asha", "eta": 3, "rungs": [1, 3, 9, 27]})
    values = [float((7 * number) % 27) for number in range(27)]
    calm, quiet = simulate(spec, flat(values, steps=27), workers=3)
    failures = Failures(mean_time_s=150.0, detect_s=5.0, repair_s=30.0, seed=3)
    rough, study = simulate(spec, flat(values, steps=27), workers=3, failures=failures)
    interrupted = [stay for stay in study.record.stays if stay.ending == "interrupted"]
    assert len(interrupted) == study.record.interruptions > 3
    assert rough.now_s > calm.now_s
    assert study.record.down_s >= 30.0
    again, same = simulate(spec, flat(values, steps=27), workers=3, failures=failures)
    assert same.record.stays == study.record.stays, "equal seeds fail equally"
    assert {t.number for t in study.rows.trials.values() if t.reason is None} == set()
    # Steps count once: those after the last checkpoint were trained again, those before it were not.
    trained: dict[int, int] = {}
    for segment in study.record.segments:
        assert segment.from_step == trained.get(segment.trial, 0)
        trained[segment.trial] = segment.to_step
    assert again.now_s == rough.now_s
    assert quiet.record.interruptions == 0


def test_idle_while_work_waits_is_counted():
    """Two gangs of three on a machine with four slots: one slot is of no use to either."""
    spec = make_spec(policy=RUN_ALL, max_trials=2, resources={"gpus": 3})
    simulation, study = simulate(spec, flat([2, 1]), machines=machines(1, slots=4))
    assert summarise(simulation, study).idle_pending == pytest.approx(90 / (180 * 4))


def test_studies_share_the_cluster_by_weight():
    heavy = make_spec(policy=RUN_ALL, max_trials=300, weight=3)
    light = make_spec(policy=RUN_ALL, max_trials=300, weight=1)
    studies = [
        StudySimulation.of(spec, flat([1.0] * 300), name=name, number=number)
        for number, (spec, name) in enumerate(((heavy, "heavy"), (light, "light")), start=1)
    ]
    Simulation(machines(8), studies).run()
    until = studies[0].record.end_s
    held = [
        sum(min(s.end_s, until) - s.start_s for s in one.record.stays if s.start_s < until) for one in studies
    ]
    assert held[0] / held[1] == pytest.approx(3.0, rel=0.05)


@pytest.mark.full
def test_ten_thousand_trials_take_well_under_a_minute():
    spec = make_spec(max_trials=2_000, max_steps=81, policy={"kind": "asha"})
    with processor_time(at_most_s=6):  # a fifth of the trials in a tenth of the minute
        _, study = simulate(spec, SeedModel.of(spec, seed=1, trials=2_000), workers=64)
    assert len(study.rows.trials) == 2_000


def test_a_grant_grows_at_a_rung_and_the_trial_trains_faster():
    """One step on one slot takes 10 s; from step 3 on the trial has two slots and takes half of that."""
    elastic = {"grants": [{"from_step": 3, "slots": 2}]}
    spec = make_spec(max_trials=1, elastic=elastic, resources={"gpus": 1})
    simulation, study = simulate(spec, flat([1.0]), machines=machines(1, slots=2))
    assert [(stay.to_step, len(stay.slots)) for stay in study.record.stays] == [(3, 1), (9, 2)]
    assert simulation.now_s == 3 * 10.0 + 6 * 5.0
    assert study.rows.trials[0].reason is Reason.COMPLETED


def test_a_trial_grows_from_a_quarter_of_a_gpu_to_two_gpus():
    """One step takes 10 s on a quarter, 2.5 s on a whole GPU, and 1.25 s on two."""
    elastic = {"grants": [{"from_step": 1, "slots": 1}, {"from_step": 3, "slots": 2}]}
    spec = make_spec(max_trials=1, elastic=elastic, resources={"gpu_milli": 250})
    simulation, study = simulate(spec, flat([1.0]), machines=machines(1, slots=2))
    held = [(stay.to_step, len(stay.slots), stay.milli) for stay in study.record.stays]
    assert held == [(1, 1, 250), (3, 1, 1000), (9, 2, 1000)]
    assert simulation.now_s == 10.0 + 2 * 2.5 + 6 * 1.25


def test_trials_that_grow_from_shares_neither_starve_nor_overlap():
    elastic = {"grants": [{"from_step": 1, "slots": 1}, {"from_step": 3, "slots": 2}]}
    spec = make_spec(max_trials=18, elastic=elastic, resources={"gpu_milli": 250})
    _, study = simulate(
        spec,
        flat([float(value) for value in range(18, 0, -1)]),
        machines=machines(2, slots=2),
        failures=Failures(mean_time_s=60.0, detect_s=5.0, repair_s=10.0),
    )
    assert study.rows.study.state is StudyState.COMPLETED
    sizes = {(1, 250): (0, 1), (1, 1000): (1, 3), (2, 1000): (3, 9)}
    for stay in study.record.stays:
        low, high = sizes[len(stay.slots), stay.milli]
        assert low <= stay.from_step < high
        assert stay.to_step <= high
    assert {(len(stay.slots), stay.milli) for stay in study.record.stays} == set(sizes)


def test_a_study_of_higher_priority_gets_slots_by_checkpoint_and_nothing_is_lost():
    low = make_spec(policy=RUN_ALL, max_trials=4, priority=0)
    high = make_spec(policy=RUN_ALL, max_trials=2, priority=5)
    alone, by_itself = simulate(low, flat([4.0, 3.0, 2.0, 1.0]), workers=2)
    studies = [
        StudySimulation.of(low, flat([4.0, 3.0, 2.0, 1.0]), name="low", number=1),
        StudySimulation.of(high, flat([2.0, 1.0]), name="high", number=2),
    ]
    simulation = Simulation(machines(2), studies)
    simulation.run()
    first, second = studies
    assert second.record.end_s < first.record.end_s
    assert first.record.pauses > 0
    assert first.record.interruptions == 0
    trained: dict[int, int] = {}
    for segment in first.record.segments:
        assert segment.from_step == trained.get(segment.trial, 0), "it goes on where its checkpoint is"
        trained[segment.trial] = segment.to_step
    assert set(trained.values()) == {9}
    finals = {number: trial.value for number, trial in first.rows.trials.items()}
    assert finals == {number: trial.value for number, trial in by_itself.rows.trials.items()}
    assert simulation.now_s == alone.now_s + 90.0, "two trials on two slots more"


@pytest.mark.parametrize("kind", ["asha", "hyperband", "pasha", "successive_halving"])
def test_no_slot_idles_while_a_trial_may_continue(kind):
    """A result may let several trials continue at once. The one that reported it continues, and the others start
    as well."""
    spec = make_spec(max_trials=40, max_steps=27, policy={"kind": kind, "rungs": [1, 3, 9, 27]})
    for seed in range(4):
        simulation, study = simulate(spec, uneven(seed, trials=40, steps=27), workers=12)
        assert summarise(simulation, study).idle_pending == 0.0


def uneven(seed: int, *, trials: int, steps: int) -> RecordedCurves:
    """Flat curves of trials that differ in value and in speed."""
    drawn = random.Random(seed)
    speeds = [drawn.uniform(1.0, 20.0) for _ in range(trials)]
    flat_ones = flat([drawn.random() for _ in range(trials)], steps=steps, step_s=1.0).order
    return RecordedCurves(
        tuple(
            replace(curve, seconds=tuple(speed * second for second in curve.seconds))
            for curve, speed in zip(flat_ones, speeds, strict=True)
        )
    )
