"""Learning-curve stopping: a trial that is unlikely to end up best is stopped.

At each look the trial's curve is extrapolated to the full budget, see `forecast`. It is stopped when the probability
that it ends strictly better than the best completed trial is below `threshold`; as long as none has completed, than
the best value that any other trial has shown. At least `min_points` finite values, at different steps, must be known
of the curve, and there must be something to beat.

The peers of a forecast are the latest 256 completed trials, so that a look costs the same however many trials there
are.
"""

from collections import deque
from itertools import islice

from sortedcontainers import SortedList

from headrace.spec import LearningCurvePolicy, StudySpec
from headrace_services.scheduler.core.policies import forecast
from headrace_services.scheduler.core.policies.protocol import Action, RungResult, Verdict
from headrace_services.scheduler.core.policies.sentences import figure, figures
from headrace_services.scheduler.core.policies.stopping import StoppingRule, percent

MAX_PEERS = 256


def make_learning_curve(spec: StudySpec, policy: LearningCurvePolicy) -> "LearningCurve":
    """The rule that the spec describes."""
    return LearningCurve(
        ladder=spec.rungs(),
        grace=policy.grace(spec.budgets[0]),
        maximize=spec.maximizes(),
        threshold=policy.threshold,
        min_points=policy.min_points,
    )


class LearningCurve(StoppingRule):
    """The probability to end up best against a threshold. Values inside are signed: smaller is better."""

    rule = "learning_curve"

    def __init__(
        self, *, ladder: tuple[int, ...], grace: int, maximize: bool, threshold: float, min_points: int
    ) -> None:
        super().__init__(ladder=ladder, grace=grace, maximize=maximize)
        self._threshold = threshold
        self._min_points = max(min_points, 2)
        self._curves: dict[int, dict[int, float]] = {}
        """Of each trial, the finite values by step."""
        self._at_rung: dict[int, dict[int, float]] = {}
        """Of each trial, the finite values by rung."""
        self._best_seen: dict[int, float] = {}
        self._seen: SortedList = SortedList()
        """(best value, trial), the best first."""
        self._best_completed: float | None = None
        self._peers: list[deque[tuple[float, float]]] = [deque(maxlen=MAX_PEERS) for _ in ladder]
        """At each rung, of completed trials, the value there and the final one."""

    def _fold(self, result: RungResult) -> None:
        if result.value is None or not result.finite:
            return
        value = self._sign * result.value
        self._curves.setdefault(result.trial, {}).setdefault(result.step, value)
        here = self._at_rung.setdefault(result.trial, {})
        here[result.rung] = value
        before = self._best_seen.get(result.trial)
        if before is None or value < before:
            if before is not None:
                self._seen.remove((before, result.trial))
            self._best_seen[result.trial] = value
            self._seen.add((value, result.trial))
        if result.rung == len(self._ladder) - 1:
            if self._best_completed is None or value < self._best_completed:
                self._best_completed = value
            for rung, earlier in here.items():
                self._peers[rung].append((earlier, value))

    def _lack(self, result: RungResult) -> str | None:
        points = len(self._curves.get(result.trial, ()))
        if self._to_beat(result.trial) is None:
            return "there is no other trial to beat yet"
        # A diverged trial has no curve to wait for.
        if result.finite and points < self._min_points:
            return f"{points} of {self._min_points} points of its curve are known"
        return None

    def _judge(self, result: RungResult) -> Verdict:
        best = self._to_beat(result.trial)
        assert best is not None
        probability, expected, spread = self._forecast(result, best)
        stops = probability < self._threshold
        which = "any trial has shown" if self._best_completed is None else "of a completed trial"
        place, goal = figures(expected, self._sign * best)
        judged = "below" if stops else "not below"
        said = (
            f"its curve leads to {place} ± {figure(spread)} at {self._ladder[-1]} steps, which beats {goal}, the best"
            f" value {which}, with a probability of {percent(probability)}, {judged} {percent(self._threshold)}:"
            f" {'it stops' if stops else 'it goes on'}"
        )
        return self._verdict(
            result,
            Action.STOP if stops else Action.CONTINUE,
            said,
            cutoff=self._sign * best,
            forecast=(expected, spread, probability),
        )

    def _to_beat(self, trial: int) -> float | None:
        if self._best_completed is not None:
            return self._best_completed
        return next((value for value, other in islice(self._seen, 2) if other != trial), None)

    def _forecast(self, result: RungResult, best: float) -> tuple[float, float, float]:
        """The probability to end below `best`; the end that is expected, in the user's sign; and its spread."""
        assert result.value is not None
        curve = self._curves[result.trial]
        steps = sorted(curve)
        own = forecast.of_curve(steps, [curve[step] for step in steps], self._ladder[-1])
        pairs = self._peers[result.rung]
        peers = forecast.of_peers(
            [now for now, _ in pairs], [final for _, final in pairs], self._sign * result.value
        )
        both = forecast.mixed(own, peers, len(pairs))
        return both.probability_below(best), self._sign * both.expected, both.spread
