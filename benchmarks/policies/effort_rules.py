"""Alternative rules for `effort` in `auto`, on recorded curves: which trial continues next, and what counts.

    python benchmarks/policies/effort_rules.py --best-of CHOOSE/anytime.json --out RESULTS FILE...

These continue, in turns: the best of the trials *furthest* along, the one with the best *quantile* at its rung, or
the *oldest* one. The oldest is a blind pick, and continues to its end, because it stays the oldest.

Steps count. A program that ends by itself counts as the rung that it reached (*reached*), or as the one that it
trained for (*towards*). *Ended*: it does so in run-all's cost too, and the others are expected to be as long as
those that ended. *Bound*: once effort has started, promotions that it made possible must be within the share too.
*Endless*, the original rule: when the share is used up, trials continue one after the other until one has reached
the last rung. If programs end before it, all of them do.

Prints each rule's means, and the cells that hold beside the best peers of the record `--best-of`, which must have the
same files, workers and orders. Writes `effort_rules.json`.
"""

import argparse
import json
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import patch

from anytime_cells import SHARES, at_share, best_peers, judged, print_judged, print_table, row
from recorded_orders import Found, Order, Scene, named, ours

from headrace.spec import AshaArrival, AutoPolicy, StudySpec
from headrace_services.scheduler.core.policies import Policy, make_policy
from headrace_services.scheduler.core.policies.asha import AshaPromotion
from headrace_services.scheduler.core.policies.effort import Effort
from headrace_services.scheduler.core.policies.protocol import Promotion, Verdict
from headrace_services.scheduler.simulator.recorded import read_curves

Waiting = tuple[float, int, int, int]
"""Quantile at the rung, the rung's position in the scan, trial, rung."""
TURNS: dict[str, Callable[[Waiting], Any]] = {
    "furthest": lambda one: one[1],
    "quantile": lambda one: one,
    "oldest": lambda one: one[2],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Which trial's turn it is, one after the other, and what counts."""

    turns: tuple[str, ...]
    counts: str = "towards"
    bound: bool = False
    endless: bool = False

    @property
    def label(self) -> str:
        """Its name in the tables."""
        more = [name for name in ("bound", "endless") if getattr(self, name)]
        return f"auto:{'+'.join(self.turns)}, {'+'.join([self.counts, *more])}"


FIRST = ("furthest", "quantile")
TODAY = Rule(turns=("quantile", "oldest"))
RULES = (
    Rule(turns=FIRST, counts="reached", endless=True),
    Rule(turns=FIRST, counts="reached"),
    Rule(turns=FIRST),
    Rule(turns=FIRST, endless=True),
    Rule(turns=FIRST, counts="ended"),
    Rule(turns=FIRST, bound=True),
    Rule(turns=("quantile",)),
    Rule(turns=("oldest",)),
    Rule(turns=("furthest", "quantile", "oldest")),
    TODAY,
)


class _EndedEffort(Effort):
    """Programs that end by themselves count as the rung for which they trained, in both sums."""

    def __init__(self, *, share: float, full: int) -> None:
        super().__init__(share=share, full=full)
        self._lengths: dict[int, int] = {}
        self._past_a_rung: set[int] = set()

    @property
    def run_all(self) -> int:
        known = [self._lengths[trial] for trial in self._past_a_rung]
        expected = sum(known) / len(known) if known else self._full
        return int(sum(self._lengths.values()) + expected * (len(self._joined) - len(self._lengths)))

    def over(self, trial: int, *, past_a_rung: bool) -> None:
        """A trial ended on its way to a rung, or at the last one."""
        self._lengths[trial] = self._upto.get(trial, 0)
        if past_a_rung:
            self._past_a_rung.add(trial)


class _Ruled(AshaPromotion):
    """`auto` with a given rule for effort."""

    def __init__(self, spec: StudySpec, rule: Rule) -> None:
        assert isinstance(spec.policy, AutoPolicy)
        asha = spec.policy.asha(spec.sampler)
        kind = _EndedEffort if rule.counts == "ended" else Effort
        super().__init__(
            ladders=(spec.rungs(),),
            eta=asha.eta,
            maximize=spec.maximizes(),
            seed=spec.seed,
            optimistic=asha.arrival is AshaArrival.OPTIMISTIC,
            effort=kind(share=asha.effort, full=spec.max_steps),
        )
        self._rule = rule

    def withdraw(self, trial: int) -> None:
        effort, top, ladder = self._effort, self._top.get(trial), self._ladders[0]
        trains = trial in self._in_training
        super().withdraw(trial)
        if isinstance(effort, _EndedEffort) and (trains or (top and top[1] == len(ladder) - 1)):
            effort.over(trial, past_a_rung=top is not None)
        if effort and trains and self._rule.counts == "reached":
            reached = ladder[top[1]] if top else 0
            effort._committed += reached - effort._upto.get(trial, 0)
            effort._upto[trial] = reached

    def _chance_is_over(self, milestone: int) -> bool:
        return not self._rule.endless and super()._chance_is_over(milestone)

    def _within(self, rung: int) -> bool:
        """Whether a promotion from a rung is allowed, if promotions that effort made possible are bound."""
        if not (self._rule.bound and self._effort and self._effort.given):
            return True
        ladder = self._ladders[0]
        return rung + 1 == len(ladder) or self._effort.covers(ladder[rung + 1] - ladder[rung])

    def verdict(self, trial: int, bracket: int, rung: int, *, more: bool = True) -> Verdict:
        optimistic = self._optimistic
        self._optimistic = optimistic and self._within(rung)
        try:
            return super().verdict(trial, bracket, rung, more=more)
        finally:
            self._optimistic = optimistic

    def next_promotion(self, *, more: bool = True) -> Promotion | None:
        every = self._promotable_from
        self._promotable_from = [place for place in every if self._within(place[1])]
        try:
            promotion = super().next_promotion(more=more)
        finally:
            self._promotable_from = every
        if promotion or more or self._in_training or self._finished():
            return promotion
        return self._last_promotion()

    def _by_effort(self, effort: Effort) -> Promotion | None:
        waiting: list[Waiting] = []
        turn = self._rule.turns[effort.given % len(self._rule.turns)]
        for order, (bracket, rung) in enumerate(self._promotable_from):
            ranking, ladder = self._rungs[bracket, rung], self._ladders[bracket]
            if not effort.covers(ladder[rung + 1] - ladder[rung]):
                continue
            trial = ranking.first_waiting() if turn == "oldest" else ranking.best_waiting()
            if trial is not None:
                waiting.append((ranking.place(trial).rank / len(ranking), order, trial, rung))
        if not waiting:
            return None
        _, order, trial, rung = min(waiting, key=TURNS[turn])
        bracket = self._promotable_from[order][0]
        return self._promotion(trial, bracket, rung, len(self._rungs[bracket, rung]) // self._eta, turn)


def one_order(work: tuple[Scene, int, float]) -> Found:
    """All rules on one order of arrival."""
    scene, seed, effort = work
    order = Order.drawn(scene, seed)
    found: Found = {}
    for rule in RULES:

        def make(spec: StudySpec, rule: Rule = rule) -> Policy:
            return _Ruled(spec, rule) if isinstance(spec.policy, AutoPolicy) else make_policy(spec)

        with patch("headrace_services.scheduler.simulator.study.make_policy", make):
            label = f"auto:effort={effort}"
            found[rule.label] = ours(order, named(order.spec, label))[label]
    return found


def main() -> None:
    """Measure, print, and write the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--best-of", type=Path, required=True)
    parser.add_argument("--effort", type=float, default=0.2)
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--orders", type=int, default=10)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results/effort_rules")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    chosen = json.loads(options.best_of.read_text(encoding="utf-8"))
    record: dict[str, Any] = {}
    for path in options.files:
        scene = Scene(file=read_curves(path), workers=options.workers)
        work = [(scene, seed, options.effort) for seed in range(options.orders)]
        with ProcessPoolExecutor(options.processes, get_context("spawn")) as pool:
            orders = list(pool.map(one_order, work))
        name = f"{path.name.partition('.')[0]}, {options.workers} workers"
        peers = {label: chosen[name]["regrets"][label][: len(orders)] for label in set(best_peers(chosen))}
        record[name] = {
            "orders": len(orders),
            "policies": {label: row(orders, label) for label in orders[0]},
            "regrets": peers
            | {
                label: [[round(at_share(one[label], share), 5) for share in SHARES] for one in orders]
                for label in orders[0]
            },
            "at_asha_end": {},
        }
        print(f"\n{name}, {len(orders)} orders, effort {options.effort:.0%}")
        print_table(record[name])
    verdicts = {rule.label: judged(record, chosen, rule.label) for rule in RULES}
    for verdict in verdicts.values():
        print_judged(verdict)
    kept = {name: {key: found[key] for key in ("orders", "policies")} for name, found in record.items()}
    (options.out / "effort_rules.json").write_text(
        json.dumps(kept | {"judged": verdicts}, indent=1) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
