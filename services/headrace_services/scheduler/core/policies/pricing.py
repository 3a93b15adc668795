"""Checkpoint-aware pausing: a pause has a price, and may not be worth it.

Pausing a trial that may be continued later costs a write and a read of its checkpoint: 2C/B seconds of a slot for
C bytes at B bytes a second. Both are measured on the trial itself. A read counts like the write until it is
measured.

Letting it continue instead takes its slot for T seconds to the next rung, where the same question arises again, or
for R seconds to the full budget. If the policy would promote the trial later anyway, with probability p, that time
is not lost: it is only spent early. If not, the loss is the smaller one of two: continuing to the end, or
continuing to the next rung and pausing there after all. So the slot's next best use is worth

    worth = (1 - p)·min(R, T + price)

seconds, and 0 if nothing else is to run. Among all the results that may arrive, a trial at rank r of n has a
quantile with the distribution Beta(r, n + 1 - r); p is the probability that the quantile is below 1/η.

The trial is paused iff worth > price. Otherwise it continues, and counts as promoted past the rung. A trial
without a finite value is always paused, as it is never continued. If nothing was measured, the policy alone
decides. (Decision 0019 has the arithmetic for C = 84 GB, B = 2 GB/s and T = 120 s.)
"""

from msgspec.structs import replace

from headrace_services.scheduler.core.policies.protocol import (
    Action,
    PausePrice,
    Policy,
    Promotion,
    RungResult,
    Verdict,
)
from headrace_services.scheduler.core.policies.sentences import figure
from headrace_services.scheduler.core.records import Exploit, Params, RungCost


class PricedPauses(Policy):
    """A policy that pauses, with the price of each pause taken into account."""

    def __init__(self, policy: Policy, *, eta: int) -> None:
        self._policy = policy
        self._eta = eta
        self._results: dict[int, RungResult] = {}
        self._before_first: set[int] = set()
        """Trials that have not reached a rung yet; some of them may not have started."""
        self._over: set[int] = set()
        self.new_trials_first = policy.new_trials_first

    @property
    def brackets(self) -> int:
        return self._policy.brackets

    def bracket(self, number: int) -> int:
        return self._policy.bracket(number)

    def ladder(self, bracket: int) -> tuple[int, ...]:
        return self._policy.ladder(bracket)

    def joined(self, trial: int, bracket: int, params: Params) -> None:
        self._policy.joined(trial, bracket, params)
        if trial not in self._over and trial not in self._results:
            self._before_first.add(trial)

    def record(self, result: RungResult) -> None:
        self._policy.record(replace(result, cost=None))
        self._results[result.trial] = result
        self._before_first.discard(result.trial)

    def promoted(self, trial: int, bracket: int, rung: int) -> None:
        self._policy.promoted(trial, bracket, rung)

    def exploited(self, exploit: Exploit) -> None:
        self._policy.exploited(exploit)

    def pinned(self, trial: int) -> frozenset[str]:
        return self._policy.pinned(trial)

    def finished_early(self, trial: int) -> None:
        self._policy.finished_early(trial)

    def withdraw(self, trial: int) -> None:
        self._policy.withdraw(trial)
        self._over.add(trial)
        self._before_first.discard(trial)

    def verdict(self, trial: int, bracket: int, rung: int, *, more: bool = True) -> Verdict:
        verdict = self._policy.verdict(trial, bracket, rung, more=more)
        result = self._results[trial]
        ladder = self._policy.ladder(bracket)
        if verdict.action is not Action.PAUSE or not result.finite or rung == len(ladder) - 1:
            return verdict
        promotion = self._policy.next_promotion(more=more)
        if promotion is not None and promotion.trial == trial:
            return verdict
        idle = promotion is None and not more and not self._before_first
        explanation = verdict.explanation
        promoted = promotion_probability(explanation.rank, explanation.results, self._eta)
        price = _price(result, ladder[rung + 1], ladder[-1], promoted, idle=idle)
        if price is None:
            said = f"{explanation.sentence} (its pause has no price: its times were not measured)"
            return replace(verdict, explanation=replace(explanation, sentence=said))
        said = f"{explanation.sentence}; {price_sentence(price, idle=idle)}"
        priced = replace(explanation, sentence=said, pause_price=price)
        return Verdict(action=Action.PAUSE if price.pays else Action.CONTINUE, explanation=priced)

    def next_promotion(self, *, more: bool = True) -> Promotion | None:
        return self._policy.next_promotion(more=more)


def promotion_probability(rank: int, results: int, eta: int) -> float:
    """The probability that the trial at a rank belongs to the best 1/η of all results that may still arrive."""
    from scipy.special import betainc  # slow to import, and a scheduler must be back soon after it was killed

    return float(betainc(rank, results + 1 - rank, 1 / eta))


def price_sentence(price: PausePrice, *, idle: bool) -> str:
    """The calculation in words: `a pause costs 84 s (42 s to write and 42 s to read) …`."""
    cost = (
        f"{figure(price.price_s)} s ({figure(price.write_s)} s to write and {figure(price.read_s)} s to read)"
    )
    if idle:
        worth = "nothing else is waiting for its slot"
    else:
        lost = f"{figure(100 * (1 - price.promotion_probability))}%"
        if price.rest_s <= price.rung_s + price.price_s:
            spent = f"{figure(price.rest_s)} s to the full budget"
        else:
            spent = f"{figure(price.rung_s)} s to the next rung and a pause there"
        worth = (
            f"its slot's next best use is worth {figure(price.worth_s)} s:"
            f" with a probability of {lost} it is not promoted, and {spent} would be wasted"
        )
    return f"a pause costs {cost} and {worth}: {'it is paused' if price.pays else 'it continues'}"


def _price(
    result: RungResult, next_milestone: int, last_milestone: int, promoted: float, *, idle: bool
) -> PausePrice | None:
    cost = result.cost or RungCost()
    if cost.write_s is None or cost.step_s is None:
        return None
    read_s = cost.write_s if cost.read_s is None else cost.read_s
    rung_s = cost.step_s * (next_milestone - result.step)
    rest_s = cost.step_s * (last_milestone - result.step)
    lost_s = min(rest_s, rung_s + cost.write_s + read_s)
    return PausePrice(
        checkpoint_bytes=cost.checkpoint_bytes or 0,
        write_s=cost.write_s,
        read_s=read_s,
        rung_s=rung_s,
        rest_s=rest_s,
        promotion_probability=promoted,
        worth_s=0.0 if idle else (1 - promoted) * lost_s,
    )
