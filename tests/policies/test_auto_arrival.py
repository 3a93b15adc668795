"""Which trials continue without a comparison under `auto`: the first arrivals, unless the sampler learns from
results."""

import pytest
from policy_drive import Driver, study

from headrace.cli import wording
from headrace.spec import AutoPolicy, parse_spec
from headrace.spec.sampler import SAMPLERS
from headrace_services.scheduler.core.policies import Action

LEARNING = ("tpe", "gp", "multi_fidelity", "cmaes", "nsga2", "nsga3")


def first_arrival(sampler):
    driver = Driver(study(AutoPolicy(), max_steps=27, sampler=sampler))
    driver.record(0, 0.5)
    return driver.policy.verdict(0, 0, 0)


@pytest.mark.parametrize("kind", LEARNING)
def test_with_a_sampler_that_learns_the_first_arrival_waits(kind):
    verdict = first_arrival(SAMPLERS[kind]())
    assert verdict.action is Action.PAUSE
    assert "too few results" in verdict.explanation.sentence


@pytest.mark.parametrize("kind", ["random", "sobol"])
def test_with_any_other_it_continues(kind):
    verdict = first_arrival(SAMPLERS[kind]())
    assert verdict.action is Action.CONTINUE
    assert "continues at once" in verdict.explanation.sentence


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("random", "The first to arrive at a rung are promoted without a comparison"),
        ("tpe", "tpe learns from results, so every trial waits to be compared. When"),
        ("multi_fidelity", "waits to be compared. Rungs are counted down from the full budget."),
    ],
)
def test_preview_says_which(kind, said):
    spec = parse_spec(study(AutoPolicy()).model_dump(mode="json") | {"sampler": {"kind": kind}})
    assert said in wording.policy(spec)
    assert "until 0.2 of what all trials would cost" in wording.policy(spec)
