# ruff: noqa: ARG002  (one signature for all)
"""What all oracles share: the history so far, and queries on it."""

import math


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

    def finished_early(self, trial):
        pass

    def withdraw(self, trial):
        self.over.add(trial)

    def at(self, bracket, rung):
        return self.results.get((bracket, rung), [])

    def value(self, trial, bracket, rung):
        return dict(self.at(bracket, rung))[trial]

    def recorded(self, trial, bracket, rung):
        return trial in dict(self.at(bracket, rung))

    def ranked(self, bracket, rung, only=None):
        """The results, best first: finite ones by value, then the others; ties by arrival."""
        entries = [e for e in self.at(bracket, rung) if only is None or e[0] in only]
        return sorted(entries, key=lambda e: (0, self.sign * e[1]) if finite(e[1]) else (1, 0.0))

    def waits(self, trial, bracket, rung):
        """Whether a recorded trial may still be promoted at the rung."""
        known = finite(self.value(trial, bracket, rung)) and trial not in self.over
        return known and (trial, rung) not in self.past

    def scan(self):
        """All rungs except the last ones, the highest milestone first, then by bracket."""
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
