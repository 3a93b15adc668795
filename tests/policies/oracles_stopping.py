# ruff: noqa: ARG002  (one signature for all)
"""Stopping rules by their definitions: medians."""

import math
import statistics
from fractions import Fraction

from oracle import Oracle, finite


class StoppingOracle(Oracle):
    def verdict(self, trial, bracket, rung, more):
        ladder = self.ladders[0]
        if rung == len(ladder) - 1 or ladder[rung] < self.policy.grace(self.spec.max_steps):
            return "CONTINUE"
        if not self.enough(trial, rung):
            return "CONTINUE"
        if not finite(self.value(trial, 0, rung)):
            return "STOP"
        return "STOP" if self.stops(trial, rung) else "CONTINUE"


class RungMedianOracle(StoppingOracle):
    def enough(self, trial, rung):
        return len(self.at(0, rung)) >= self.policy.min_results

    def stops(self, trial, rung):
        """The seed's rule: `med = sorted(hist)[len(hist) // 2]`, and `l > med * 1.05`."""
        hist = [self.sign * v if finite(v) else math.inf for _, v in self.at(0, rung)]
        med = sorted(hist)[len(hist) // 2]
        if med == math.inf:
            return False
        tolerance = self.policy.tolerance
        limit = med * (1 + tolerance) if med >= 0 else med * (1 - tolerance)
        return self.sign * self.value(trial, 0, rung) > limit


class VizierMedianOracle(StoppingOracle):
    def average(self, trial, rung):
        seen = [
            Fraction(self.sign * self.value(trial, 0, r))
            for r in range(rung + 1)
            if self.recorded(trial, 0, r) and finite(self.value(trial, 0, r))
        ]
        return float(sum(seen) / len(seen)) if seen else math.inf

    def others(self, trial, rung):
        last = len(self.ladders[0]) - 1
        at = [t for t, _ in self.at(0, rung) if t != trial]
        return [t for t in at if self.recorded(t, 0, last)] if self.policy.completed_only else at

    def enough(self, trial, rung):
        return len(self.others(trial, rung)) >= (self.policy.min_peers or 3)

    def stops(self, trial, rung):
        averages = [self.average(t, rung) for t in self.others(trial, rung)]
        if math.inf in sorted(averages)[(len(averages) - 1) // 2 : len(averages) // 2 + 1]:
            return False
        median = (
            float(statistics.median(Fraction(a) for a in averages if a < math.inf))
            if (math.inf not in averages)
            else float(self.middle(averages))
        )
        best = min(
            self.sign * self.value(trial, 0, r)
            for r in range(rung + 1)
            if self.recorded(trial, 0, r) and finite(self.value(trial, 0, r))
        )
        return best > median

    def middle(self, averages):
        ordered = sorted(averages)
        two = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
        return (Fraction(two[0]) + Fraction(two[1])) / 2


class RunningMedianOracle(VizierMedianOracle):
    def enough(self, trial, rung):
        return len(self.at(0, rung)) > (self.policy.min_peers or 4)

    def stops(self, trial, rung):
        """Whether more than half of all averages at the rung are strictly better."""
        averages = [self.average(t, rung) for t, _ in self.at(0, rung)]
        mine = self.average(trial, rung)
        return sum(average < mine for average in averages) > len(averages) / 2
