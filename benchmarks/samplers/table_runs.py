"""Tuning on a table: virtual workers, recorded runs, and an optimizer that says what to run next.

The proposal's nearest unused row is run, and the optimizer receives that row's configuration. Every evaluation
costs the same: a full run costs 1. A value that is not finite counts as the worst finite one of the table, for
everybody.
"""

import heapq
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from headrace.spec import StudySpec
from headrace_services.scheduler.core.policies import Action, RungResult, make_policy
from headrace_services.scheduler.samplers import Params, Result, make_learner, make_sampler, pooled_from
from headrace_services.scheduler.samplers.history import EVERY_RUNG, FIRST_RESULT, choose_level
from headrace_services.scheduler.simulator.recorded import read_curves

RANGES = {
    "learning_rate": (1e-8, 10.0),
    "one_minus_beta1": (1e-4, 1.0),
    "one_minus_beta2": (1e-6, 1.0),
    "epsilon": (1e-10, 1e3),
    "l1": (1e-8, 10.0),
    "l2": (1e-8, 10.0),
    "linear_decay": (1e-7, 1e-4),
    "exponential_decay": (1e-6, 1e-3),
}
"""The ranges of TaskSet's Adam with eight parameters, all sampled on a log scale (Metz et al., arXiv 2002.11887,
appendix)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Recorded runs of one task; smaller values are better."""

    name: str
    rows: tuple[Params, ...]
    places: np.ndarray
    """Each row's position in the unit cube."""
    values: np.ndarray
    """By row and evaluation."""

    @property
    def steps(self) -> int:
        """The evaluations of a full run."""
        return int(self.values.shape[1])

    @property
    def best(self) -> float:
        """The best value of any run at any evaluation."""
        return float(self.values.min())

    @property
    def scale(self) -> float:
        """The distance of the median run from it."""
        return float(np.median(self.values.min(axis=1))) - self.best

    def nearest(self, params: Params, used: np.ndarray) -> int:
        """The unused row closest to a configuration."""
        gaps = ((self.places - _place(params)) ** 2).sum(axis=1)
        return int(np.where(used, np.inf, gaps).argmin())


def read_table(path: Path) -> Table:
    """A TaskSet file. The evaluation before the first training step is left out: it carries no information."""
    file = read_curves(path)
    rows = [_named(curve.params) for curve in file.curves]
    raw = np.array([[math.nan if v is None else v for v in curve.values[1:]] for curve in file.curves])
    values = np.where(np.isfinite(raw), raw, raw[np.isfinite(raw)].max())
    return Table(
        name=path.name.partition(".")[0],
        rows=tuple(rows),
        places=np.array([_place(row) for row in rows]),
        values=values,
    )


def _named(params: Params) -> Params:
    found: Params = {}
    for name, (low, high) in RANGES.items():
        told = params.get(name)
        value = 1.0 - float(params[name.removeprefix("one_minus_")]) if told is None else float(told)
        found[name] = min(max(value, low), high)
    return found


def _place(params: Params) -> np.ndarray:
    return np.array(
        [math.log(float(params[name]) / low) / math.log(high / low) for name, (low, high) in RANGES.items()]
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a free worker should do: run a new configuration, or continue a waiting trial."""

    params: Params | None = None
    trial: int | None = None


class Side(Protocol):
    """An optimizer."""

    def order(self) -> Order | None:
        """What comes next; None if a worker must wait for a report."""
        ...

    def added(self, trial: int, params: Params) -> None:
        """The row that is run for the last new configuration, as this trial."""
        ...

    def report(self, trial: int, step: int, value: float) -> bool:
        """A value; returns whether the trial continues at once."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The result of a run."""

    trace: list[tuple[float, float]]
    """The cost in full runs at each improvement, and the normalised regret from then on."""
    proposals: int
    ms: float
    """Mean milliseconds of processor time per new configuration."""
    slowest_ms: float
    spent: float

    def at(self, cost: float) -> float:
        """The regret once that many full runs are paid for."""
        reached = [regret for spent, regret in self.trace if spent <= cost + 1e-9]
        return min(1.0, reached[-1]) if reached else 1.0


def play(table: Table, side: Side, *, workers: int, budget: float, limit_s: float = math.inf) -> Run:
    """Run an optimizer until the budget, in full runs, is spent, or the limit of real seconds is reached."""
    used = np.zeros(len(table.rows), dtype=bool)
    row_of: list[int] = []
    step_of: list[int] = []
    heap: list[tuple[int, int, int]] = []
    trace: list[tuple[float, float]] = []
    took: list[float] = []
    best, spent, now, free, ticks = math.inf, 0, 0, workers, 0
    begun = time.perf_counter()
    while True:
        while free:
            before = time.process_time()
            order = side.order()
            if order is None or (order.trial is None and used.all()):
                break
            trial = order.trial
            if trial is None:
                assert order.params is not None
                took.append(time.process_time() - before)
                trial = len(row_of)
                row_of.append(table.nearest(order.params, used))
                step_of.append(0)
                used[row_of[trial]] = True
                side.added(trial, table.rows[row_of[trial]])
            ticks += 1
            heapq.heappush(heap, (now + 1, ticks, trial))
            free -= 1
        if not heap or spent >= budget * table.steps or time.perf_counter() - begun > limit_s:
            break
        now, _, trial = heapq.heappop(heap)
        spent += 1
        step_of[trial] += 1
        value = float(table.values[row_of[trial], step_of[trial] - 1])
        if value < best:
            best = value
            trace.append((spent / table.steps, (best - table.best) / table.scale))
        if side.report(trial, step_of[trial], value) and step_of[trial] < table.steps:
            ticks += 1
            heapq.heappush(heap, (now + 1, ticks, trial))
        else:
            free += 1
    return Run(
        trace=trace,
        proposals=len(took),
        ms=1000 * float(np.mean(took)),
        slowest_ms=1000 * max(took),
        spent=spent / table.steps,
    )


def spec_of(table: Table, seed: int, sampler: dict[str, object], policy: dict[str, object]) -> StudySpec:
    """The study of one of our runs."""
    space = {
        name: {"type": "float", "low": low, "high": high, "log": True} for name, (low, high) in RANGES.items()
    }
    return StudySpec.model_validate(
        {
            "objective": {"metric": "value", "goal": "minimize"},
            "space": space,
            "sampler": sampler,
            "policy": policy,
            "max_trials": len(table.rows),
            "max_steps": table.steps,
            "seed": seed,
        }
    )


class Ours:
    """Our policy and our sampler, used as the service uses them.

    With `order`, the model gets the places of the trials in an order made of the results at all rungs, instead of
    the values at one rung.
    """

    def __init__(self, spec: StudySpec, *, order: "RungOrder | None" = None) -> None:
        self._spec = spec
        self._order = order
        self._policy = make_policy(spec)
        self._by_number = make_sampler(spec)
        self._learner = make_learner(spec)
        self._level = FIRST_RESULT
        self._at: dict[int, dict[int, float]] = {}
        """The values at each milestone, by trial, in the order of arrival."""
        self._params: dict[int, Params] = {}
        self._rung: dict[int, int] = {}
        self._step: dict[int, int] = {}
        self._trains: set[int] = set()
        self._startup = pooled_from(spec)
        self._all: list[Result] = []
        """At every rung, in the order of arrival."""

    def order(self) -> Order | None:
        promotion = self._policy.next_promotion(more=True)
        if promotion is not None:
            self._policy.promoted(promotion.trial, promotion.bracket, promotion.rung)
            self._trains.add(promotion.trial)
            return Order(trial=promotion.trial)
        number = len(self._params)
        if self._startup is None or number < self._startup:
            params = self._by_number.suggest(number)
            assert params is not None
            return Order(params=params)
        told, pending = self._basis()
        self._learner.learn(told)
        waiting = [self._params[trial] for trial in pending]
        return Order(params=self._learner.suggest(number, waiting).params)

    def _basis(self) -> tuple[list[Result], list[int]]:
        """What the model has yet to learn, and the trials whose results are outstanding."""
        if self._order is not None:
            places = {trial: place for place, trial in enumerate(self._order(self._at))}
            self._learner = make_learner(self._spec)
            told = [self._result(trial, float(places[trial])) for trial in sorted(places)]
            return told, sorted(self._trains - places.keys())
        level = choose_level(self._spec, [(level, len(found)) for level, found in self._at.items()])
        if level != self._level:
            self._learner, self._level = make_learner(self._spec), level
        if level == EVERY_RUNG:
            told = self._all[self._learner.learnt :]
            return told, [trial for trial in sorted(self._trains) if self._rung[trial] == 0]
        fresh = list(self._at.get(level, {}).items())[self._learner.learnt :]
        told = [self._result(trial, value) for trial, value in fresh]
        return told, [trial for trial in sorted(self._trains) if self._step[trial] < level]

    def _result(self, trial: int, value: float, level: int = FIRST_RESULT) -> Result:
        return Result.of(self._spec, self._params[trial], {"value": value}, level=level)

    def added(self, trial: int, params: Params) -> None:
        self._params[trial] = params
        self._rung[trial] = self._step[trial] = 0
        self._trains.add(trial)
        self._policy.joined(trial, self._policy.bracket(trial), params)

    def report(self, trial: int, step: int, value: float) -> bool:
        self._step[trial] = step
        bracket, rung = self._policy.bracket(trial), self._rung[trial]
        ladder = self._policy.ladder(bracket)
        if step < ladder[rung]:
            return True
        self._at.setdefault(ladder[rung], {})[trial] = value
        self._all.append(self._result(trial, value, ladder[rung]))
        self._rung[trial] += 1
        self._policy.record(
            RungResult(
                trial=trial, bracket=bracket, rung=rung, milestone=ladder[rung], step=step, value=value,
                arrival=len(self._at[ladder[rung]]),
            )
        )  # fmt: skip
        is_last = rung == len(ladder) - 1
        if not is_last and self._policy.verdict(trial, bracket, rung, more=True).action is Action.CONTINUE:
            self._policy.promoted(trial, bracket, rung)
            return True
        self._trains.discard(trial)
        if is_last:
            self._policy.withdraw(trial)
        return False


RungOrder = Callable[[dict[int, dict[int, float]]], list[int]]
"""From the values at each milestone, by trial, to the trials, the best first."""


def furthest_first(at: dict[int, dict[int, float]]) -> list[int]:
    """Those at the highest rung first, among them by value: what Optuna's TPE does with pruned trials."""
    last: dict[int, tuple[int, float]] = {}
    for milestone in sorted(at):
        last |= {trial: (-milestone, value) for trial, value in at[milestone].items()}
    return sorted(last, key=lambda trial: last[trial])


def ranked_again(at: dict[int, dict[int, float]]) -> list[int]:
    """By value at the first rung; then those at each further rung change places among themselves, by value there."""
    order: list[int] = []
    for milestone in sorted(at):
        here = at[milestone]
        places = [place for place, trial in enumerate(order) if trial in here]
        best_first = sorted((order[place] for place in places), key=lambda trial: here[trial])
        for place, trial in zip(places, best_first, strict=True):
            order[place] = trial
        known = set(order)
        order += sorted((trial for trial in here if trial not in known), key=lambda trial: here[trial])
    return order


def earned_first(at: dict[int, dict[int, float]], eta: int = 3) -> list[int]:
    """By the highest rung that a trial has earned, then by its value there.

    A trial earns a rung if it is in the best third of the results at the rung below. A trial that passed without
    that stays at the rung where it fell behind, whatever it did later.
    """
    place: dict[int, tuple[int, float]] = {}
    earned: set[int] | None = None
    for milestone in sorted(at):
        here = sorted(
            (value, trial) for trial, value in at[milestone].items() if earned is None or trial in earned
        )
        for value, trial in here:
            place[trial] = (-milestone, value)
        earned = {trial for _, trial in here[: max(1, -(-len(at[milestone]) // eta))]}
    return sorted(place, key=lambda trial: place[trial])


class BestK:
    """Spends half of the budget on one evaluation each of random rows, then runs the best of them to the end,
    together."""

    def __init__(self, spec: StudySpec, *, steps: int, rows: int, budget: float) -> None:
        self._sampler = make_sampler(spec)
        self._first = min(rows, round(budget * steps / 2))
        self._kept = max(1, round((budget * steps - self._first) / (steps - 1)))
        self._values: dict[int, float] = {}
        self._asked = 0
        self._waiting: list[int] | None = None

    def order(self) -> Order | None:
        if self._asked < self._first:
            self._asked += 1
            return Order(params=self._sampler.suggest(self._asked - 1))
        if len(self._values) < self._first:
            return None
        if self._waiting is None:
            self._waiting = sorted(self._values, key=lambda trial: self._values[trial])[: self._kept]
        return Order(trial=self._waiting.pop(0)) if self._waiting else None

    def added(self, trial: int, params: Params) -> None:
        del params
        self._values[trial] = math.inf

    def report(self, trial: int, step: int, value: float) -> bool:
        if step > 1:
            return True
        self._values[trial] = value
        return False
