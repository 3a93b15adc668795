# ruff: noqa: ARG002  (one signature for all)
"""Random histories, played on a policy and its oracle as the scheduler would play them.

A history has a few slots and trials that report, skip rungs, fail, are cancelled while they wait and are added by a
user when nothing was left to propose. Every answer of the policy is compared with the oracle's. At one random moment
the policy is built anew from the calls so far and must answer the same. A history ends when nothing runs and nothing
may start; that it always does is a promise of its own.
"""

import math
import random
from functools import cache

import pytest
from oracles_synchronous import PbtOracle
from policy_drive import study
from policy_oracles import oracle_of

from headrace.spec import (
    AshaPolicy,
    HyperbandPolicy,
    LearningCurvePolicy,
    MedianPolicy,
    PashaPolicy,
    PbtPolicy,
    RunAllPolicy,
    RungMedianPolicy,
    SuccessiveHalvingPolicy,
)
from headrace_services.scheduler.core.policies import Action, RungCost, RungResult, make_policy
from headrace_services.scheduler.core.records import Checkpoint

KINDS = {
    "run_all": [(RunAllPolicy(), 5)],
    "asha_promotion": [
        (AshaPolicy(), 27),
        (AshaPolicy(eta=2, rungs=(2, 5, 12, 40)), 40),
        (AshaPolicy(eta=2, brackets=3), 8),
        (AshaPolicy(eta=4, rungs=(1, 3)), 3),
    ],
    "asha_stopping": [
        (AshaPolicy(variant="stopping"), 27),
        (AshaPolicy(variant="stopping", eta=2, brackets=2), 8),
    ],
    "asha_hedged": [
        (AshaPolicy(arrival="optimistic"), 27),
        (AshaPolicy(effort=0.3), 27),
        (AshaPolicy(arrival="optimistic", effort=0.2, eta=2, rungs=(2, 5, 12, 40)), 40),
        (AshaPolicy(arrival="optimistic", effort=1, eta=2, brackets=3), 8),
    ],
    "priced_pauses": [
        (AshaPolicy(price_pauses=True, eta=2), 8),
        (AshaPolicy(price_pauses=True, brackets=2), 27),
    ],
    "successive_halving": [
        (SuccessiveHalvingPolicy(eta=2), 4),
        (SuccessiveHalvingPolicy(eta=2, cohort=3), 4),
        (SuccessiveHalvingPolicy(cohort=7), 9),
        (SuccessiveHalvingPolicy(eta=2, cohort=5, rungs=(2, 3, 7, 8)), 8),
    ],
    "hyperband": [
        (HyperbandPolicy(eta=2), 4),
        (HyperbandPolicy(), 9),
        (HyperbandPolicy(eta=2, rungs=(1, 5)), 5),
        (HyperbandPolicy(eta=2), 8, 11),
    ],
    "pasha": [
        (PashaPolicy(eta=2), 16),
        (PashaPolicy(eta=2, epsilon=0.5), 16),
        (PashaPolicy(eta=2, epsilon=0.0, rungs=(1, 2, 3, 4, 5)), 5),
    ],
    "median": [
        (MedianPolicy(min_peers=1, interval=2, grace_steps=2), 9),
        (MedianPolicy(min_peers=2, interval=1), 4),
        (MedianPolicy(interval=3), 10),
    ],
    "vizier_median": [
        (MedianPolicy(variant="vizier", min_peers=1, interval=2, grace_steps=2), 9),
        (MedianPolicy(variant="vizier", min_peers=2, interval=1, completed_only=True), 4),
        (MedianPolicy(variant="vizier", interval=3), 10),
    ],
    "rung_median": [
        (RungMedianPolicy(interval=5, grace_steps=10), 30),
        (RungMedianPolicy(interval=1, tolerance=0.0, min_results=1), 4),
    ],
    "learning_curve": [
        (LearningCurvePolicy(interval=1, min_points=2, threshold=0.3), 5),
        (LearningCurvePolicy(rungs=(1, 2, 4, 7, 11, 12), threshold=0.05), 12),
    ],
    "pbt": [(PbtPolicy(interval=1), 4), (PbtPolicy(interval=2, quantile=0.5, resample_probability=0.0), 6)],
}
NASTY = [None, math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, 1.0, 2.0, -1.0, 3.5, 0.25, 1e300, -1e-300]


@cache
def spec_of(kind, variant, goal):
    policy, max_steps, *trials = KINDS[kind][variant]
    return study(policy, goal=goal, max_steps=max_steps, trials=trials[0] if trials else 1000)


class History:
    """One study on a few slots."""

    def __init__(self, kind, seed, *, goal="minimize", flip=False, trouble=True, compare=True, specs=spec_of):
        self.rng = random.Random(seed)
        self.spec = specs(kind, self.rng.randrange(len(KINDS[kind])), goal)
        self.policy = make_policy(self.spec)
        self.ladders = [self.policy.ladder(bracket) for bracket in range(self.policy.brackets)]
        self.oracle = oracle_of(self.spec, self.ladders) if compare else None
        self.flip, self.trouble = flip, trouble
        self.slots = self.rng.randint(1, 4)
        self.limit = self.rng.randint(1, 14)
        self.additions = self.rng.choice([0, 0, 1, 3]) if trouble else 0
        self.draw = self.rng.choice([self.nasty, self.tied, self.smooth, self.smooth])
        self.arrivals = {}
        self.level = {}
        self.number = self.sampled = 0
        self.pending, self.running, self.paused = [], [], {}
        self.calls, self.decisions = [], []
        self.rebuild_at = self.rng.randint(1, 40)

    # --- values --------------------------------------------------------------------------------------

    def nasty(self, trial, rung):
        return self.rng.choice(NASTY)

    def tied(self, trial, rung):
        return self.rng.choice([0.5, 0.5, 1.0])

    def smooth(self, trial, rung):
        level = self.level.setdefault(trial, self.rng.choice([0.1, 0.2, 0.3, 0.4, 0.5, 0.75]))
        return level + 1 / (rung + 1) + self.rng.choice([0.0, 0.0, 0.01, -0.01])

    # --- the calls -----------------------------------------------------------------------------------

    @property
    def more(self):
        return self.sampled < self.limit

    def fold(self, name, *args):
        """A committed fact; some arrive twice."""
        self.calls.append((name, args))
        getattr(self.policy, name)(*args)
        if name in ("promoted", "withdraw") and self.trouble and self.rng.random() < 0.1:
            getattr(self.policy, name)(*args)

    def tell(self, name, *args):
        if self.oracle is not None:
            getattr(self.oracle, name)(*args)

    def promotion(self):
        said = self.policy.next_promotion(more=self.more)
        found = said and (said.trial, said.bracket, said.rung, said.to_milestone)
        if self.oracle is not None:
            assert found == self.oracle.next_promotion(self.more)
        return said

    def promote(self, said):
        self.decisions.append((said.trial, said.bracket, said.rung, said.explanation.rank))
        assert f"rank {said.explanation.rank} of {said.explanation.results}" in said.explanation.sentence
        if isinstance(self.oracle, PbtOracle):
            self.check_exploit(said)
        self.pass_on(said.trial, said.bracket, said.rung)
        if said.exploit is not None:
            self.fold("exploited", said.exploit)
            if isinstance(self.oracle, PbtOracle):
                self.note_exploit(said.exploit)
        self.paused.pop(said.trial, None)
        self.running.append((said.trial, said.bracket, said.rung + 1))

    def check_exploit(self, said):
        """Who is copied, what of it, and what becomes of its parameters."""
        copied, oracle = said.exploit, self.oracle
        donors = oracle.donors(said.trial, said.rung, self.more)
        assert (copied is None) == (not donors)
        if copied is None:
            return
        assert copied.donor in donors
        assert copied.checkpoint.uri == oracle.saved[copied.donor, said.rung].uri
        assert copied.checkpoint.uri in self.policy.pinned(copied.donor)
        assert oracle.may_become(oracle.params_at(copied.donor, said.rung), copied.params)
        assert copied.previous_params == oracle.params_at(said.trial, said.rung)

    def note_exploit(self, copied):
        self.oracle.params[copied.number].append((copied.rung + 1, copied.params))

    def pass_on(self, trial, bracket, rung):
        self.tell("promoted", trial, bracket, rung)  # first: an oracle may look at how things stood
        self.fold("promoted", trial, bracket, rung)

    def end(self, trial):
        self.fold("withdraw", trial)
        self.tell("withdraw", trial)
        self.paused.pop(trial, None)

    # --- the engine ----------------------------------------------------------------------------------

    def create(self):
        bracket = self.policy.bracket(self.number)
        params = {"x": self.rng.random()}
        self.fold("joined", self.number, bracket, params)
        self.tell("joined", self.number, bracket)
        if isinstance(self.oracle, PbtOracle):
            self.oracle.params[self.number] = [(0, params)]
        self.pending.append((self.number, bracket))
        self.number += 1

    def propose(self):
        if self.more:
            self.sampled += 1
            self.create()

    def fill(self):
        while len(self.running) < self.slots:
            new_first = self.policy.new_trials_first and (self.pending or self.more)
            said = None if new_first else self.promotion()
            if said is not None:
                self.promote(said)
                continue
            if not self.pending:
                self.propose()
            if not self.pending:
                return
            trial, bracket = self.pending.pop(0)
            self.running.append((trial, bracket, 0))

    def report(self):
        trial, bracket, rung = self.running.pop(self.rng.randrange(len(self.running)))
        ladder = self.ladders[bracket]
        top = min(rung + (self.trouble and self.rng.choice([0, 0, 0, 1, 2])), len(ladder) - 1)
        last = top == len(ladder) - 1
        step = ladder[top] if last else self.rng.randint(ladder[top], ladder[top + 1] - 1)
        value = self.draw(trial, top)
        value = -value if self.flip and value is not None else value
        saved = Checkpoint(uri=f"{trial}/{step}", step=step) if self.rng.random() < 0.8 else None
        numbers = [None, 0.0, 1.0, 5.0, 40.0]
        cost = RungCost(
            step_s=self.rng.choice(numbers), write_s=self.rng.choice(numbers), read_s=self.rng.choice(numbers)
        )
        for level in range(rung, top + 1):
            arrival = self.arrivals[bracket, level] = self.arrivals.get((bracket, level), 0) + 1
            result = RungResult(
                trial=trial,
                bracket=bracket,
                rung=level,
                milestone=ladder[level],
                step=step,
                value=value,
                arrival=arrival,
                checkpoint=saved,
                cost=cost,
            )
            self.fold("record", result)
            self.tell("record", trial, bracket, level, value, step, cost)
            if isinstance(self.oracle, PbtOracle):
                self.oracle.saved[trial, level] = saved
        for level in range(rung, top):
            self.pass_on(trial, bracket, level)
        if last:
            self.end(trial)
        else:
            self.judge(trial, bracket, top)

    def judge(self, trial, bracket, rung):
        verdict = self.policy.verdict(trial, bracket, rung, more=self.more)
        self.check(trial, bracket, rung, verdict)
        why = verdict.explanation
        self.decisions.append((trial, verdict.action.name, why.rank, why.results, why.kept))
        if verdict.action is Action.STOP:
            self.end(trial)
        elif verdict.action is Action.CONTINUE:
            self.pass_on(trial, bracket, rung)
            self.running.append((trial, bracket, rung + 1))
        else:
            said = self.promotion()
            if said is not None and said.trial == trial:
                self.promote(said)
            else:
                self.paused[trial] = (bracket, rung)

    def check(self, trial, bracket, rung, verdict):
        why = verdict.explanation
        assert 1 <= why.rank <= why.results
        assert why.results <= self.arrivals[bracket, rung]
        assert why.cutoff_value is None or math.isfinite(why.cutoff_value)
        assert f"rank {why.rank} of {why.results}" in why.sentence
        assert "\n" not in why.sentence
        if self.oracle is None:
            return
        expected = self.oracle.verdict(trial, bracket, rung, self.more)
        likely = getattr(self.oracle, "probability", None)
        if why.probability is not None:
            assert why.probability == pytest.approx(likely, abs=1e-6)
            if abs(likely - self.spec.policy.threshold) < 1e-6:
                return
        assert verdict.action.name == expected, why.sentence

    def trouble_strikes(self):
        strike = self.rng.random()
        if strike < 0.08 and self.running:
            self.end(self.running.pop(self.rng.randrange(len(self.running)))[0])
        elif strike < 0.13 and self.paused:
            self.end(self.rng.choice(sorted(self.paused)))
        elif strike < 0.16 and self.pending:
            self.end(self.pending.pop(self.rng.randrange(len(self.pending)))[0])
        elif strike < 0.25 and self.additions:
            self.additions -= 1
            self.create()
        elif strike < 0.30:
            self.propose()

    def play(self):
        turns = 0
        while True:
            self.fill()
            if self.trouble:
                self.trouble_strikes()
                self.fill()
            if not self.running:
                if self.pending or self.more or self.promotion() is not None:
                    continue
                break
            self.report()
            turns += 1
            assert turns <= 20 * (len(self.ladders[0]) + 1), "it never ends"
            if turns == self.rebuild_at:
                self.rebuilt_is_the_same()
        self.rebuilt_is_the_same()
        return self

    def rebuilt_is_the_same(self):
        """From the same facts, in commit order and with all trials first, comes the same policy."""
        joined = [call for call in self.calls if call[0] == "joined"]
        rest = [call for call in self.calls if call[0] != "joined"]
        for calls in (self.calls, joined + rest):
            fresh = make_policy(self.spec)
            for name, args in calls:
                getattr(fresh, name)(*args)
            for more in (True, False):
                assert repr(fresh.next_promotion(more=more)) == repr(self.policy.next_promotion(more=more))
            for trial, (bracket, rung) in self.paused.items():
                one, other = (p.verdict(trial, bracket, rung, more=self.more) for p in (fresh, self.policy))
                assert repr(one) == repr(other)
