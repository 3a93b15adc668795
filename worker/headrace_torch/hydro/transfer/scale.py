"""How small the surrogate may be: the smallest one whose ranking agrees with the target's on a pilot.

A pilot is a handful of configurations, trained for a short while on the target and on surrogates, the smallest
first. A surrogate agrees if Kendall's τ and the regret of its top five are within bounds. The search ends with the
first surrogate that agrees.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace_torch.agreement import LEAST_KENDALL, LEAST_PILOT, TOP, Agreement, Score
from headrace_torch.hydro.errors import TransferError
from headrace_torch.hydro.gate import Gate, ask
from headrace_torch.hydro.transfer.agreement import agreement
from headrace_torch.hydro.transfer.which import Hyperparameters, check_transferable


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleTried:
    """One surrogate's agreement with the target on the pilot."""

    scale: int
    scores: Sequence[Score]
    agreement: Agreement
    agrees: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleReport:
    """Which surrogates were tried, smallest first; `scale` is that of the first one that agrees, None if none
    does."""

    scale: int | None
    tried: Sequence[ScaleTried]
    target_scores: Sequence[Score]

    def raise_if_none(self) -> int:
        """The scale.

        Raises:
            TransferError: no surrogate agrees with the target.
        """
        if self.scale is None:
            best = max(self.tried, key=lambda one: one.agreement.kendall)
            raise TransferError(
                f"no surrogate ranks the pilot as the target does; the best is scale {best.scale} with Kendall's τ "
                f"{best.agreement.kendall:.2f} and a top-{TOP} regret of {best.agreement.regret[TOP]}: try smaller "
                "scales, longer or more varied pilots, or tune the target directly"
            )
        return self.scale

    def __str__(self) -> str:
        lines = [
            f"  scale {one.scale}: τ {one.agreement.kendall:+.2f}, top-{TOP} regret {one.agreement.regret[TOP]}, "
            f"{'agrees' if one.agrees else 'does not agree'}"
            for one in self.tried
        ]
        return "\n".join([f"scale: {self.scale}", *lines])


def choose_scale(
    pilot: Sequence[Hyperparameters],
    evaluate: Callable[[int, Sequence[Hyperparameters]], Sequence[Score]],
    *,
    scales: Sequence[int] = (16, 8, 4, 2),
    least_kendall: float = LEAST_KENDALL,
    most_regret: float = 0.5,
    maximize: bool = True,
    accept: tuple[str, ...] = (),
    gate: Gate = None,
) -> ScaleReport:
    """Finds the smallest surrogate that agrees with the target on a pilot.

    Args:
        pilot: configurations to compare, at least ten, spread over the whole space.
        evaluate: returns the scores for a scale and configurations; scale 1 is the target. Called once per scale.
        scales: how many times narrower than the target, in any order.
        least_kendall: bound on Kendall's τ-b between the surrogate's and the target's scores.
        most_regret: bound on the regret of the surrogate's five best, in the unit of the scores: half a point, if
            they are accuracies in percent.
        maximize: whether a greater score is better.
        accept: hyperparameters that do not transfer but should be compared anyway.
        gate: the report of the surrogates' coordinate check; None warns, False continues without.

    Raises:
        CoordinateCheckError: the coordinate check failed.
        TransferError: the pilot is too small, or varies what does not transfer; the target has no score.
    """
    if len(pilot) < LEAST_PILOT:
        raise TransferError(
            f"a pilot needs at least {LEAST_PILOT} configurations, not {len(pilot)}: "
            f"the top {TOP} of fewer says nothing"
        )
    if not scales or min(scales) < 2:
        raise TransferError(f"scales must be integers of at least 2, not {tuple(scales)}")
    check_transferable(pilot, accept=accept)
    ask(gate, what="choose_scale")
    target = tuple(evaluate(1, pilot))
    tried = []
    for scale in sorted(set(scales), reverse=True):
        scores = tuple(evaluate(scale, pilot))
        found = agreement(scores, target, maximize=maximize, ks=(1, 2, TOP))
        agrees = found.is_enough(least_kendall=least_kendall, most_regret=most_regret)
        tried.append(ScaleTried(scale=scale, scores=scores, agreement=found, agrees=agrees))
        if agrees:
            return ScaleReport(scale=scale, tried=tried, target_scores=target)
    return ScaleReport(scale=None, tried=tried, target_scores=target)
