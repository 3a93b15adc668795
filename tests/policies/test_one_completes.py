"""If one trial of a study can complete, the study ends with one that completed, whatever happens to the others."""

import random
from collections import Counter

import pytest
from policy_drive import study

from headrace.spec import (
    AshaPolicy,
    AutoPolicy,
    HyperbandPolicy,
    PashaPolicy,
    PbtPolicy,
    Policy,
    RunAllPolicy,
    SuccessiveHalvingPolicy,
)
from headrace_services.scheduler.core.policies import Action, RungResult, make_policy
from headrace_services.scheduler.core.records import Checkpoint

KINDS = [
    AshaPolicy(),
    AshaPolicy(brackets=2),
    AshaPolicy(arrival="optimistic"),
    AshaPolicy(effort=0.1),
    AshaPolicy(price_pauses=True),
    AutoPolicy(),
    AutoPolicy(effort=0),
    PashaPolicy(),
    SuccessiveHalvingPolicy(),
    HyperbandPolicy(),
    RunAllPolicy(),
    PbtPolicy(interval=3),
]
FAILS, NO_VALUE, CANCELLED = "fails", "no value", "cancelled"


class Study:
    """A study on a few slots. Each trial that cannot complete has a rung at which it ends, and a way of ending."""

    def __init__(self, policy: Policy, chance: random.Random) -> None:
        trials = chance.randint(4, 30)  # a population has at least four
        self.chance = chance
        self.policy = make_policy(study(policy, max_steps=27, trials=trials))
        self.brackets = {number: self.policy.bracket(number) for number in range(trials)}
        self.fates = {
            number: (chance.choice((FAILS, NO_VALUE, CANCELLED)), chance.randrange(len(self.ladder(number))))
            for number in range(trials)
        }
        self.able = set(chance.sample(range(trials), chance.randint(1, max(1, trials // 5))))
        self.slots = chance.choice((1, 2, 5))
        self.pending = list(range(trials))
        self.running: list[tuple[int, int]] = []
        self.arrivals: Counter[tuple[int, int]] = Counter()
        self.completed: set[int] = set()
        self.reached: Counter[int] = Counter()

    def ladder(self, number: int) -> tuple[int, ...]:
        return self.policy.ladder(self.brackets[number])

    def play(self) -> set[int]:
        """Play to the end; returns the trials that completed."""
        for _ in range(2000):
            while len(self.running) < self.slots and self.start():
                pass
            if not self.running:
                return self.completed
            self.report(*self.running.pop(self.chance.randrange(len(self.running))))
        raise AssertionError("the study never ends")

    def start(self) -> bool:
        new_first = self.policy.new_trials_first and self.pending
        said = None if new_first else self.policy.next_promotion(more=bool(self.pending))
        if said is not None:
            self.policy.promoted(said.trial, said.bracket, said.rung)
            if said.exploit is not None:
                self.policy.exploited(said.exploit)
            self.running.append((said.trial, said.rung + 1))
        elif self.pending:
            number = self.pending.pop(0)
            self.policy.joined(number, self.brackets[number], {"x": 0.5})
            self.running.append((number, 0))
        else:
            return False
        return True

    def report(self, trial: int, rung: int) -> None:
        how, at = self.fates[trial]
        over = trial not in self.able and rung >= at
        if over and how == FAILS:
            self.policy.withdraw(trial)
            return
        bracket, ladder = self.brackets[trial], self.ladder(trial)
        self.arrivals[bracket, rung] += 1
        self.policy.record(
            RungResult(
                trial=trial,
                bracket=bracket,
                rung=rung,
                milestone=ladder[rung],
                step=ladder[rung],
                value=None
                if over and how == NO_VALUE
                else self.chance.random() - 2 * (trial not in self.able),
                arrival=self.arrivals[bracket, rung],
                checkpoint=Checkpoint(uri=f"{trial}/{rung}", step=ladder[rung]),
            )
        )
        self.reached[rung] += not (over and how == NO_VALUE)
        if rung == len(ladder) - 1:
            self.completed |= {trial} if not (over and how == NO_VALUE) else set()
            self.policy.finished_early(trial)
            self.policy.withdraw(trial)
            return
        if over and how == CANCELLED:
            self.policy.withdraw(trial)
            return
        verdict = self.policy.verdict(trial, bracket, rung, more=bool(self.pending))
        if verdict.action is Action.CONTINUE:
            self.policy.promoted(trial, bracket, rung)
            self.running.append((trial, rung + 1))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_one_that_can_complete_is_reached(kind: Policy) -> None:
    """Trials that cannot complete have the better values, so they are chosen first."""
    for seed in range(150):
        played = Study(kind, random.Random(f"one completes {seed}"))
        completed = played.play()
        if isinstance(kind, PashaPolicy):  # up to its ceiling, initially the second rung
            assert played.reached[1], seed
        else:
            assert completed, seed
