"""How the drop-in's rate moves, by name.

factor   η_r = OneCycle(t)·f·ρ_r. The factor f is 1 until the losses distinguish the rates, so that without a
         signal the run is OneCycle's own. It moves by the paper's signal, relative to the rate, as far as chance
         does not explain that signal (`FactorRule`).
paper    η_r = η̄·ρ_r. From the end of the warm-up on η̄ replaces the schedule and decays geometrically
         to its floor (`PaperRule`). Without a signal that is a different schedule from OneCycle's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from headrace_torch.hdet.rules import Evidence, FactorRule, Moved, PaperRule, decay_rate

FormName = Literal["factor", "paper"]
FORMS: tuple[FormName, ...] = ("factor", "paper")


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """What a group went through between two sync points.

    Attributes:
        places: every replica's position in the fan, in [−1, 1].
        losses: every replica's loss.
        held: whether the factor must not fall, because the loss or the schedule falls.
        floor: the schedule's lowest rate.
    """

    places: Sequence[float]
    losses: Sequence[float | None]
    held: bool
    floor: float


class Form(Protocol):
    """What the drop-in has learned, for all parameter groups."""

    def centers(self, step: int, base: Sequence[float], floors: Sequence[float]) -> list[float]:
        """Returns the rate in the middle of each group's fan at a step where the schedule has the rates `base`."""

    def move(self, number: int, ended: Interval) -> Moved:
        """Updates a group after a sync."""

    def state(self) -> dict[str, Any]:
        """Returns all of it in plain values, the same on every rank."""

    def load(self, state: Mapping[str, Any]) -> None:
        """Resumes from `state`; raises Python's own errors if it cannot be read, and then leaves the form
        unchanged."""


class FactorForm:
    """A factor on the schedule for each group."""

    def __init__(self, rule: FactorRule, groups: int) -> None:
        """Factors of 1."""
        self._rule = rule
        self._factors = [1.0] * groups
        self._evidence = [Evidence()] * groups

    def centers(self, step: int, base: Sequence[float], floors: Sequence[float]) -> list[float]:  # noqa: ARG002 - of all forms
        """See `Form`."""
        return [rate * factor for rate, factor in zip(base, self._factors, strict=True)]

    def move(self, number: int, ended: Interval) -> Moved:
        """See `Form`."""
        moved = self._rule.move(
            factor=self._factors[number],
            evidence=self._evidence[number],
            places=ended.places,
            losses=ended.losses,
            held=ended.held,
        )
        self._factors[number], self._evidence[number] = moved.center, moved.evidence
        return moved

    def state(self) -> dict[str, Any]:
        """See `Form`."""
        return {
            "factors": list(self._factors),
            "velocities": [one.velocity for one in self._evidence],
            "variances": [one.variance for one in self._evidence],
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """See `Form`."""
        factors, velocities, variances = (
            _numbers(state[key], len(self._factors)) for key in ("factors", "velocities", "variances")
        )
        self._factors = factors
        self._evidence = [
            Evidence(velocity=velocity, variance=variance)
            for velocity, variance in zip(velocities, variances, strict=True)
        ]


class PaperForm:
    """The paper's η̄ for each group, from the end of the warm-up on."""

    def __init__(
        self, rule: PaperRule, groups: int, *, alpha: float, warmup: int, interval: int, steps: int
    ) -> None:
        """Follows the schedule until step `warmup`."""
        self._rule, self._alpha = rule, alpha
        self._warmup = warmup
        self._remaining = steps // interval - warmup // interval  # syncs after S_warm
        self._groups = groups
        self._centers: list[float] | None = None
        self._velocities: list[float] = []
        self._gammas: list[float] = []

    def centers(self, step: int, base: Sequence[float], floors: Sequence[float]) -> list[float]:
        """See `Form`; at the end of the warm-up η̄ starts from the schedule's rate, and γ leads to its floor."""
        if self._centers is None and step >= self._warmup:
            self._centers = list(base)
            self._velocities = [0.0] * self._groups
            self._gammas = [
                decay_rate(rate, floor, self._remaining) for rate, floor in zip(base, floors, strict=True)
            ]
        return list(base) if self._centers is None else list(self._centers)

    def move(self, number: int, ended: Interval) -> Moved:
        """See `Form`."""
        assert self._centers is not None
        center = self._centers[number]
        moved = self._rule.move(
            center=center,
            velocity=self._velocities[number],
            values=[center * (1 + self._alpha * place) for place in ended.places],
            losses=ended.losses,
            gamma=self._gammas[number],
            floor=ended.floor,
        )
        self._centers[number], self._velocities[number] = moved.center, moved.velocity
        return moved

    def state(self) -> dict[str, Any]:
        """See `Form`."""
        return {
            "centers": None if self._centers is None else list(self._centers),
            "velocities": list(self._velocities),
            "gammas": list(self._gammas),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """See `Form`."""
        begun = state["centers"] is not None
        velocities, gammas = (
            _numbers(state[key], self._groups if begun else 0) for key in ("velocities", "gammas")
        )
        self._centers = _numbers(state["centers"], self._groups) if begun else None
        self._velocities, self._gammas = velocities, gammas


def _numbers(values: Sequence[Any], count: int) -> list[float]:
    return [float(value) for value, _ in zip(values, range(count), strict=True)]
