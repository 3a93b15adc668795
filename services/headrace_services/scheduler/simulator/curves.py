"""The source of a simulated trial's values and times.

A `Curve` is the training of one configuration: at which steps it reports, what it reports there, and how long it
trains between two steps on a device of speed 1. `Curves` returns one for each trial, in the order of the trials'
numbers: the order in which a study gets to its configurations.

The summary uses a curve's `truth`, and the scheduler gets its reported `value`. The two differ if reports are
noisy, as in the synthetic model.
"""

import math
import random
from bisect import bisect_right
from copy import copy
from typing import Protocol

from headrace.spec import Goal, StudySpec
from headrace_services.scheduler.core.records import Params


class Curve(Protocol):
    """One configuration's training."""

    @property
    def last_step(self) -> int | None:
        """Where its program ends by itself; None if it trains for as long as it may."""
        ...

    def report_step(self, after: int, milestone: int) -> int:
        """The step of the next report of a trial that has trained up to `after`.

        It is the first one at or past the milestone. It is an earlier one only if reports are noisy, so that each
        has to be drawn in turn.
        """
        ...

    def value(self, step: int) -> float | None:
        """What it reports at a step. Called once for each report, in the order in which reports arrive."""
        ...

    def train_s(self, start: int, end: int) -> float:
        """The seconds of training from one step to another at speed 1."""
        ...

    def points(self, start: int, end: int) -> tuple[tuple[int, float], ...]:
        """The reports on the way, in (start, end], and their values; none if reports are drawn one by one by
        `value`."""
        ...

    def truth(self, step: int) -> float | None:
        """The value at a step without the noise of its reports; after the curve's end, the last one."""
        ...


class Curves(Protocol):
    """The configurations of a study, in the order of the trials' numbers."""

    @property
    def size(self) -> int | None:
        """How many there are; None if there is no limit."""
        ...

    def curve(self, number: int) -> Curve:
        """The curve of trial `number`."""
        ...

    def params(self, number: int) -> Params | None:
        """The recorded configuration of trial `number`; None if the study's own sampler decides."""
        ...

    def fork(self) -> "Curves":
        """The same curves in the same state, for use by another simulation."""
        ...


class SeedModel:
    """The synthetic curves of the chapter that Headrace started from.

    Each trial has a hidden floor, uniform in [0.15, 0.95], and an amplitude of noise, uniform in [0, 0.05]. At the
    fraction f of the full budget its loss is `floor + (1.2 - floor)·(1 - f)^1.6`, and a report adds noise, uniform
    in ±amplitude. All draws come from one generator of Python's `random`: first those of all trials, then one for
    each report in the order of arrival. So equal seeds give equal figures, to the digit, and a second simulation
    on the same stream (after run-all) sees the noise that the chapter's second run saw. If the study maximizes,
    the value is 1.2 minus the loss: it rises from 0 to at most 1.05.
    """

    START = 1.2
    EXPONENT = 1.6

    def __init__(
        self,
        *,
        trials: int,
        full: int,
        seed: int,
        reports_at: tuple[int, ...] = (),
        seconds_per_step: float = 1.0,
        maximize: bool = False,
    ) -> None:
        self.full = full
        self.reports_at = reports_at
        self.seconds_per_step = seconds_per_step
        self.maximize = maximize
        self._random = random.Random(seed)  # noqa: S311  (no secret)
        self._drawn = [
            (self._random.uniform(0.15, 0.95), self._random.uniform(0.0, 0.05)) for _ in range(trials)
        ]

    @classmethod
    def of(
        cls,
        spec: StudySpec,
        *,
        seed: int,
        trials: int,
        reports_at: tuple[int, ...] = (),
        seconds_per_step: float = 1.0,
    ) -> "SeedModel":
        """The model for a study. `trials` includes the baseline, if there is one."""
        return cls(
            trials=trials,
            full=spec.max_steps,
            seed=seed,
            reports_at=reports_at,
            seconds_per_step=seconds_per_step,
            maximize=spec.objective.goal is Goal.MAXIMIZE,
        )

    @property
    def size(self) -> int | None:
        return None

    def curve(self, number: int) -> Curve:
        return _SeedCurve(self, *self._drawn[number])

    def params(self, number: int) -> Params | None:
        del number
        return None

    def fork(self) -> "SeedModel":
        other = copy(self)
        other._random = random.Random()  # noqa: S311  (no secret)
        other._random.setstate(self._random.getstate())
        return other

    def noise(self, amplitude: float) -> float:
        """The next draw of the stream."""
        return self._random.uniform(-amplitude, amplitude)


class _SeedCurve:
    __slots__ = ("_amplitude", "_floor", "_model")

    def __init__(self, model: SeedModel, floor: float, amplitude: float) -> None:
        self._model = model
        self._floor = floor
        self._amplitude = amplitude

    @property
    def last_step(self) -> int | None:
        return None

    def report_step(self, after: int, milestone: int) -> int:
        wanted = max(milestone, after + 1)
        own = self._model.reports_at
        place = bisect_right(own, after)
        return min(wanted, own[place]) if place < len(own) else wanted

    def value(self, step: int) -> float | None:
        return self._told(self._loss(step) + self._model.noise(self._amplitude))

    def train_s(self, start: int, end: int) -> float:
        return (end - start) * self._model.seconds_per_step

    def points(self, start: int, end: int) -> tuple[tuple[int, float], ...]:
        del start, end
        return ()

    def truth(self, step: int) -> float:
        return self._told(self._loss(step))

    def _told(self, loss: float) -> float:
        return SeedModel.START - loss if self._model.maximize else loss

    def _loss(self, step: int) -> float:
        left = 1.0 - min(1.0, step / self._model.full)
        return self._floor + (SeedModel.START - self._floor) * math.pow(left, SeedModel.EXPONENT)
