"""Drives policies in the tests: specs, results, and the histories that the scheduler would produce."""

from collections import Counter
from collections.abc import Iterable

from headrace.spec import AshaPolicy, FloatDomain, Goal, Objective, RandomSampler, StudySpec
from headrace.spec import Policy as PolicySpec
from headrace.spec import Sampler as SamplerSpec
from headrace_services.scheduler.core.policies import Action, Policy, RungCost, RungResult, make_policy

PROMOTION = AshaPolicy(variant="promotion")
STOPPING = AshaPolicy(variant="stopping")


def study(
    policy: PolicySpec = PROMOTION,
    *,
    goal: str = "minimize",
    max_steps: int = 243,
    trials: int = 1000,
    sampler: SamplerSpec | None = None,
) -> StudySpec:
    return StudySpec(
        objective=Objective(metric="loss", goal=Goal(goal)),
        space={"x": FloatDomain(low=0, high=1)},
        policy=policy,
        sampler=sampler or RandomSampler(),
        max_trials=trials,
        max_steps=max_steps,
    )


class Driver:
    """Feeds a policy as the engine does, and keeps the calls for a replay."""

    def __init__(self, spec: StudySpec) -> None:
        self.spec = spec
        self.policy: Policy = make_policy(spec)
        self.arrivals: Counter[tuple[int, int]] = Counter()
        self.calls: list[tuple] = []
        self.trials: set[int] = set()

    def join(self, *trials: int, bracket: int = 0) -> None:
        """Create trials. `record` creates those that do not exist yet."""
        for trial in trials:
            self.trials.add(trial)
            self.call("joined", trial, bracket, {"x": 0.5})

    def record(
        self,
        trial: int,
        value: float | None,
        *,
        bracket: int = 0,
        rung: int = 0,
        step: int | None = None,
        cost: RungCost | None = None,
    ) -> RungResult:
        if trial not in self.trials:
            self.join(trial, bracket=bracket)
        self.arrivals[bracket, rung] += 1
        milestone = self.policy.ladder(bracket)[rung]
        result = RungResult(
            trial=trial,
            bracket=bracket,
            rung=rung,
            milestone=milestone,
            step=step or milestone,
            value=value,
            arrival=self.arrivals[bracket, rung],
            cost=cost,
        )
        self.call("record", result)
        return result

    def call(self, name: str, *args: object) -> None:
        self.calls.append((name, args))
        getattr(self.policy, name)(*args)

    def curve(self, trial: int, values: Iterable[float | None], *, bracket: int = 0) -> None:
        """Record a trial at the first rungs, one after the other."""
        for rung, value in enumerate(values):
            self.record(trial, value, bracket=bracket, rung=rung)

    def promote_all(self, *, more: bool = True) -> list[int]:
        """Commit promotions until none is left; returns the promoted trials."""
        trials = []
        while (promotion := self.policy.next_promotion(more=more)) is not None:
            self.call("promoted", promotion.trial, promotion.bracket, promotion.rung)
            trials.append(promotion.trial)
        return trials

    def replayed(self) -> Policy:
        """A fresh policy that received the same calls."""
        policy = make_policy(self.spec)
        for name, args in self.calls:
            getattr(policy, name)(*args)
        return policy


def kept_at_first_rung(spec: StudySpec, values: Iterable[float | None]) -> list[int]:
    """The trials that pass rung 0 when results arrive one after the other and every promotion is taken."""
    driver = Driver(spec)
    kept = []
    for trial, value in enumerate(values):
        driver.record(trial, value)
        if driver.policy.verdict(trial, 0, 0).action is Action.CONTINUE:
            kept.append(trial)
            driver.call("promoted", trial, 0, 0)
        kept += driver.promote_all()
    return kept
