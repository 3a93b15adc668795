"""What every policy must do.

`HEADRACE_HISTORIES=10000` plays that many random histories of each policy against its oracle (`make policies`),
and 300 that the scheduler's core plays in the simulator, with bundles.
"""

import inspect
import math
import os
import time
from collections import defaultdict
from pathlib import Path

import pytest
from bundled_history import MOST, BundledHistory
from policy_drive import Driver
from policy_histories import KINDS, History, spec_of
from policy_oracles import oracle_of
from tiers import drawn

from headrace.spec import POLICIES, parse_spec
from headrace.spec.convert import from_proto, to_proto
from headrace.spec.rungs import EvenPolicy
from headrace_services.scheduler.core import policies
from headrace_services.scheduler.core.policies import Action, Policy, make_policy

HISTORIES = int(os.environ.get("HEADRACE_HISTORIES", drawn(first=30, full=120)))
ALL = [(kind, place) for kind, variants in KINDS.items() for place in range(len(variants))]
NEVER_PAUSING = ("run_all", "asha_stopping")
"""Rules that check at even intervals never pause either."""
PAUSING = [
    kind
    for kind, variants in KINDS.items()
    if kind not in NEVER_PAUSING and not isinstance(variants[0][0], EvenPolicy)
]


WAYS = {"alone": (History, HISTORIES), "in bundles": (BundledHistory, max(5, min(HISTORIES // 8, 300)))}
"""How histories are played, and how many of them."""


@pytest.fixture(params=WAYS)
def way(request):
    return WAYS[request.param]


def spec_at(kind, place, goal="minimize"):
    return spec_of(kind, place, goal)


@pytest.fixture(params=ALL, ids=lambda item: f"{item[0]}-{item[1]}")
def spec(request):
    return spec_at(*request.param)


def test_every_kind_is_here():
    """A new policy must be added here too. Policies of packages have the contract suite (`test_own_plugins`)."""
    assert {policy.kind for variants in KINDS.values() for policy, *_ in variants} == set(POLICIES) - {"own"}


# --- random histories --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_histories_equal_the_oracle(kind, way):
    """Every answer follows the definition, the policy rebuilt from the log is the same, and every study ends."""
    history, count = way
    for seed in range(count):
        history(kind, seed, goal=("minimize", "maximize")[seed % 2]).play()


@pytest.mark.parametrize("kind", KINDS)
def test_mirror_images(kind, way):
    """Minimise and maximise are the same policy with values of opposite sign."""
    history, count = way
    for seed in range(max(25, count // 10) if history is History else count // 3):
        down = history(kind, seed, goal="minimize", compare=False).play()
        up = history(kind, seed, goal="maximize", flip=True, compare=False).play()
        assert down.decisions == up.decisions
        assert [name for name, _ in down.calls] == [name for name, _ in up.calls]


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind != "run_all" and oracle_of(spec_at(kind, 0), [(1,)])]
)
def test_an_oracle_sees_a_wrong_answer(kind, way, monkeypatch):
    """The comparison can fail: it detects a policy that forgets one result in ten."""
    honest = History.fold

    def forgetful(self, name, *args):
        if name == "record" and args[0].value is not None and args[0].trial % 10 == 3:
            honest(self, name, type(args[0])(**{**_fields(args[0]), "value": None}))
        else:
            honest(self, name, *args)

    history, _ = way

    def play_all():
        for seed in range(60):
            history(kind, seed).play()

    monkeypatch.setattr(History, "fold", forgetful)
    with pytest.raises(AssertionError):
        play_all()


def _fields(result):
    return {name: getattr(result, name) for name in type(result).__slots__}


@pytest.mark.parametrize("kind", PAUSING)
def test_without_trouble_there_is_a_winner(kind, way):
    """Studies whose trials neither fail nor diverge end with a trial at the highest rung that the policy allows."""
    for seed in range(60 if way[0] is History else 8):
        history = way[0](kind, seed, trouble=False, compare=False)
        history.draw = history.smooth
        history.play()
        tops = defaultdict(int)
        for (bracket, rung), count in history.arrivals.items():
            tops[bracket, rung == len(history.ladders[bracket]) - 1] += count
        full = sum(count for (_, top), count in tops.items() if top)
        settled_early = kind == "pasha" and history.policy.next_promotion(more=False) is None
        assert full >= 1 or settled_early
        if kind in ("successive_halving", "hyperband"):
            cohorts = {bracket for bracket, _ in tops}
            assert all(tops[bracket, True] >= 1 for bracket in cohorts)


def test_bundles_were_shared():
    """In some of the histories in bundles a process holds as many trials as it may."""
    at_once = [BundledHistory("hyperband", seed, compare=False).play().at_once for seed in range(10)]
    assert at_once.count(MOST) >= 3


# --- the small print ---------------------------------------------------------------------------------


def test_ladders_end_with_the_budget(spec):
    policy = make_policy(spec)
    for bracket in range(policy.brackets):
        ladder = policy.ladder(bracket)
        assert ladder[-1] == spec.max_steps
        assert list(ladder) == sorted(set(ladder))
        assert policy.bracket(bracket) in range(policy.brackets)
    assert policy.ladder(0) == spec.rungs()


def test_an_unknown_bracket_is_an_error(spec):
    policy = make_policy(spec)
    with pytest.raises(IndexError):
        policy.ladder(policy.brackets)


def test_no_results_no_promotion(spec):
    driver = Driver(spec)
    assert driver.policy.next_promotion() is None
    assert driver.policy.next_promotion(more=False) is None
    driver.join(0, 1, 2)
    assert driver.policy.next_promotion(more=False) is None


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
        driver.policy.record(type(result)(**{**_fields(result), "trial": 0, "rung": 99}))


def test_withdrawing_is_safe_at_any_time(spec):
    driver = Driver(spec)
    driver.policy.withdraw(99)
    driver.policy.withdraw(99)
    driver.policy.withdraw(0)
    driver.join(0, 1)
    driver.record(1, 1.0)
    driver.policy.withdraw(1)
    assert driver.policy.next_promotion(more=False) is None


def test_questions_change_nothing(spec):
    asked, silent = Driver(spec), Driver(spec)
    for trial in range(20):
        for driver in (asked, silent):
            driver.record(trial, float(trial * 7 % 20))
        for more in (True, False, True):
            asked.policy.next_promotion(more=more)
            asked.policy.verdict(trial, 0, 0, more=more)
    assert repr(asked.policy.next_promotion()) == repr(silent.policy.next_promotion())
    assert asked.promote_all() == silent.promote_all()


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("goal", ["minimize", "maximize"])
@pytest.mark.parametrize(("kind", "place"), ALL)
def test_ray_65008_none_metric(kind, place, goal, value):
    """ray 65008: a metric of None crashed the scheduler. Here it ranks last, never wins, and says why."""
    driver = Driver(spec_at(kind, place, goal=goal))
    ladder = driver.policy.ladder(0)
    for rung in range(len(ladder)):
        for trial in range(1, 12):
            driver.record(trial, -1e9 if goal == "maximize" else 1e9, rung=rung)
        driver.record(0, value, rung=rung)
        verdict = driver.policy.verdict(0, 0, rung)
        assert verdict.explanation.rank == verdict.explanation.results
        word = "missing" if value is None else "not a finite number"
        if rung < len(ladder) - 1:
            assert word in verdict.explanation.sentence
            assert verdict.action is not Action.CONTINUE or "it continues" in verdict.explanation.sentence
        judged = rung and 2 * ladder[rung] >= ladder[-1] and rung < len(ladder) - 1
        if judged and not getattr(driver.spec.policy, "completed_only", False):
            assert verdict.action is not Action.CONTINUE
        for trial in range(1, 12):
            driver.call("promoted", trial, 0, rung)
    promotion = driver.policy.next_promotion(more=False)
    assert promotion is None or promotion.trial != 0 or promotion.exploit is not None


@pytest.mark.full
@pytest.mark.parametrize(("kind", "place"), ALL)
def test_optuna_3053_a_decision_costs_the_same_with_many_trials(kind, place):
    """optuna 3053, 3048, 4444: proposals take longer and longer as trials accumulate."""
    spec = spec_at(kind, place)
    seconds: dict[int, float] = {}
    for count in (500, 8_000):
        driver = Driver(spec)
        driver.join(*range(count))
        for trial in range(count):
            driver.record(trial, (trial * 7919 % count) / count)
        driver.policy.next_promotion()
        for _ in range(5):
            start = time.process_time()
            for trial in range(0, count, count // 50):
                driver.policy.verdict(trial, 0, 0)
                driver.policy.next_promotion()
                driver.policy.next_promotion(more=False)
            seconds[count] = min(seconds.get(count, math.inf), time.process_time() - start)
    # Sixteen times the trials; a scan would take sixteen times as long, and sorting more.
    assert seconds[8_000] < 6 * seconds[500] + 0.02


def test_ray_30838_state_lost_on_restart():
    """ray 30838: a restart lost the scheduler's state. Here the state is a fold over the log, and the log is
    enough."""
    for kind in KINDS:
        history = History(kind, 5, compare=False).play()
        history.rebuilt_is_the_same()


@pytest.mark.parametrize("kind", PAUSING)
def test_ray_32634_and_44256_asha_that_cannot_pause(kind):
    """ray 32634, 44256: ASHA that stops what it should pause. A waiting trial is promoted later."""
    later = 0
    for seed in range(40):
        history = History(kind, seed, trouble=False, compare=False)
        history.play()
        names = [name for name, _ in history.calls]
        assert (
            "promoted" in names or not any(len(ladder) > 1 for ladder in history.ladders) or history.limit < 3
        )
        later += sum(len(decision) == 4 for decision in history.decisions)
        assert "STOP" not in [decision[1] for decision in history.decisions]
    assert later > 20


@pytest.mark.parametrize("kind", KINDS)
def test_ray_30265_and_6780_studies_that_hang(kind):
    """ray 30265, 6780: paused and pending trials, idle workers, and nothing ever happens.

    `play` fills every slot that can be filled after each event, and returns only when nothing runs and nothing may
    start. It fails if that takes forever.
    """
    for seed in range(40, 80):
        history = History(kind, seed, compare=False).play()
        assert not history.running
        assert not history.pending
        assert not history.more
        assert history.policy.next_promotion(more=False) is None


# --- the entry point -------------------------------------------------------------------------------------


def test_specs_travel(spec):
    assert from_proto(to_proto(spec)) == spec
    assert parse_spec(spec.model_dump(mode="json")) == spec


def test_a_policy_is_one_file():
    """Each policy's class is in a file of this package and is created there; nothing else knows its name."""
    scheduler = Path(policies.__file__).parents[2]
    made = {type(make_policy(spec_at(kind, place))) for kind, place in ALL}
    for policy in made:
        assert Policy in policy.__mro__
        home = Path(inspect.getfile(policy))
        assert home.parent == Path(policies.__file__).parent
    # The core uses the protocol and never asks for a kind of policy. Samplers and specs may know the kinds.
    askers = [
        path for room in ("core", "engine", "store", "session") for path in (scheduler / room).glob("*.py")
    ]
    assert {"decide.py", "load.py", "cycle.py"} <= {path.name for path in askers}
    for path in askers:
        text = path.read_text(encoding="utf-8")
        assert not [policy.__name__ for policy in made if policy.__name__ in text], path
