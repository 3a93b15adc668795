# ruff: noqa: ARG002  (one signature for all)
"""ASHA by its definition: promotion, stopping, with a growing ladder (PASHA), and with pauses that have a price."""

import math

import numpy as np
from oracle import Oracle, finite
from scipy import stats


class AshaPromotionOracle(Oracle):
    chance = None

    def __init__(self, spec, ladders):
        super().__init__(spec, ladders)
        self.ended_early = set()

    def reach(self):
        return self.scan()

    def last_rungs(self):
        return [(bracket, len(ladder) - 1) for bracket, ladder in enumerate(self.ladders)]

    def kept(self, bracket, rung):
        return len(self.at(bracket, rung)) // self.policy.eta

    def in_training(self):
        return any(self.on_its_way(trial, bracket) for trial, bracket in self.trials)

    def finished(self):
        return any(finite(value) for place in self.last_rungs() for _, value in self.at(*place))

    def no_more_chances(self, milestone):
        return self.chance in self.ended_early

    def finished_early(self, trial):
        if any(one == trial and self.on_its_way(trial, bracket) for one, bracket in self.trials):
            self.ended_early.add(trial)

    def on_its_way(self, trial, bracket):
        """Whether a trial trains up to a rung."""
        rungs = [r for r in range(len(self.ladders[bracket])) if self.recorded(trial, bracket, r)]
        return trial not in self.over and (not rungs or (trial, max(rungs)) in self.past)

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
        if more or self.in_training() or self.finished():
            return None
        for bracket, rung in self.reach():
            waiting = [t for t, _ in self.ranked(bracket, rung) if self.waits(t, bracket, rung)]
            if waiting and self.no_more_chances(self.ladders[bracket][rung]):
                return None
            if waiting:
                return self.promotion(waiting[0], bracket, rung)
        return None

    def verdict(self, trial, bracket, rung, more):
        return "CONTINUE" if (trial, rung) in self.past else "PAUSE"


class HedgedOracle(AshaPromotionOracle):
    """Optimistic arrival and effort: a trial that arrives among the best continues, and waiting trials use up a
    share."""

    def __init__(self, spec, ladders):
        super().__init__(spec, ladders)
        self.optimistic = self.policy.arrival == "optimistic"
        self.by_effort = []
        self.ended_beyond = []
        self.ended_towards = {}

    def trains(self, trial, bracket):
        """The milestone to which a trial trains; None if it no longer trains."""
        reached = [r for r in range(len(self.ladders[bracket])) if self.recorded(trial, bracket, r)]
        if trial in self.over or (reached and (trial, max(reached)) not in self.past):
            return None
        ladder = self.ladders[bracket]
        return ladder[min(max(reached) + 1, len(ladder) - 1)] if reached else ladder[0]

    def withdraw(self, trial):
        for one, bracket in self.trials:
            if one == trial and self.trains(trial, bracket) is not None:
                ladder = self.ladders[bracket]
                rungs = [r for r in range(len(ladder)) if self.recorded(trial, bracket, r)]
                self.ended_beyond += [ladder[r] for r in rungs if trial in self.ended_early]
                self.ended_towards[trial] = self.trains(trial, bracket)
        super().withdraw(trial)

    def no_more_chances(self, milestone):
        """With effort: whether a trial ended by itself after this milestone or a later one."""
        if not self.policy.effort:
            return super().no_more_chances(milestone)
        return any(ended >= milestone for ended in self.ended_beyond)

    def others_train(self):
        """Whether any trial trains that effort did not send on."""
        sent = dict(self.by_effort)
        return any(
            self.trains(trial, bracket) is not None
            and not (trial in sent and not self.recorded(trial, bracket, sent[trial] + 1))
            for trial, bracket in self.trials
        )

    def committed(self):
        """The sum over trials of the steps to the last rung, or to the next one if the trial trains or ended on
        its way there."""
        total = 0
        for trial, bracket in self.trials:
            ladder = self.ladders[bracket]
            reached = [ladder[r] for r in range(len(ladder)) if self.recorded(trial, bracket, r)]
            total += max([0, *reached, self.trains(trial, bracket) or 0, self.ended_towards.get(trial, 0)])
        return total

    def promoted(self, trial, bracket, rung):
        before, chance = (trial, rung) in self.past, self.chance
        above = any(self.recorded(trial, bracket, r) for r in range(rung + 1, len(self.ladders[bracket])))
        best = [t for t, _ in self.ranked(bracket, rung)][: self.kept(bracket, rung)]
        early = self.optimistic and len(self.at(bracket, rung)) < self.policy.eta
        super().promoted(trial, bracket, rung)
        if early:
            self.chance = chance
        elif not before and not above and trial not in best and trial not in self.over:
            self.by_effort.append((trial, rung))

    def verdict(self, trial, bracket, rung, more):
        plain = super().verdict(trial, bracket, rung, more)
        if plain != "PAUSE" or not self.optimistic or not finite(self.value(trial, bracket, rung)):
            return plain
        best = [t for t, _ in self.ranked(bracket, rung)][: self.kept(bracket, rung)]
        return "CONTINUE" if trial in best or len(self.at(bracket, rung)) < self.policy.eta else "PAUSE"

    def next_promotion(self, more):
        for bracket, rung in self.reach():
            for trial, _ in self.ranked(bracket, rung)[: self.kept(bracket, rung)]:
                if self.waits(trial, bracket, rung):
                    return self.promotion(trial, bracket, rung)
        if more:
            return None
        share = self.policy.effort * len(self.trials) * self.spec.max_steps
        fits = []
        oldest = len(self.by_effort) % 2 == 1
        for bracket, rung in self.reach():
            ladder, order = self.ladders[bracket], [t for t, _ in self.ranked(bracket, rung)]
            waiting = [t for t in order if self.waits(t, bracket, rung)]
            if waiting and self.committed() + ladder[rung + 1] - ladder[rung] <= share:
                chosen = min(waiting) if oldest else waiting[0]
                quantile = (order.index(chosen) + 1) / len(order)
                fits.append((chosen if oldest else quantile, chosen, bracket, rung))
        if fits and self.policy.effort and not self.others_train():
            return self.promotion(*min(fits, key=lambda one: one[0])[1:])
        return super().next_promotion(more)


class AshaStoppingOracle(Oracle):
    def verdict(self, trial, bracket, rung, more):
        """STOP unless at most max(1, ⌊n/η⌋) - 1 results are strictly better."""
        mine = self.value(trial, bracket, rung)
        if not finite(mine):
            return "STOP"
        better = [v for _, v in self.at(bracket, rung) if finite(v) and self.sign * v < self.sign * mine]
        kept = max(1, len(self.at(bracket, rung)) // self.policy.eta)
        return "CONTINUE" if len(better) < kept else "STOP"


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


class PricedOracle(HedgedOracle):
    """ASHA's promotion, and the calculation for each pause."""

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
