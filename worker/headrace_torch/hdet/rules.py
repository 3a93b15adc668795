"""The update rules as functions of numbers: no tensor, no process group, no clock, no random number.

Symbols follow the paper (Cheng et al. 2026, "Scalable Hyperparameter-Divergent Ensemble Training"): N
replicas, spread α, multipliers ρ_r, losses L_r, scores s_r, weights w_r, signal Δ, velocity v, decay γ. All
arithmetic is in Python floats, which are IEEE doubles, and the same on every rank: ranks that gathered the
same losses reach the same decision bit for bit.

A loss has three readings. A finite number is a score. NaN or ±inf means that the replica diverged: its weight is
0, and it still counts in the plain mean, so the centre moves away from it. `None` means that nothing was observed:
the replica takes no part at all.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

# Differences of losses below this fraction of their size are rounding, not signal.
RELATIVE_RESOLUTION = 1e-12


def positions(n: int) -> tuple[float, ...]:
    """Returns n positions on [−1, 1], symmetric around 0: (r − (N−1)/2)/δ with δ = max((N−1)/2, ½) (Eq. 1)."""
    delta = max((n - 1) / 2, 0.5)
    return tuple((r - (n - 1) / 2) / delta for r in range(n))


def multipliers(n: int, alpha: float) -> tuple[float, ...]:
    """Returns ρ_r = 1 + α·position_r, whose mean is 1 (Eq. 1)."""
    return tuple(1 + alpha * place for place in positions(n))


def scored(losses: Sequence[float | None]) -> list[int]:
    """Returns the replicas with a finite loss."""
    return [r for r, loss in enumerate(losses) if loss is not None and math.isfinite(loss)]


def scores(losses: Sequence[float | None], sigma: float) -> tuple[float | None, ...]:
    """Returns s_r = (L̄ − L_r)/σ over the replicas with a finite loss, `None` for the others (Eq. 4, left)."""
    finite = scored(losses)
    if not finite or sigma <= 0:
        return tuple(None for _ in losses)
    mean = math.fsum(_known(losses[r]) for r in finite) / len(finite)
    inside = set(finite)
    return tuple((mean - _known(losses[r])) / sigma if r in inside else None for r in range(len(losses)))


def softmax(values: Sequence[float | None]) -> tuple[float, ...]:
    """Returns w = softmax(s); `None` has weight 0 (Eq. 4, right). All weights are 0 when every value is `None`."""
    known = [value for value in values if value is not None]
    if not known:
        return tuple(0.0 for _ in values)
    top = max(known)
    powers = [0.0 if value is None else math.exp(value - top) for value in values]
    total = math.fsum(powers)
    return tuple(power / total for power in powers)


def signal(weights: Sequence[float], values: Sequence[float], losses: Sequence[float | None]) -> float:
    """Returns Δ = Σ w_r h_r − h̄, the mean taken over replicas that observed a loss (Eqs. 5 and 6).

    0 when fewer than two replicas observed one, or when none of the losses is finite: nothing can be compared.
    """
    taking_part = [r for r, loss in enumerate(losses) if loss is not None]
    if len(taking_part) < 2 or not any(weights):
        return 0.0
    weighted = math.fsum(weight * value for weight, value in zip(weights, values, strict=True))
    return weighted - math.fsum(values[r] for r in taking_part) / len(taking_part)


def spread_of(losses: Sequence[float | None]) -> float:
    """Returns the standard deviation of the finite losses, or 0 if it is within rounding."""
    known = [_known(losses[r]) for r in scored(losses)]
    if len(known) < 2:
        return 0.0
    mean = math.fsum(known) / len(known)
    deviation = math.sqrt(math.fsum((loss - mean) ** 2 for loss in known) / len(known))
    return deviation if deviation > RELATIVE_RESOLUTION * max(abs(loss) for loss in known) else 0.0


def decay_rate(eta_warm: float, eta_floor: float, syncs: int) -> float:
    """Returns γ such that η_warm·(1−γ)^K = η_floor after K syncs.

    The paper (Eq. 8) has log(f_div/f_final), which is negative at OneCycle's default divisors, so that the rate would
    *grow*. OneCycle's own floor is η_max/(f_div·f_final); with η_warm = η_max this is 1 − (f_div·f_final)^(−1/K).
    """
    if syncs < 1 or eta_warm <= 0 or eta_floor <= 0:
        return 0.0
    return 1 - math.exp(math.log(eta_floor / eta_warm) / syncs)


def chance(weights: Sequence[float], values: Sequence[float], losses: Sequence[float | None]) -> float:
    """Returns the variance of `signal` over all assignments of the values to the replicas that take part."""
    part = [r for r, loss in enumerate(losses) if loss is not None]
    if len(part) < 2 or not any(weights):
        return 0.0
    mean = math.fsum(values[r] for r in part) / len(part)
    unequal = math.fsum((weights[r] - 1 / len(part)) ** 2 for r in part)
    return unequal * math.fsum((values[r] - mean) ** 2 for r in part) / (len(part) - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The signals of the last syncs, about 1/(1−β) of them: their mean, and its variance if values made no
    difference.

    That variance is known, since replicas take their positions by a permutation at random; see `chance`.
    """

    velocity: float = 0.0
    variance: float = 0.0

    def after(self, delta: float, variance: float, beta: float = 0.9) -> "Evidence":
        """Returns the evidence after one more signal, given that signal's variance by chance."""
        return Evidence(
            velocity=beta * self.velocity + (1 - beta) * delta,
            variance=beta**2 * self.variance + (1 - beta) ** 2 * variance,
        )

    def share(self, step: float, doubt: float = 2.0) -> float:
        """Returns the fraction of a step that it supports: (1 − (doubt/z)²)₊ for a mean z standard deviations from
        0."""
        if self.velocity * step <= 0:
            return 0.0
        return max(0.0, 1 - doubt**2 * self.variance / self.velocity**2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """The replicas' mean loss over about the last 1/(1−β) syncs, and its mean squared distance from there."""

    mean: float | None = None
    square: float = 0.0

    @classmethod
    def of(cls, saved: Sequence[float | None]) -> "Trend":
        """Reads the mean and the square; raises Python's own errors if they cannot be read."""
        mean, square = saved
        return cls(mean=None if mean is None else float(mean), square=float(_known(square)))

    def after(self, losses: Sequence[float | None], beta: float = 0.9) -> tuple["Trend", bool]:
        """Returns the trend after one more sync, and whether the run improves.

        It improves if the loss is below the mean by more than half of the usual distance. On a plateau that
        happens in three syncs out of ten, in a steady descent in all. A sync in which a replica diverged is not an
        improvement.
        """
        finite = [_known(losses[r]) for r in scored(losses)]
        diverged = len(finite) < sum(loss is not None for loss in losses)
        if not finite or self.mean is None:
            mean = math.fsum(finite) / len(finite) if finite else self.mean
            return Trend(mean=mean, square=self.square), not diverged
        below = self.mean - math.fsum(finite) / len(finite)
        trend = Trend(
            mean=self.mean - (1 - beta) * below, square=beta * self.square + (1 - beta) * below * below
        )
        return trend, not diverged and below > 0.5 * math.sqrt(self.square)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """A centre after a sync point, and what moved it."""

    center: float
    velocity: float
    signal: float
    evidence: Evidence = Evidence()


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperRule:
    """The paper's update in linear space: v ← βv + (1−β)Δ, then η̄ ← η̄(1−γ) + λv (Eq. 7), floored.

    `sigma` has the unit of the loss. The floor is not in the paper: without it a velocity can carry η̄ below zero.
    """

    beta: float = 0.9
    sigma: float = 0.002
    lam: float = 0.5

    def weights(self, losses: Sequence[float | None]) -> tuple[float, ...]:
        """Returns the replicas' weights for these losses."""
        return softmax(scores(losses, self.sigma))

    def move(
        self,
        *,
        center: float,
        velocity: float,
        values: Sequence[float],
        losses: Sequence[float | None],
        gamma: float,
        floor: float,
    ) -> Moved:
        """Updates a learning rate, given every replica's value in the interval that ends."""
        delta = signal(self.weights(losses), values, losses)
        velocity = self.beta * velocity + (1 - self.beta) * delta
        return Moved(
            center=max(center * (1 - gamma) + self.lam * velocity, floor), velocity=velocity, signal=delta
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FactorRule:
    """The paper's signal on a factor: v ← βv + (1−β)Δ/(αη̄), then f ← f·exp(reach·λ·v·(1 − (doubt/z)²)₊).

    Δ/(αη̄) is the signal over positions in [−1, 1], so the step does not depend on α: a sync changes f by at most the
    factor exp(reach·λ). Two things keep f from doing harm:

    - z is v divided by the standard deviation that it would have if rates made no difference (`Evidence`). If |z|
      is below `doubt`, f does not move. Otherwise the noise of training losses would make it a random walk.
    - While the loss (`Trend`) or the schedule falls, f must not fall. A lower rate reduces the loss at once,
      because it reduces noise, and costs progress later; so replicas favour one in every run. Only a run without
      progress needs one, and the schedule's own decay takes care of the end of the run.

    `sigma` has the unit of the loss.
    """

    beta: float = 0.9
    sigma: float = 0.002
    lam: float = 0.5
    reach: float = 0.3
    doubt: float = 2.0
    low: float = 1e-3
    high: float = 1e3

    def weights(self, losses: Sequence[float | None]) -> tuple[float, ...]:
        """Returns the replicas' weights for these losses."""
        return softmax(scores(losses, self.sigma))

    def move(
        self,
        *,
        factor: float,
        evidence: Evidence,
        places: Sequence[float],
        losses: Sequence[float | None],
        held: bool,
    ) -> Moved:
        """Updates a factor, given every replica's position in the interval that ends."""
        weights = self.weights(losses)
        delta = signal(weights, places, losses)
        evidence = evidence.after(delta, chance(weights, places, losses), self.beta)
        step = self.reach * self.lam * evidence.velocity
        step *= evidence.share(step, self.doubt)
        reached = factor * math.exp(max(0.0, step) if held else step)
        return Moved(
            center=max(self.low, min(self.high, reached)),
            velocity=evidence.velocity,
            signal=delta,
            evidence=evidence,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSpaceRule:
    """The update of `HDETController`, in the hyperparameter's own space (log, logit), unit-free and rate-capped.

    Losses are standardised (σ = `temperature` · std of the losses), so the signal depends neither on the
    scale of the loss nor on α; it is taken over positions in [−1, 1]. Then v ← βv + (1−β)·signal and z ← z +
    clip(gain·v, ±cap): with a logarithmic transform no sync changes the rate by more than the factor e^cap.
    """

    beta: float = 0.5
    temperature: float = 1.0
    gain: float = 0.15
    cap: float = 0.1

    def problem(self) -> str | None:
        """Says what is out of range, if anything is."""
        if not 0 <= self.beta < 1:
            return f"rule.beta must be in [0, 1), not {self.beta}"
        for name in ("temperature", "gain", "cap"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                return f"rule.{name} must be positive, not {value}"
        return None

    def scores(self, losses: Sequence[float | None]) -> tuple[float | None, ...]:
        """Returns s_r = (L̄ − L_r)/σ; 0 for finite losses that are equal."""
        sigma = self.temperature * spread_of(losses)
        if sigma == 0:
            finite = set(scored(losses))
            return tuple(0.0 if r in finite else None for r in range(len(losses)))
        return scores(losses, sigma)

    def weights(self, losses: Sequence[float | None]) -> tuple[float, ...]:
        """Returns the replicas' weights for these losses."""
        return softmax(self.scores(losses))

    def move(
        self,
        *,
        center: float,
        velocity: float,
        places: Sequence[float],
        losses: Sequence[float | None],
        low: float,
        high: float,
        evidence: Evidence = Evidence(),
        held: bool = False,
    ) -> Moved:
        """Updates a centre. At a bound, a velocity that points outward is dropped, so that the centre leaves as
        soon as the signal turns.

        Args:
            center: its current value.
            velocity: v.
            places: every replica's position in the interval that ends.
            losses: every replica's loss.
            low: the centre's lowest value.
            high: the centre's highest value.
            evidence: what earlier syncs have shown.
            held: whether it must not fall, and rises only on evidence, as for a learning rate while the loss
                falls; see `FactorRule`.
        """
        weights = self.weights(losses)
        delta = signal(weights, places, losses)
        velocity = self.beta * velocity + (1 - self.beta) * delta
        evidence = evidence.after(delta, chance(weights, places, losses))
        step = max(-self.cap, min(self.cap, self.gain * velocity))
        if held:
            step = max(0.0, step) * evidence.share(step)
        wanted = center + step
        reached = max(low, min(high, wanted))
        return Moved(
            center=reached, velocity=velocity if reached == wanted else 0.0, signal=delta, evidence=evidence
        )


def _known(loss: float | None) -> float:
    assert loss is not None
    return loss
