# ruff: noqa: ARG002  (one signature for all)
"""Policies that compare a whole cohort, or a whole population, by their definitions."""

import math
from fractions import Fraction

from oracle import Oracle, finite


class SynchronousOracle(Oracle):
    def __init__(self, spec, ladders):
        super().__init__(spec, ladders)
        self.ended_early = set()

    def finished_early(self, trial):
        self.ended_early.add(trial)

    def lost(self, trial, bracket):
        """Whether a trial cannot reach the full budget with a value, for any reason but the end of its program."""
        last = len(self.ladders[bracket]) - 1
        rungs = [r for r in range(last + 1) if self.recorded(trial, bracket, r)]
        if any(not finite(self.value(trial, bracket, r)) for r in rungs):
            return True
        return trial in self.over and trial not in self.ended_early and last not in rungs

    def size(self, bracket):
        if self.policy.kind == "successive_halving":
            return self.policy.cohort or self.policy.eta ** (len(self.ladders[0]) - 1)
        # JMLR 18, algorithm 1, line 3, in exact arithmetic; bracket 0 is s = s_max.
        s_max = len(self.ladders) - 1
        sizes = [math.ceil(Fraction((s_max + 1) * self.policy.eta**s, s + 1)) for s in range(s_max, -1, -1)]
        whole, share = sum(sizes), self.spec.max_trials
        if share >= whole:
            return sizes[bracket]
        # Each bracket ends at its share of the trials, rounded.
        ends = [
            math.floor(Fraction(sum(sizes[: b + 1]) * share, whole) + Fraction(1, 2))
            for b in range(-1, len(sizes))
        ]
        return ends[bracket + 1] - ends[bracket]

    def cohorts(self, bracket):
        trials = [t for t, b in self.trials if b == bracket]
        size = self.size(bracket)
        return [trials[start : start + size] for start in range(0, len(trials), size)]

    def members(self, cohort, bracket, rung):
        if rung == 0:
            return list(cohort)
        return [t for t in cohort if (t, rung - 1) in self.past]

    def full(self, cohort, bracket, rung, more):
        if rung == 0:
            return len(cohort) == self.size(bracket) or not more
        return self.decided(cohort, bracket, rung - 1, more) and not self.to_go(cohort, bracket, rung - 1)

    def decided(self, cohort, bracket, rung, more):
        settled = all(
            self.recorded(t, bracket, rung) or t in self.over for t in self.members(cohort, bracket, rung)
        )
        return settled and self.full(cohort, bracket, rung, more)

    def places(self, cohort, bracket, rung):
        count = len(self.members(cohort, bracket, rung))
        gone = len([t for t in cohort if (t, rung) in self.past])
        return max(0, max(1, count // self.policy.eta) - gone) if count else 0

    def in_training(self):
        for trial, bracket in self.trials:
            rungs = [r for r in range(len(self.ladders[bracket])) if self.recorded(trial, bracket, r)]
            if trial not in self.over and (not rungs or (trial, max(rungs)) in self.past):
                return True
        return False

    def last_chance(self):
        """If nobody trains: the best waiting trial of a cohort whose promoted trials are all lost."""
        for bracket, rung in self.scan():
            for cohort in self.cohorts(bracket):
                above = range(rung + 1, len(self.ladders[bracket]))
                if any(
                    self.recorded(t, bracket, r) and self.waits(t, bracket, r) for t in cohort for r in above
                ):
                    continue
                went = [t for t in cohort if (t, rung) in self.past]
                order = self.ranked(bracket, rung, only=set(cohort))
                waiting = [t for t, _ in order if self.waits(t, bracket, rung)]
                if waiting and all(self.lost(t, bracket) for t in went):
                    return self.promotion(waiting[0], bracket, rung)
        return None

    def to_go(self, cohort, bracket, rung):
        """The trials that get the free places of a decided rung, best first."""
        waiting = [t for t, _ in self.ranked(bracket, rung, only=set(cohort)) if self.waits(t, bracket, rung)]
        return waiting[: self.places(cohort, bracket, rung)]

    def next_promotion(self, more):
        for bracket, rung in self.scan():
            for cohort in self.cohorts(bracket):
                if self.decided(cohort, bracket, rung, more) and self.to_go(cohort, bracket, rung):
                    return self.promotion(self.to_go(cohort, bracket, rung)[0], bracket, rung)
        return None if more or self.in_training() else self.last_chance()

    def verdict(self, trial, bracket, rung, more):
        if (trial, rung) in self.past:
            return "CONTINUE"
        cohort = next(c for c in self.cohorts(bracket) if trial in c)
        goes = self.decided(cohort, bracket, rung, more) and trial in self.to_go(cohort, bracket, rung)
        return "CONTINUE" if goes else "PAUSE"


class PbtOracle(Oracle):
    """Population-based training: which trial continues next, whom it may copy, and with which parameters."""

    def __init__(self, spec, ladders):
        super().__init__(spec, ladders)
        self.saved = {}  # (trial, rung) -> whether it has a checkpoint
        self.params = {}  # trial -> [(first rung, parameters)]

    def verdict(self, trial, bracket, rung, more):
        return "PAUSE"

    def missing(self, rung, more):
        """How many members have not reached a rung yet."""
        live = [trial for trial, _ in self.trials if trial not in self.over]
        to_join = max(0, self.spec.max_trials - len(self.trials)) if more else 0
        return to_join + sum(not self.recorded(trial, 0, rung) for trial in live)

    def traded(self, members):
        """How many of a population copy, and how many are copied."""
        return max(1, math.floor(Fraction(str(self.policy.quantile)) * members)) if members > 1 else 0

    def keeps(self, trial, rung, more):
        """Whether a member keeps its own state in whatever order the missing members report: in the worst case all
        of them are better."""
        order = [name for name, _ in self.ranked(0, rung)]
        members = len(order) + self.missing(rung, more)
        worst = order[max(0, len(order) - self.traded(members)) :]
        return finite(self.value(trial, 0, rung)) and trial not in worst

    def next_promotion(self, more):
        for rung in range(len(self.ladders[0]) - 1):
            for trial, _ in self.ranked(0, rung):
                if trial in self.over or (trial, rung) in self.past:
                    continue
                if not self.missing(rung, more) or self.keeps(trial, rung, more):
                    return self.promotion(trial, 0, rung)
        return None

    def donors(self, trial, rung, more):
        """The members that a member may copy at a rung; empty if it keeps its own state."""
        order = [name for name, _ in self.ranked(0, rung)]
        if self.keeps(trial, rung, more):
            return set()
        traded = self.traded(len(order) + self.missing(rung, more))
        best = order[:traded]
        return {
            name
            for name in best
            if name != trial and self.saved[name, rung] and finite(self.value(name, 0, rung))
        }

    def params_at(self, trial, rung):
        """The parameters with which a member reached a rung."""
        return [params for since, params in self.params[trial] if since <= rung][-1]

    def may_become(self, before, after):
        """Whether perturbing or redrawing the single parameter can lead from one value to the other."""
        domain = self.spec.space["x"]
        moved = {min(max(before["x"] * factor, domain.low), domain.high) for factor in self.policy.factors}
        return after["x"] in moved or (
            self.policy.resample_probability and domain.low <= after["x"] <= domain.high
        )
