"""Random histories of our own policies: those of the contract suite (`own.histories`), compared with an oracle."""

import random
from functools import cache

from oracles_synchronous import PbtOracle
from policy_drive import study
from policy_oracles import oracle_of

from headrace.spec import (
    AshaPolicy,
    AutoPolicy,
    GpSampler,
    HyperbandPolicy,
    MedianPolicy,
    Nsga2Sampler,
    PashaPolicy,
    PbtPolicy,
    RandomSampler,
    RunAllPolicy,
    RungMedianPolicy,
    SuccessiveHalvingPolicy,
    TpeSampler,
)
from headrace_services.scheduler.plugins import histories

KINDS = {
    "auto": [
        (AutoPolicy(), 27),
        (AutoPolicy(eta=2, rungs=(2, 5, 12, 40)), 40),
        (AutoPolicy(effort=0), 9),
        (AutoPolicy(effort=0.6, min_steps=2), 18),
    ],
    "auto_learning": [
        (AutoPolicy(), 27, TpeSampler()),
        (AutoPolicy(effort=0, eta=2), 8, GpSampler()),
        (AutoPolicy(price_pauses=True, eta=2), 8, Nsga2Sampler()),
    ],
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
        (AutoPolicy(price_pauses=True, eta=2), 8),
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
    "pbt": [(PbtPolicy(interval=1), 4), (PbtPolicy(interval=2, quantile=0.5, resample_probability=0.0), 6)],
}


@cache
def spec_of(kind, variant, goal):
    policy, max_steps, *others = KINDS[kind][variant]
    trials = next((other for other in others if isinstance(other, int)), 1000)
    sampler = next((other for other in others if not isinstance(other, int)), RandomSampler())
    return study(policy, goal=goal, max_steps=max_steps, trials=trials, sampler=sampler)


class History(histories.History):
    """One study on a few slots."""

    def __init__(self, kind, seed, *, goal="minimize", flip=False, trouble=True, compare=True, specs=spec_of):
        rng = random.Random(seed)
        spec = specs(kind, rng.randrange(len(KINDS[kind])), goal)
        super().__init__(spec, rng, flip=flip, trouble=trouble)
        self.oracle = oracle_of(self.spec, self.ladders) if compare else None

    def tell(self, name, *args):
        if self.oracle is not None:
            getattr(self.oracle, name)(*args)

    def promotion(self):
        said = super().promotion()
        found = said and (said.trial, said.bracket, said.rung, said.to_milestone)
        if self.oracle is not None:
            assert found == self.oracle.next_promotion(self.more)
        return said

    def promoting(self, said):
        if isinstance(self.oracle, PbtOracle):
            self.check_exploit(said)

    def exploited(self, said):
        if isinstance(self.oracle, PbtOracle):
            self.note_exploit(said.exploit)

    def check_exploit(self, said):
        """Check which trial is copied, which of its checkpoints, and what its parameters become."""
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

    def created(self, trial, bracket, params):
        self.tell("joined", trial, bracket)
        if isinstance(self.oracle, PbtOracle):
            self.oracle.params[trial] = [(0, params)]

    def recorded(self, result):
        self.tell("record", result.trial, result.bracket, result.rung, result.value, result.step, result.cost)
        if isinstance(self.oracle, PbtOracle):
            self.oracle.saved[result.trial, result.rung] = result.checkpoint

    def check(self, trial, bracket, rung, verdict):
        super().check(trial, bracket, rung, verdict)
        if self.oracle is None:
            return
        expected = self.oracle.verdict(trial, bracket, rung, self.more)
        assert verdict.action.name == expected, verdict.explanation.sentence
