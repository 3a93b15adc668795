"""What a coordinate check found: a slope with its error for each activation, and a verdict.

Every activation has the same measure: the power of the width that best fits its changes over all widths. Under
correct rules it is 0 in the limit, but not at finite widths: an activation's mean square change is A + B/n, where
A is what learning directs and B/n what chance adds. No activation is measured more leniently than the others.

A slope is fitted for each seed, and its error comes from their spread. An interval is Student's, because few seeds
give the error. The tolerance is a slope that moves the best rate by a step of 2 over 16 times the width. The
verdict is:

    failed         some slope is steeper, with its whole interval; or a wide model diverges where a copy learns
    passed         every slope is less steep, with its whole interval
    inconclusive   neither: more seeds or widths would decide it, and the report says how many

The two intervals are not the same. Of many activations some are steep by chance, so one that fails the check must be
steeper with an interval that holds for all of them at once, 19 times out of 20 (Bonferroni). A pass needs every
activation, so a wrong model passes only if its steepest one is misjudged: an interval for one is enough
(intersection-union test, Berger 1982), however many there are.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean
from typing import Final

from headrace_torch.hydro.coordinate_check.measure import Change
from headrace_torch.hydro.coordinate_check.stability import Divergence
from headrace_torch.hydro.coordinate_check.student import quantile
from headrace_torch.hydro.errors import CoordinateCheckError

SHOWN = 5
CONFIDENCE: Final = 0.95  # of the intervals: of all at once for a failure, of each for a pass
# Few seeds say little about a spread: the spread of the other activations counts as that of this many more seeds.
COMMON_SEEDS: Final = 4
MOST_SEEDS: Final = 64  # that a message suggests


class Outcome(StrEnum):
    """A check's verdict."""

    PASSED = "passed"
    FAILED = "failed"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationTrend:
    """How the change of one activation depends on the width.

    `changes` has a row per width and a value per seed. `slope` is that of log change against log width, fitted to
    the logarithms' means over seeds. It is None if the activation did not change at any width, as in a frozen
    layer. `spread` is the standard deviation of the seeds' own slopes; None with one seed. `along_gradient` says
    that changes are those along the loss's gradient: the activation's size is fixed. `from_zero`: the activation
    starts at zero. The slope is computed the same way; a falling one means something else.
    """

    name: str
    changes: Sequence[Sequence[float]]
    slope: float | None
    spread: float | None = None
    along_gradient: bool = False
    from_zero: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinateReport:
    """The outcome of a coordinate check.

    Attributes:
        widths: relative to the target's, ascending.
        labels: how each width is written.
        trends: by activation, in the order of the forward pass.
        tolerance: the steepest slope, up or down, that passes.
        optimizer, lr, steps, seeds: what was run.
        learnt: whether the narrowest model learned as much as the check requires; if not, no slope means anything.
        divergence: rates at which a wide model diverges and a copy learns; None if there are none, or none were
            tried.
    """

    widths: Sequence[float]
    labels: Sequence[str]
    trends: Sequence[ActivationTrend]
    tolerance: float
    optimizer: str
    lr: float
    steps: int
    seeds: int
    learnt: bool = True
    divergence: Divergence | None = None

    @property
    def moved(self) -> Sequence[ActivationTrend]:
        """Activations that changed at all."""
        return [one for one in self.trends if one.slope is not None]

    @property
    def worst(self) -> ActivationTrend:
        """The activation with the steepest slope."""
        return max(self.trends, key=lambda one: abs(one.slope or 0.0))

    def error(self, trend: ActivationTrend) -> float:
        """The standard error of a slope, from its own spread and the activations' common one, which counts as four
        more seeds.

        Infinite with one seed.
        """
        spreads = [one.spread**2 for one in self.moved if one.spread is not None]
        if trend.spread is None or not spreads:
            return math.inf
        own = self.seeds - 1
        variance = (own * trend.spread**2 + COMMON_SEEDS * fmean(spreads)) / (own + COMMON_SEEDS)
        return math.sqrt(variance / self.seeds)

    def reach(self, trend: ActivationTrend, seeds: int | None = None, *, alone: bool = False) -> float:
        """Half the interval of a slope.

        Args:
            trend: the trend whose slope it is.
            seeds: what it would be with this many seeds of the same spread; None means the actual number.
            alone: valid for this activation, as a pass requires; by default valid for all at once, as a failure
                requires.
        """
        error = self.error(trend)
        if math.isinf(error):
            return error
        number = seeds or self.seeds
        tail = (1 - CONFIDENCE) / 2 / (1 if alone else len(self.moved))
        return quantile(1 - tail, number - 1 + COMMON_SEEDS) * error * math.sqrt(self.seeds / number)

    @property
    def failures(self) -> Sequence[ActivationTrend]:
        """Activations whose whole intervals are steeper than tolerated, steepest first."""
        steep = [
            one
            for one in self.moved
            if one.slope is not None
            and (math.isinf(one.slope) or abs(one.slope) - self.reach(one) > self.tolerance)
        ]
        return sorted(steep, key=lambda one: -abs(one.slope or 0.0))

    @property
    def open(self) -> Sequence[ActivationTrend]:
        """Activations whose intervals go beyond the tolerance, farthest first; they may be right or wrong."""

        def most(one: ActivationTrend) -> float:
            return abs(one.slope or 0.0) + self.reach(one, alone=True)

        return sorted((one for one in self.moved if most(one) > self.tolerance), key=most, reverse=True)

    @property
    def outcome(self) -> Outcome:
        """The verdict."""
        if not self.learnt:
            return Outcome.INCONCLUSIVE
        if self.failures or self.divergence is not None:
            return Outcome.FAILED
        return Outcome.INCONCLUSIVE if self.open else Outcome.PASSED

    @property
    def passed(self) -> bool:
        """Whether every activation's change is independent of the width, within a step of 2 of the rate."""
        return self.outcome is Outcome.PASSED

    @property
    def seeds_needed(self) -> int:
        """How many seeds would tell pass from fail, if slopes and spreads stay the same.

        At least one more than there were, and at most 64, however close a slope is to the tolerance.
        """
        wanted = max(self.seeds + 1, 3)
        for one in self.open:
            gap = self.tolerance - abs(one.slope or 0.0)
            while (
                wanted < MOST_SEEDS
                and math.isfinite(gap)
                and abs(gap) < self.reach(one, wanted, alone=gap > 0) < math.inf
            ):
                wanted += 1
        return wanted

    def raise_if_failed(self) -> "CoordinateReport":
        """Returns the report if it passed.

        Raises:
            CoordinateCheckError: it failed, and the message names the activations with the steepest slopes; or it
                is inconclusive, and the message says what would decide it.
        """
        run = f"({self.optimizer}, lr {self.lr:g}, {self.steps} steps, widths {', '.join(self.labels)})"
        if self.outcome is Outcome.INCONCLUSIVE:
            raise CoordinateCheckError(
                f"the coordinate check is inconclusive {run}: {self._what_would_tell()}"
            )
        if failures := self.failures:
            named = ", ".join(
                f"{one.name} {one.slope:+.2f} ± {self.error(one):.2f}" for one in failures[:SHOWN]
            )
            more = f" and {len(failures) - SHOWN} more" if len(failures) > SHOWN else ""
            raise CoordinateCheckError(
                f"the change of activations depends on the width {run}: slopes {named}{more}; tolerated is "
                f"±{self.tolerance:g}. "
                "Hyperparameters would not transfer. Look for a layer that multiplies over a width with a "
                "plain function (see hydro.Readout and hydro.Query), or for initial values that depend on it in "
                "an unusual way." + self._chance()
            )
        if self.divergence is not None:
            raise CoordinateCheckError(
                f"the model diverges where its copy learns {run}: {self.divergence}. The copy's best rate may be too "
                "high for the model. Normalise what grows from layer to layer (LayerNorm, a mean over neighbours "
                "instead of a sum), or take a wider copy."
            )
        return self

    def raise_if_refuted(self) -> "CoordinateReport":
        """Returns the report unless it failed; an inconclusive one is returned.

        Raises:
            CoordinateCheckError: it failed.
        """
        return self.raise_if_failed() if self.outcome is Outcome.FAILED else self

    def _what_would_tell(self) -> str:
        if not self.learnt:
            return (
                "the narrowest model did not learn enough to tell what learning changes from what chance does; give a "
                "rate with lr=, or other inputs"
            )
        one = self.open[0]
        return (
            f"{one.name} has a slope of {one.slope:+.2f} ± {self.error(one):.2f}, which may be below "
            f"{self.tolerance:g} and may be steeper; more seeds would tell, seeds={self.seeds_needed}, or more widths"
        )

    def _chance(self) -> str:
        """What else may cause a failure: at first, what starts at zero falls under correct rules too."""
        falling = [one for one in self.failures if one.from_zero and not one.along_gradient]
        if len(falling) != len(self.failures) or any((one.slope or 0.0) > 0 for one in falling):
            return ""
        return (
            f" {falling[0].name} starts at zero, and what moves it first is chance, which falls with the width under "
            "right rules too, but ever less with more steps, more rows and greater widths: compare widths= twice as "
            "great. A wrong rule's slope stays."
        )

    def __str__(self) -> str:
        verdict = "FAILED" if self.outcome is Outcome.FAILED else self.outcome.value
        run = f"{self.optimizer}, lr {self.lr:g}, {self.steps} steps, {self.seeds} seeds"
        lines = [f"coordinate check: {verdict} ({run}, widths {', '.join(self.labels)})"]
        lines += [
            f"  {one.name:<32} "
            + ("unchanged" if one.slope is None else f"{one.slope:+.3f} ± {self.error(one):.3f}")
            + (" (started at zero)" if one.from_zero else "")
            for one in self.trends
        ]
        if self.divergence is not None:
            lines.append(f"  {self.divergence}")
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
        name: the activation's name.
        widths: ascending.
        changes: a row per width, a value per seed.
        fixed: whether they are changes along the gradient.
        from_zero: whether the activation starts at zero.
    """
    if all(value == 0 for row in changes for value in row):
        return ActivationTrend(name=name, changes=changes, slope=None, along_gradient=fixed)
    if any(value == 0 for row in changes for value in row):
        return ActivationTrend(name=name, changes=changes, slope=math.inf, along_gradient=fixed)
    slopes = [
        _slope(widths, [row[seed] for row in changes]) for seed in range(min(len(row) for row in changes))
    ]
    mean = fmean(slopes)
    spread = None
    if len(slopes) > 1:
        spread = math.sqrt(sum((one - mean) ** 2 for one in slopes) / (len(slopes) - 1))
    return ActivationTrend(
        name=name, changes=changes, slope=mean, spread=spread, along_gradient=fixed, from_zero=from_zero
    )


def _slope(widths: Sequence[float], values: Sequence[float]) -> float:
    """The slope of log value against log width, by least squares."""
    xs, ys = [math.log(one) for one in widths], [math.log(one) for one in values]
    x_mean, y_mean = fmean(xs), fmean(ys)
    across = sum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys, strict=True))
    return across / sum((x - x_mean) ** 2 for x in xs)


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
