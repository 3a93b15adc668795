"""What every policy must do, whichever it is."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from policy_drive import PROMOTION, STOPPING, Driver, study

from headrace.spec import AshaPolicy, RunAllPolicy
from headrace_services.scheduler.policies import Action

POLICIES = {
    "run_all": RunAllPolicy(),
    "asha_promotion": PROMOTION,
    "asha_stopping": STOPPING,
    "asha_promotion_brackets": AshaPolicy(brackets=3, eta=2, rungs=(2, 5, 12, 40)),
    "asha_stopping_brackets": AshaPolicy(variant="stopping", brackets=4, eta=4, rungs=(2, 5, 12, 40)),
}
VALUES = st.one_of(
    st.sampled_from([None, math.nan, math.inf, -math.inf, 0.0, 1.0]), st.floats(allow_nan=False, width=32)
)


@pytest.fixture(params=POLICIES)
def spec(request):
    policy = POLICIES[request.param]
    return study(
        policy, max_steps=getattr(policy, "rungs", ())[-1:][0] if getattr(policy, "rungs", ()) else 27
    )


def brackets(spec):
    return range(getattr(spec.policy, "brackets", 1))


def test_ladders_end_with_the_budget(spec):
    policy = Driver(spec).policy
    for bracket in brackets(spec):
        ladder = policy.ladder(bracket)
        assert ladder[-1] == spec.max_steps
        assert list(ladder) == sorted(set(ladder))


def test_an_unknown_bracket_is_an_error(spec):
    with pytest.raises(IndexError):
        Driver(spec).policy.ladder(len(brackets(spec)))


def test_no_results_no_promotion(spec):
    assert Driver(spec).policy.next_promotion() is None


def test_recording_twice_is_an_error(spec):
    driver = Driver(spec)
    driver.record(0, 1.0)
    with pytest.raises(ValueError, match="already"):
        driver.record(0, 2.0)


def test_unknown_rungs_and_trials_are_errors(spec):
    driver = Driver(spec)
    result = driver.record(0, 1.0)
    with pytest.raises(ValueError, match="not recorded"):
        driver.policy.verdict(1, 0, 0)
    with pytest.raises(ValueError, match="no rung"):
        driver.policy.verdict(0, 0, 99)
    with pytest.raises(ValueError, match="not recorded"):
        driver.policy.promoted(5, 0, 0)
    with pytest.raises(ValueError, match="no rung"):
        driver.policy.record(
            type(result)(trial=1, bracket=0, rung=99, milestone=9, step=9, value=1.0, arrival=1)
        )


def test_withdrawing_an_unknown_trial_is_fine(spec):
    driver = Driver(spec)
    driver.policy.withdraw(99)
    driver.policy.withdraw(99)


def history(driver, spec, values, choices):
    """Plays one history as the engine does, and yields all that the policy said."""
    for trial, value in enumerate(values):
        bracket = choices[trial % len(choices)] % len(brackets(spec))
        driver.record(trial, value, bracket=bracket)
        if len(driver.policy.ladder(bracket)) == 1:
            continue
        verdict = driver.policy.verdict(trial, bracket, 0)
        yield trial, verdict
        if verdict.action is Action.CONTINUE:
            driver.call("promoted", trial, bracket, 0)
            driver.record(trial, value, bracket=bracket, rung=1)
        if choices[trial % len(choices)] == 3:
            driver.call("withdraw", trial)
        while (promotion := driver.policy.next_promotion()) is not None:
            yield promotion
            driver.call("promoted", promotion.trial, promotion.bracket, promotion.rung)
            promoted = values[promotion.trial]
            driver.record(promotion.trial, promoted, bracket=promotion.bracket, rung=promotion.rung + 1)


@given(data=st.data(), values=st.lists(VALUES, max_size=40), choices=st.lists(st.integers(0, 4), min_size=1))
@pytest.mark.parametrize("name", POLICIES)
def test_replay_and_determinism(name, data, values, choices):
    policy = POLICIES[name]
    spec = study(policy, max_steps=40 if getattr(policy, "rungs", ()) else 27)
    first, second = Driver(spec), Driver(spec)
    said = list(map(repr, history(first, spec, values, choices)))
    assert said == list(map(repr, history(second, spec, values, choices)))
    replayed = first.replayed()
    assert repr(replayed.next_promotion()) == repr(first.policy.next_promotion())
    for (bracket, rung), count in first.arrivals.items():
        for name_, args in first.calls:
            if name_ == "record" and (args[0].bracket, args[0].rung) == (bracket, rung):
                trial = args[0].trial
                assert repr(replayed.verdict(trial, bracket, rung)) == repr(
                    first.policy.verdict(trial, bracket, rung)
                )
                assert replayed.verdict(trial, bracket, rung).explanation.results == count


@given(values=st.lists(VALUES, max_size=40), choices=st.lists(st.integers(0, 4), min_size=1))
@pytest.mark.parametrize("name", POLICIES)
def test_mirror(name, values, choices):
    policy = POLICIES[name]
    max_steps = 40 if getattr(policy, "rungs", ()) else 27
    down = study(policy, goal="minimize", max_steps=max_steps)
    up = study(policy, goal="maximize", max_steps=max_steps)
    flipped = [None if value is None else -value for value in values]

    def decisions(spec, numbers):
        for said in history(Driver(spec), spec, numbers, choices):
            if isinstance(said, tuple):
                trial, verdict = said
                yield trial, verdict.action, verdict.explanation.rank, verdict.explanation.kept
            else:
                yield said.trial, said.bracket, said.rung, said.explanation.rank

    assert list(decisions(down, values)) == list(decisions(up, flipped))


@given(values=st.lists(VALUES, min_size=1, max_size=40))
@pytest.mark.parametrize("name", POLICIES)
def test_questions_change_nothing(name, values):
    policy = POLICIES[name]
    spec = study(policy, max_steps=40 if getattr(policy, "rungs", ()) else 27)
    asked, silent = Driver(spec), Driver(spec)
    for trial, value in enumerate(values):
        for driver in (asked, silent):
            driver.record(trial, value)
        for _ in range(3):
            asked.policy.next_promotion()
            asked.policy.verdict(trial, 0, 0)
    assert repr(asked.policy.next_promotion()) == repr(silent.policy.next_promotion())
    assert asked.promote_all() == silent.promote_all()


@given(values=st.lists(VALUES, min_size=1, max_size=40))
@pytest.mark.parametrize("name", POLICIES)
def test_explanations_hold_together(name, values):
    policy = POLICIES[name]
    spec = study(policy, max_steps=40 if getattr(policy, "rungs", ()) else 27)
    driver = Driver(spec)
    for trial, value in enumerate(values):
        driver.record(trial, value)
        explanation = driver.policy.verdict(trial, 0, 0).explanation
        assert 1 <= explanation.rank <= explanation.results == trial + 1
        assert explanation.cutoff_value is None or math.isfinite(explanation.cutoff_value)
        assert explanation.milestone == driver.policy.ladder(0)[0]
        assert f"rank {explanation.rank} of {explanation.results}" in explanation.sentence
        if value is None or not math.isfinite(value):
            # A missing value ranks behind all finite ones.
            assert explanation.rank > sum(1 for v in values[:trial] if v is not None and math.isfinite(v))
