"""What a coordinate check found: a slope for each activation, and a verdict.

One measure for every activation: the power of the width that fits its changes over all widths best. Under right
rules it is 0 in the limit, and at finite widths it is not: an activation's mean square change is A + B/n, what learning
directs and what chance adds. Where B is large, as for queries that start at zero (see `pilot`), a right rule can fall
by more than is tolerated. Then the report says so; no activation is measured more kindly than the others.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace_torch.hydro.coordinate_check.measure import Change
from headrace_torch.hydro.errors import CoordinateCheckError

SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationTrend:
    """How the change of one activation depends on the width.

    `changes` has a row per width and a value per seed. `slope` is that of log change against log width, fitted to
    the logarithms' means over seeds. It is None where the activation did not change at any width, as that of a
    frozen layer. `along_gradient` says that changes are those along the loss's gradient: the activation's size is
    fixed. `from_zero`: the activation starts at zero. The slope is the same; what it means when it falls is not.
    """

    name: str
    changes: Sequence[Sequence[float]]
    slope: float | None
    along_gradient: bool = False
    from_zero: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinateReport:
    """The outcome of a coordinate check.

    Attributes:
        widths: relative to the target's, ascending.
        labels: how each width is written.
        trends: by activation, in the order of the forward pass.
        tolerance: the greatest slope that passes, up or down.
        optimizer, lr, steps, seeds: what was run.
    """

    widths: Sequence[float]
    labels: Sequence[str]
    trends: Sequence[ActivationTrend]
    tolerance: float
    optimizer: str
    lr: float
    steps: int
    seeds: int

    @property
    def worst(self) -> ActivationTrend:
        """The activation with the steepest slope."""
        return max(self.trends, key=lambda one: abs(one.slope or 0.0))

    @property
    def failures(self) -> Sequence[ActivationTrend]:
        """Activations whose slopes are steeper than tolerated, steepest first."""
        steep = [one for one in self.trends if one.slope is not None and abs(one.slope) > self.tolerance]
        return sorted(steep, key=lambda one: -abs(one.slope or 0.0))

    @property
    def passed(self) -> bool:
        """Whether every activation's change is independent of the width, within the tolerance."""
        return not self.failures

    def raise_if_failed(self) -> "CoordinateReport":
        """Returns the report if it passed.

        Raises:
            CoordinateCheckError: it did not; names the activations with the steepest slopes.
        """
        if failures := self.failures:
            named = ", ".join(f"{one.name} {one.slope:+.2f}" for one in failures[:SHOWN])
            more = f" and {len(failures) - SHOWN} more" if len(failures) > SHOWN else ""
            raise CoordinateCheckError(
                f"the change of activations depends on the width ({self.optimizer}, lr {self.lr:g}, "
                f"{self.steps} steps, "
                f"widths {', '.join(self.labels)}): slopes {named}{more}; tolerated is ±{self.tolerance:g}. "
                "Hyperparameters would not transfer. Look for a layer that computes with a width by a function "
                "(see hydro.Readout and hydro.Query), or for initial values that depend on it in a way of their own."
                + self._chance()
            )
        return self

    def _chance(self) -> str:
        """What else may be behind a failure: at first, what starts at zero falls under right rules too."""
        falling = [one for one in self.failures if one.from_zero and not one.along_gradient]
        if len(falling) != len(self.failures) or any((one.slope or 0.0) > 0 for one in falling):
            return ""
        return (
            f" {falling[0].name} starts at zero, and what moves it first is chance, which falls with the width under "
            "right rules too, but ever less with more steps, more rows and greater widths: compare widths= twice as "
            "great. A wrong rule's slope stays."
        )

    def __str__(self) -> str:
        verdict = "passed" if self.passed else "FAILED"
        run = f"{self.optimizer}, lr {self.lr:g}, {self.steps} steps, {self.seeds} seeds"
        lines = [f"coordinate check: {verdict} ({run}, widths {', '.join(self.labels)})"]
        lines += [
            f"  {one.name:<32} {'unchanged' if one.slope is None else f'{one.slope:+.3f}'}"
            + (" (started at zero)" if one.from_zero else "")
            for one in self.trends
        ]
        return "\n".join(lines)


def trend_of(
    name: str,
    widths: Sequence[float],
    changes: Sequence[Sequence[float]],
    *,
    fixed: bool = False,
    from_zero: bool = False,
) -> ActivationTrend:
    """Fits the slope by least squares.

    Args:
        name: of the activation.
        widths: ascending.
        changes: a row per width, a value per seed.
        fixed: they are changes along the gradient.
        from_zero: the activation starts at zero.
    """
    if all(value == 0 for row in changes for value in row):
        return ActivationTrend(name=name, changes=changes, slope=None, along_gradient=fixed)
    if any(value == 0 for row in changes for value in row):
        return ActivationTrend(name=name, changes=changes, slope=math.inf, along_gradient=fixed)
    xs = [math.log(width) for width in widths]
    ys = [sum(math.log(value) for value in row) / len(row) for row in changes]
    x_mean, y_mean = sum(xs) / len(xs), sum(ys) / len(ys)
    slope = sum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys, strict=True)) / sum(
        (x - x_mean) ** 2 for x in xs
    )
    return ActivationTrend(name=name, changes=changes, slope=slope, along_gradient=fixed, from_zero=from_zero)


def trends_of(
    widths: Sequence[float], moved: Sequence[Sequence[Mapping[str, Change]]]
) -> tuple[ActivationTrend, ...]:
    """One trend per activation that every width has; `moved[width][seed][name]` are changes."""
    found = []
    for name in moved[0][0]:
        if not all(name in one for row in moved for one in row):
            continue
        changes = [[one[name] for one in row] for row in moved]
        fixed = len({one.shape for row in changes for one in row}) == 1
        along = [[one.along_gradient for one in row] for row in changes]
        directed = fixed and all(value is not None for row in along for value in row)
        values = [
            [one.along_gradient if directed and one.along_gradient is not None else one.size for one in row]
            for row in changes
        ]
        from_zero = all(one.from_zero for row in changes for one in row)
        found.append(trend_of(name, widths, values, fixed=directed, from_zero=from_zero))
    return tuple(found)
