"""The space in which a hyperparameter is explored: what its centre, its fan and its bounds mean.

| transform  | centre z        | replica at position m ∈ [−1, 1] | for |
| ---------- | --------------- | ------------------------------- | --- |
| `log`      | log h           | e^z · (1 + spread·m)            | learning rate, weight decay, temperature |
| `logit`    | logit of h's place between the bounds | z + spread·m  | dropout, label smoothing |
| `identity` | h's place between the bounds, 0 to 1 | z + spread·m/2 | whatever is neither |

Under `log` the fan is the paper's ρ, symmetric in the value and not in its logarithm, so that the mean of
the rates is the centre. Values are clipped to the bounds; a centre under `logit` stays 1e-4 of the range
away from them, where the map is finite.
"""

import math
from dataclasses import dataclass
from typing import Literal, assert_never

TransformName = Literal["log", "logit", "identity"]
EDGE = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """One hyperparameter's space."""

    transform: TransformName
    low: float
    high: float
    spread: float

    def problem(self, name: str) -> str | None:
        """Says what is out of range, if anything is."""
        if self.transform not in ("log", "logit", "identity"):
            return f"{name}: transform must be log, logit or identity, not {self.transform!r}"
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            return f"{name}: bounds must be finite with low < high, not [{self.low}, {self.high}]"
        if self.transform == "log" and self.low <= 0:
            return f"{name}: a log transform needs low > 0, not {self.low}; use identity for a range with 0"
        if not 0 <= self.spread < 1:
            return f"{name}: spread must be in [0, 1), not {self.spread}"
        return None

    def bounds(self) -> tuple[float, float]:
        """The bounds of the centre."""
        match self.transform:
            case "log":
                return math.log(self.low), math.log(self.high)
            case "logit":
                return math.log(EDGE / (1 - EDGE)), math.log((1 - EDGE) / EDGE)
            case "identity":
                return 0.0, 1.0
            case _:
                assert_never(self.transform)

    def to_center(self, value: float) -> float:
        """Returns the centre of a value between the bounds."""
        low, high = self.bounds()
        place = (value - self.low) / (self.high - self.low)
        match self.transform:
            case "log":
                return max(low, min(high, math.log(value)))
            case "logit":
                inside = max(EDGE, min(1 - EDGE, place))
                return math.log(inside / (1 - inside))
            case "identity":
                return place
            case _:
                assert_never(self.transform)

    def value(self, center: float, position: float = 0.0) -> float:
        """Returns the value of a replica at `position`; of the centre itself without one."""
        match self.transform:
            case "log":
                value = math.exp(center) * (1 + self.spread * position)
            case "logit":
                value = self._between(1 / (1 + math.exp(-(center + self.spread * position))))
            case "identity":
                value = self._between(center + self.spread * position / 2)
            case _:
                assert_never(self.transform)
        return max(self.low, min(self.high, value))

    def _between(self, place: float) -> float:
        return self.low + place * (self.high - self.low)
