"""A simulated study ends as its file says, by the same core that ends a real one."""

import pytest
from simulated_studies import flat, make_spec, simulate

from headrace_services.scheduler.core.lifecycle import StudyState
from headrace_services.scheduler.preview import preview
from headrace_services.scheduler.simulator.cluster import machines
from headrace_services.scheduler.simulator.costs import Failures
from headrace_services.scheduler.simulator.engine import Simulation
from headrace_services.scheduler.simulator.study import StudySimulation

RUN_ALL = {"kind": "run_all"}


def with_grace(grace_s: float) -> dict[str, object]:
    return {"callable": "train:train", "working_dir": "/tmp", "grace": grace_s}


@pytest.mark.parametrize(("grace_s", "end_s"), [(0, 216), (3, 219), (30, 220)])
def test_time_ends_it_to_the_second_and_stops_what_runs(grace_s: float, end_s: float):
    """A trial takes 90 s, so the third one runs when 216 s have passed, and next reports at 220 s."""
    spec = make_spec(policy=RUN_ALL, max_trials=5, until={"hours": 0.06}, template=with_grace(grace_s))
    simulation, study = simulate(spec, flat([5, 4, 3, 2, 1]), workers=1)
    assert simulation.now_s == end_s
    assert study.rows.study.state is StudyState.COMPLETED
    assert study.rows.study.detail == "its trials have run for 0.06 hours (until: 0.06 hours)"
    assert [stay.end_s for stay in study.record.stays] == [90, 180, end_s]
    assert study.rows.trials[2].step == (4 if end_s == 220 else 0)


def test_hours_behind_a_busy_study_do_not_count():
    """The first study uses the only slot for 450 s, and the second has 216 s from then on."""
    first = StudySimulation.of(make_spec(policy=RUN_ALL, max_trials=5, priority=1), flat([1] * 5), number=1)
    timed = make_spec(policy=RUN_ALL, max_trials=5, until={"hours": 0.06}, template=with_grace(0))
    second = StudySimulation.of(timed, flat([5, 4, 3, 2, 1]), number=2)
    simulation = Simulation(machines(1), [first, second])
    simulation.run()
    assert (first.record.end_s, second.record.end_s) == (450, 666)
    assert second.rows.study.state is StudyState.COMPLETED
    assert [(stay.start_s, stay.end_s) for stay in second.record.stays] == [
        (450, 540),
        (540, 630),
        (630, 666),
    ]


def test_hours_in_which_no_machine_is_there_do_not_count():
    spec = make_spec(policy=RUN_ALL, max_trials=5, until={"hours": 0.06}, template=with_grace(0))
    failures = Failures(mean_time_s=100, repair_s=1000, seed=3)
    simulation, study = simulate(spec, flat([5, 4, 3, 2, 1]), workers=1, failures=failures)
    held_s = sum(stay.end_s - stay.start_s for stay in study.record.stays)
    assert simulation.now_s > 1000
    assert held_s == pytest.approx(216)
    assert study.rows.study.detail == "its trials have run for 0.06 hours (until: 0.06 hours)"


def test_a_target_and_trials_without_improvement_end_it():
    spec = make_spec(policy=RUN_ALL, max_trials=5)
    for until, trials in (({"value": 2.5}, 3), ({"no_improvement": 1}, 5), ({"no_improvement": 9}, 5)):
        wanted = spec.model_copy(update={"until": make_spec(until=until).until})
        _, study = simulate(wanted, flat([4, 3, 2, 1, 5]), workers=1)
        assert len([trial for trial in study.rows.trials.values() if trial.step]) == trials, until
        assert study.rows.study.state is StudyState.COMPLETED


def test_a_preview_counts_all_that_a_study_would_do():
    spec = make_spec(policy=RUN_ALL, max_trials=5)
    ended = spec.model_copy(update={"until": make_spec(until={"hours": 1e-6}).until})
    assert preview(ended, 2, 10.0) == preview(spec, 2, 10.0)
