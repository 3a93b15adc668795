"""ASHA against an oracle written from the definition: it sorts everything again at every question."""

import math
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_drive import Driver, study

from headrace.spec import AshaPolicy
from headrace_services.scheduler.policies import Action


@dataclass
class Oracle:
    """The definition: results at each rung, what was promoted, who was withdrawn; nothing incremental."""

    ladders: list[tuple[int, ...]]
    eta: int
    maximize: bool
    results: dict = field(default_factory=dict)  # (bracket, rung) -> [(trial, value)] in order of arrival
    past: set = field(default_factory=set)  # (trial, bracket, rung)
    withdrawn: set = field(default_factory=set)

    def record(self, trial, value, bracket, rung):
        self.results.setdefault((bracket, rung), []).append((trial, value))
        for lower in range(rung):
            self.past.add((trial, bracket, lower))

    def ranked(self, bracket, rung):
        def key(entry):
            arrival, (_, value) = entry
            if value is None or math.isnan(value) or math.isinf(value):
                return (1, 0.0, arrival)
            return (0, -value if self.maximize else value, arrival)

        return [entry for _, entry in sorted(enumerate(self.results.get((bracket, rung), [])), key=key)]

    def next_promotion(self):
        places = [
            (ladder[rung], bracket, rung)
            for bracket, ladder in enumerate(self.ladders)
            for rung in range(len(ladder) - 1)
        ]
        for _, bracket, rung in sorted(places, key=lambda place: (-place[0], place[1])):
            ranked = self.ranked(bracket, rung)
            for trial, value in ranked[: len(ranked) // self.eta]:
                finite = value is not None and math.isfinite(value)
                if finite and (trial, bracket, rung) not in self.past and trial not in self.withdrawn:
                    return trial, bracket, rung, self.ladders[bracket][rung + 1]
        return None

    def goes_on(self, trial, bracket, rung):
        """The stopping rule: no more than max(1, ⌊n/η⌋) - 1 results are strictly better."""
        entries = self.results[bracket, rung]
        finite = [(t, v) for t, v in entries if v is not None and math.isfinite(v)]
        mine = dict(entries)[trial]
        if mine is None or not math.isfinite(mine):
            return False
        better = sum(1 for _, v in finite if (v > mine if self.maximize else v < mine))
        return better + 1 <= max(1, len(entries) // self.eta)


VALUES = [None, math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, 1.0, 2.0, -1.0, 3.5, 0.25, 1e300, -1e-300]


def play(policy, goal, draws):
    """Plays one random history on the policy and the oracle, and compares every answer."""
    spec = study(policy, goal=goal, max_steps=27)
    driver = Driver(spec)
    ladders = [driver.policy.ladder(bracket) for bracket in range(policy.brackets)]
    oracle = Oracle(ladders=ladders, eta=policy.eta, maximize=goal == "maximize")
    stopping = policy.variant == "stopping"
    running: list[tuple[int, int, int]] = []
    trials = 0
    for draw in draws:
        kind, pick, value = draw % 8, draw // 8, VALUES[draw // 64 % len(VALUES)]
        if kind < 3 or not running:
            running.append((trials, pick % policy.brackets, 0))
            trials += 1
        if kind == 3 and trials:
            victim = pick % trials
            driver.call("withdraw", victim)
            oracle.withdrawn.add(victim)
        elif kind >= 5:
            trial, bracket, rung = running.pop(pick % len(running))
            crossed = 2 if kind == 7 and rung + 2 < len(ladders[bracket]) else 1
            for level in range(rung, rung + crossed):
                driver.record(trial, value, bracket=bracket, rung=level)
                oracle.record(trial, value, bracket, level)
            rung += crossed - 1
            if rung < len(ladders[bracket]) - 1:
                verdict = driver.policy.verdict(trial, bracket, rung)
                if stopping:
                    assert (verdict.action is Action.CONTINUE) == oracle.goes_on(trial, bracket, rung)
                    if verdict.action is Action.CONTINUE:
                        driver.call("promoted", trial, bracket, rung)
                        running.append((trial, bracket, rung + 1))
                else:
                    assert verdict.action is Action.PAUSE
                    ranked = [t for t, _ in oracle.ranked(bracket, rung)]
                    assert verdict.explanation.rank == ranked.index(trial) + 1
        promotion = driver.policy.next_promotion()
        if stopping:
            assert promotion is None
            continue
        expected = oracle.next_promotion()
        found = promotion and (promotion.trial, promotion.bracket, promotion.rung, promotion.to_milestone)
        assert found == expected
        if promotion is not None and draw % 3:
            driver.call("promoted", *found[:3])
            oracle.past.add(found[:3])
            running.append((found[0], found[1], found[2] + 1))


@settings(max_examples=300, deadline=None)
@given(
    variant=st.sampled_from(["promotion", "stopping"]),
    goal=st.sampled_from(["minimize", "maximize"]),
    eta=st.integers(2, 4),
    brackets=st.integers(1, 3),
    draws=st.lists(st.integers(0, 2**20), max_size=80),
)
def test_against_the_definition(variant, goal, eta, brackets, draws):
    play(AshaPolicy(variant=variant, eta=eta, rungs=(1, 3, 9, 27), brackets=brackets), goal, draws)


@pytest.mark.parametrize("variant", ["promotion", "stopping"])
def test_5000_histories_each(variant):
    generator = random.Random(20)
    for _ in range(5000):
        policy = AshaPolicy(
            variant=variant,
            eta=generator.randint(2, 4),
            rungs=(1, 3, 9, 27),
            brackets=generator.randint(1, 3),
        )
        goal = generator.choice(["minimize", "maximize"])
        play(policy, goal, [generator.randrange(2**20) for _ in range(generator.randint(5, 40))])
