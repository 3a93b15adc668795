"""The figure of the chapter from which Headrace started, made from its example."""

from pathlib import Path

import pytest

from headrace.spec import load_study_file
from headrace_services.scheduler.simulator.cluster import machines
from headrace_services.scheduler.simulator.scenario import Scenario, simulate_seed
from headrace_services.scheduler.simulator.variants import compared

EXAMPLE = Path(__file__).parents[2] / "examples" / "seed_figure" / "study.yaml"


def figure(policies: str, seed: int = 7):
    spec = load_study_file(EXAMPLE).spec
    scenario = Scenario(variants=compared(spec, policies), machines=machines(4), reports_at=spec.rungs())
    return {label: outcome.summary for label, outcome in simulate_seed(scenario, seed).items()}


def test_the_seeds_figure_to_the_digit():
    found = figure("study")
    run_all, stopping = found["run_all"], found["rung_median"]
    assert (run_all.steps, run_all.wall_s, run_all.completed, run_all.stopped) == (1200, 300, 40, 0)
    assert (stopping.steps, stopping.wall_s, stopping.completed, stopping.stopped) == (730, 195, 11, 29)
    assert run_all.winner == stopping.winner == 39
    assert f"{run_all.winner_value:.3f}" == f"{stopping.winner_value:.3f}" == "0.146"


def test_other_seeds_give_other_figures():
    assert figure("study", seed=8)["rung_median"].steps != 730


def test_every_policy_sees_the_same_trials_and_the_noise_of_the_second_run():
    alone = figure("study")["rung_median"]
    beside = figure("asha,asha-stopping,study")
    assert beside["study"] == alone
    assert {one.best for one in beside.values()} == {39}


@pytest.mark.parametrize("eta", [2, 3, 4, 8])
def test_asha_ends_with_a_trial_at_the_full_budget(eta):
    asha = figure(f"asha:eta={eta}")[f"asha:eta={eta}"]
    assert asha.completed >= 1
    assert asha.steps < 500
    assert asha.idle_pending == 0
