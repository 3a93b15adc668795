# ruff: noqa: ARG002  (one signature for all)
"""What each policy must decide, written from its definition: everything is computed again at every question.

Nothing here is shared with the policies but the names of the folds. Lists, sorts and recursion; no cleverness.
"""

import math
import statistics
from fractions import Fraction

import numpy as np
from scipy import stats


def finite(value):
    return value is not None and math.isfinite(value)


class Oracle:
    """The history so far."""

    def __init__(self, spec, ladders):
        self.spec, self.policy, self.ladders = spec, spec.policy, ladders
        self.sign = -1.0 if spec.objective.goal == "maximize" else 1.0
        self.trials = []  # (trial, bracket) in the order of joining
        self.results = {}  # (bracket, rung) -> [(trial, value)] in order of arrival
        self.steps = {}  # (trial, rung) -> step
        self.past = set()  # (trial, rung)
        self.over = set()

    def joined(self, trial, bracket):
        self.trials.append((trial, bracket))

    def record(self, trial, bracket, rung, value, step, cost=None):
        self.results.setdefault((bracket, rung), []).append((trial, value))
        self.steps[trial, rung] = step
        self.past |= {(trial, lower) for lower in range(rung)}

    def promoted(self, trial, bracket, rung):
        self.past.add((trial, rung))

    def withdraw(self, trial):
        self.over.add(trial)

    def at(self, bracket, rung):
        return self.results.get((bracket, rung), [])

    def value(self, trial, bracket, rung):
        return dict(self.at(bracket, rung))[trial]

    def recorded(self, trial, bracket, rung):
        return trial in dict(self.at(bracket, rung))

    def ranked(self, bracket, rung, only=None):
        """The results from the best: finite ones by value, then the others; ties by arrival."""
        entries = [e for e in self.at(bracket, rung) if only is None or e[0] in only]
        return sorted(entries, key=lambda e: (0, self.sign * e[1]) if finite(e[1]) else (1, 0.0))

    def waits(self, trial, bracket, rung):
        """Whether a recorded trial may still be given something at the rung."""
        known = finite(self.value(trial, bracket, rung)) and trial not in self.over
        return known and (trial, rung) not in self.past

    def scan(self):
        """All rungs but the last ones, the highest milestone first, then by bracket."""
        places = [
            (-ladder[rung], bracket, rung)
            for bracket, ladder in enumerate(self.ladders)
            for rung in range(len(ladder) - 1)
        ]
        return [(bracket, rung) for _, bracket, rung in sorted(places)]

    def promotion(self, trial, bracket, rung):
        return trial, bracket, rung, self.ladders[bracket][rung + 1]

    def next_promotion(self, more):
        return None

    def verdict(self, trial, bracket, rung, more):
        raise NotImplementedError


class RunAllOracle(Oracle):
    def verdict(self, trial, bracket, rung, more):
        return "CONTINUE"


class AshaPromotionOracle(Oracle):
    chance = None

    def reach(self):
        return self.scan()

    def last_rungs(self):
        return [(bracket, len(ladder) - 1) for bracket, ladder in enumerate(self.ladders)]

    def kept(self, bracket, rung):
        return len(self.at(bracket, rung)) // self.policy.eta

    def in_training(self):
        for trial, bracket in self.trials:
            rungs = [r for r in range(len(self.ladders[bracket])) if self.recorded(trial, bracket, r)]
            if trial not in self.over and (not rungs or (trial, max(rungs)) in self.past):
                return True
        return False

    def finished(self):
        return any(finite(value) for place in self.last_rungs() for _, value in self.at(*place))

    def promoted(self, trial, bracket, rung):
        above = any(self.recorded(trial, bracket, r) for r in range(rung + 1, len(self.ladders[bracket])))
        if (trial, rung) not in self.past and not above:
            best = [t for t, _ in self.ranked(bracket, rung)][: self.kept(bracket, rung)]
            if trial not in best:
                self.chance = trial
        super().promoted(trial, bracket, rung)

    def next_promotion(self, more):
        for bracket, rung in self.reach():
            for trial, _ in self.ranked(bracket, rung)[: self.kept(bracket, rung)]:
                if self.waits(trial, bracket, rung):
                    return self.promotion(trial, bracket, rung)
        if more or self.in_training() or self.finished() or self.chance in self.over:
            return None
        for bracket, rung in self.reach():
            waiting = [t for t, _ in self.ranked(bracket, rung) if self.waits(t, bracket, rung)]
            if waiting:
                return self.promotion(waiting[0], bracket, rung)
        return None

    def verdict(self, trial, bracket, rung, more):
        return "CONTINUE" if (trial, rung) in self.past else "PAUSE"


class AshaStoppingOracle(Oracle):
    def verdict(self, trial, bracket, rung, more):
        """No more than max(1, ⌊n/η⌋) - 1 results are strictly better."""
        mine = self.value(trial, bracket, rung)
        if not finite(mine):
            return "STOP"
        better = [v for _, v in self.at(bracket, rung) if finite(v) and self.sign * v < self.sign * mine]
        kept = max(1, len(self.at(bracket, rung)) // self.policy.eta)
        return "CONTINUE" if len(better) < kept else "STOP"


class SynchronousOracle(Oracle):
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

    def to_go(self, cohort, bracket, rung):
        """Who gets the free places of a decided rung, the best first."""
        waiting = [t for t, _ in self.ranked(bracket, rung, only=set(cohort)) if self.waits(t, bracket, rung)]
        return waiting[: self.places(cohort, bracket, rung)]

    def next_promotion(self, more):
        for bracket, rung in self.scan():
            for cohort in self.cohorts(bracket):
                if self.decided(cohort, bracket, rung, more) and self.to_go(cohort, bracket, rung):
                    return self.promotion(self.to_go(cohort, bracket, rung)[0], bracket, rung)
        return None

    def verdict(self, trial, bracket, rung, more):
        if (trial, rung) in self.past:
            return "CONTINUE"
        cohort = next(c for c in self.cohorts(bracket) if trial in c)
        goes = self.decided(cohort, bracket, rung, more) and trial in self.to_go(cohort, bracket, rung)
        return "CONTINUE" if goes else "PAUSE"


class PashaOracle(AshaPromotionOracle):
    def __init__(self, spec, ladders):
        super().__init__(spec, ladders)
        self.top = min(1, len(ladders[0]) - 1)
        self.epsilon = self.policy.epsilon or 0.0

    def reach(self):
        return [(0, rung) for rung in range(self.top - 1, -1, -1)]

    def last_rungs(self):
        return [(0, self.top)]

    def record(self, trial, bracket, rung, value, step, cost=None):
        super().record(trial, bracket, rung, value, step)
        while rung == self.top < len(self.ladders[0]) - 1:
            if self.policy.epsilon is None:
                self.estimate()
            if self.agree():
                return
            self.top += 1
            if not self.at(0, self.top):
                return
            rung = self.top

    def curve(self, trial):
        return [self.value(trial, 0, rung) for rung in range(self.top + 1)]

    def estimate(self):
        distances = []
        there = [t for t, _ in self.at(0, self.top)]
        for one in there:
            for other in there:
                if one < other and self.crossed_back(self.curve(one), self.curve(other)):
                    gap = abs(self.curve(one)[-1] - self.curve(other)[-1])
                    distances += [gap] if math.isfinite(gap) else []
        if distances:
            self.epsilon = float(np.percentile(distances, 90))

    def crossed_back(self, one, other):
        """r_j > r_k > r_l with the order at r_j, the opposite at r_k, and the same again at r_l."""

        def order(rung):
            a, b = one[rung], other[rung]
            return (a > b) - (a < b) if finite(a) and finite(b) else 0

        j = len(one) - 1
        return any(
            order(j) * order(k) < 0 and order(j) * order(low) > 0 for k in range(j) for low in range(k)
        )

    def agree(self):
        above = self.ranked(0, self.top)
        below = self.ranked(0, self.top - 1, only={t for t, _ in above})
        for (trial, _), (_, v) in zip(above, below, strict=True):
            u = self.value(trial, 0, self.top - 1)
            if finite(u) != finite(v) or (finite(u) and abs(u - v) > self.epsilon):
                return False
        return True


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


class MedianOracle(StoppingOracle):
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
        return len(self.others(trial, rung)) >= self.policy.min_peers

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


class PricedOracle(AshaPromotionOracle):
    """ASHA's promotion, and the sum for each pause."""

    def __init__(self, spec, ladders):
        super().__init__(spec, ladders)
        self.costs = {}

    def record(self, trial, bracket, rung, value, step, cost=None):
        super().record(trial, bracket, rung, value, step)
        self.costs[trial] = cost

    def verdict(self, trial, bracket, rung, more):
        plain = super().verdict(trial, bracket, rung, more)
        cost = self.costs[trial]
        if plain != "PAUSE" or not finite(self.value(trial, bracket, rung)):
            return plain
        next_ = self.next_promotion(more)
        if (next_ and next_[0] == trial) or cost is None or cost.step_s is None or cost.write_s is None:
            return plain
        fresh = [
            t
            for t, b in self.trials
            if t not in self.over and not any(self.recorded(t, b, r) for r in range(len(self.ladders[b])))
        ]
        seconds = cost.step_s * (self.ladders[bracket][rung + 1] - self.steps[trial, rung])
        order = [t for t, _ in self.ranked(bracket, rung)]
        rank = order.index(trial) + 1
        likely = stats.beta.cdf(1 / self.policy.eta, rank, len(order) + 1 - rank)
        price = cost.write_s + (cost.write_s if cost.read_s is None else cost.read_s)
        rest = cost.step_s * (self.ladders[bracket][-1] - self.steps[trial, rung])
        to_the_end, a_pause_later = (1 - likely) * rest, (1 - likely) * (seconds + price)
        worth = min(to_the_end, a_pause_later) if next_ or more or fresh else 0.0
        return "PAUSE" if worth > price else "CONTINUE"


class PbtOracle(Oracle):
    """Population-based training: who goes on next, whom it may copy, and with which parameters."""

    def __init__(self, spec, ladders):
        super().__init__(spec, ladders)
        self.saved = {}  # (trial, rung) -> whether with a checkpoint
        self.params = {}  # trial -> [(rung from which on, parameters)]

    def verdict(self, trial, bracket, rung, more):
        return "PAUSE"

    def next_promotion(self, more):
        waiting = []
        for rung in range(len(self.ladders[0]) - 1):
            for arrival, (trial, _) in enumerate(self.at(0, rung)):
                if trial not in self.over and (trial, rung) not in self.past:
                    waiting.append((rung, arrival, trial))
        if not waiting:
            return None
        rung, _, trial = min(waiting)
        return self.promotion(trial, 0, rung)

    def donors(self, trial, rung):
        """Whom a member may copy at a rung; nobody: it keeps its own state."""
        order = [name for name, _ in self.ranked(0, rung)]
        traded = math.floor(Fraction(str(self.policy.quantile)) * len(order))
        good = finite(self.value(trial, 0, rung))
        if good and trial not in order[len(order) - traded :]:
            return set()
        best = order[: max(1, traded)]
        return {
            name
            for name in best
            if name != trial and self.saved[name, rung] and finite(self.value(name, 0, rung))
        }

    def params_at(self, trial, rung):
        """The parameters with which a member came to a rung."""
        return [params for since, params in self.params[trial] if since <= rung][-1]

    def may_become(self, before, after):
        """Whether a perturbation or a draw of the one parameter leads from one value to the other."""
        domain = self.spec.space["x"]
        moved = {min(max(before["x"] * factor, domain.low), domain.high) for factor in self.policy.factors}
        return after["x"] in moved or (
            self.policy.resample_probability and domain.low <= after["x"] <= domain.high
        )


def oracle_of(spec, ladders):
    """The oracle of a study's policy."""
    policy = spec.policy
    if getattr(policy, "price_pauses", False):
        return PricedOracle(spec, ladders)
    match policy.kind:
        case "run_all":
            return RunAllOracle(spec, ladders)
        case "asha":
            promotes = policy.variant == "promotion"
            return (AshaPromotionOracle if promotes else AshaStoppingOracle)(spec, ladders)
        case "successive_halving" | "hyperband":
            return SynchronousOracle(spec, ladders)
        case "pasha":
            return PashaOracle(spec, ladders)
        case "median":
            return MedianOracle(spec, ladders)
        case "rung_median":
            return RungMedianOracle(spec, ladders)
        case "learning_curve":
            return LearningCurveOracle(spec, ladders)
        case "pbt":
            return PbtOracle(spec, ladders)
    raise ValueError(f"no oracle of {policy.kind}")
