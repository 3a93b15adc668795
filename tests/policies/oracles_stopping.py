# ruff: noqa: ARG002  (one signature for all)
"""Stopping rules by their definitions: medians, and extrapolated learning curves."""

import math
import statistics
from fractions import Fraction

import numpy as np
from oracle import Oracle, finite
from scipy import stats


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
        """The seed: `med = sorted(hist)[len(hist) // 2]`, and `l > med * 1.05`."""
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
        """More than half of all averages there are strictly better."""
        averages = [self.average(t, rung) for t, _ in self.at(0, rung)]
        mine = self.average(trial, rung)
        return sum(average < mine for average in averages) > len(averages) / 2


class LearningCurveOracle(StoppingOracle):
    """The same mathematics by other means: each shape is a regression of its own, solved as a linear system."""

    SHAPES = (
        *(lambda x, c=c: x**-c for c in (0.1, 0.25, 0.5, 1.0, 2.0)),
        *(lambda x, c=c: math.exp(-x / c) for c in (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)),
        lambda x: -x,
    )
    probability = None

    def points(self, trial):
        seen = {}
        for rung in range(len(self.ladders[0])):
            if self.recorded(trial, 0, rung) and finite(self.value(trial, 0, rung)):
                seen.setdefault(self.steps[trial, rung], self.sign * self.value(trial, 0, rung))
        return sorted(seen.items())

    def to_beat(self, trial):
        last = len(self.ladders[0]) - 1
        completed = [self.sign * v for _, v in self.at(0, last) if finite(v)]
        if completed:
            return min(completed)
        seen = [
            self.sign * v for rung in range(last + 1) for t, v in self.at(0, rung) if t != trial and finite(v)
        ]
        return min(seen, default=None)

    def enough(self, trial, rung):
        if self.to_beat(trial) is None:
            return False
        known = len(self.points(trial)) >= self.policy.min_points
        return known or not finite(self.value(trial, 0, rung))

    def stops(self, trial, rung):
        best = self.to_beat(trial)
        parts = self.from_curve(self.points(trial))
        peers = self.from_peers(trial, rung)
        if peers:
            count, part = peers
            share = count / (count + 3)
            parts = [(w * (1 - share), *rest) for w, *rest in parts] + [(share, *part)]
        with np.errstate(over="ignore"):  # a quotient beyond the floats is certainty
            self.probability = sum(
                weight
                * (
                    stats.t.cdf((best - place) / scale, freedom)
                    if scale
                    else 0.5 * (1 + np.sign(best - place))
                )
                for weight, place, scale, freedom in parts
            )
        return self.probability < self.policy.threshold

    def from_curve(self, points):
        horizon = self.ladders[0][-1]
        x = np.array([step / horizon for step, _ in points])
        y = np.array([value for _, value in points])
        unit = np.abs(y).max() or 1.0
        width = ((y.max() / unit) - (y.min() / unit)) or 1e-3
        z = (y / unit - y[-1] / unit) / width
        near = np.diag((x / x[-1]) ** 2)
        shape = 1 + np.trace(near) / 2
        found = []
        for function in self.SHAPES:
            raw = np.array([function(v) for v in x])
            phi = (raw - function(1.0)) / (raw[0] - function(1.0))
            design = np.column_stack([np.ones(len(x)), phi])
            prior = 0.01 * np.eye(2)
            start = np.array([0.0, z[0]])
            precision = design.T @ near @ design + prior
            mean = np.linalg.solve(precision, design.T @ near @ z + prior @ start)
            rest = z @ near @ z + start @ prior @ start - mean @ precision @ mean
            rate = 0.002 + max(rest, 0.0) / 2
            variance = rate / shape * (1 + np.linalg.inv(precision)[0, 0])
            variance += (0.5 * mean[0]) ** 2 + (0.2 * (1 - x[-1])) ** 2
            evidence = -0.5 * math.log(np.linalg.det(precision)) - shape * math.log(rate)
            found.append(
                (evidence, y[-1] + unit * width * mean[0], unit * width * math.sqrt(variance), 2 * shape)
            )
        most = max(evidence for evidence, *_ in found)
        total = sum(math.exp(evidence - most) for evidence, *_ in found)
        return [(math.exp(evidence - most) / total, *rest) for evidence, *rest in found]

    def from_peers(self, trial, rung):
        last = len(self.ladders[0]) - 1
        pairs = [
            (self.sign * self.value(t, 0, rung), self.sign * v)
            for t, v in self.at(0, last)
            if finite(v) and finite(self.value(t, 0, rung))
        ]
        if len(pairs) < 3:
            return None
        here = self.sign * self.value(trial, 0, rung)
        unit = max(max(abs(a), abs(b)) for a, b in pairs)
        unit = max(unit, abs(here)) or 1.0
        x = np.array([a / unit for a, _ in pairs])
        y = np.array([b / unit for _, b in pairs])
        u, g = x - x.mean(), y - y.mean()
        lean = max((u**2).mean(), 1e-12)
        slope = (u @ g + lean) / (u @ u + lean)
        rest = ((g - slope * u) ** 2).sum() + lean * (slope - 1) ** 2
        shape = 1 + (len(x) - 1) / 2
        rate = 0.01 * max((g**2).mean(), 1e-12) + rest / 2
        ahead = here / unit - x.mean()
        variance = rate / shape * (1 + 1 / len(x) + ahead**2 / (u @ u + lean))
        return len(x), (unit * (y.mean() + slope * ahead), unit * math.sqrt(variance), 2 * shape)
