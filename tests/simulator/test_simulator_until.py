"""A simulated study ends by what its file says, with the core that ends a real one."""

from simulated_studies import flat, make_spec, simulate

from headrace_services.scheduler.core.lifecycle import StudyState
from headrace_services.scheduler.preview import preview

RUN_ALL = {"kind": "run_all"}


def test_time_ends_it_to_the_second_and_stops_what_runs():
    """A trial takes 90 s, so the third one runs when 216 s have passed."""
    spec = make_spec(policy=RUN_ALL, max_trials=5, until={"hours": 0.06})
    simulation, study = simulate(spec, flat([5, 4, 3, 2, 1]), workers=1)
    assert simulation.now_s == 216
    assert study.rows.study.state is StudyState.COMPLETED
    assert study.rows.study.detail == "0.06 hours have passed (until: 0.06 hours)"
    assert [stay.end_s for stay in study.record.stays] == [90, 180, 216]


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
