"""A trial's steps in a loop that a framework owns.

A trial's own loop is `for step in t.steps()`: its head counts, restores the random generators and learns that the
trial must stop; its last line reports. A framework runs the loop itself and calls hooks. At two of these hooks,
`Turns` does what the loop does at its head and its last line:

- `begin`, once, when the framework has built and restored everything and is about to train.
- `end`, at the end of every step, when everything that the next step reads has its value. It reports, which also
  saves. It says whether the training continues.

Between `end` and the next step the framework must change nothing that a checkpoint holds.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from headrace.trial import Trial


class Turns:
    """The steps of one training. `maker` is the call that made it, for messages."""

    def __init__(self, t: Trial, maker: str) -> None:
        if not isinstance(t, Trial):
            raise TypeError(
                f"{maker}(...) got a {type(t).__name__}; give it the trial, as in {maker}(t): the argument of the "
                "function in trial.main(train), or trial.current(defaults={...}, steps=...), also in a run by hand"
            )
        self._t = t
        self._maker = maker
        self._steps: Iterator[int] | None = None
        self._is_over = False

    def begin(self) -> None:
        """The training starts, or resumes. Raises `ValueError` for a second training of one trial."""
        if self._steps is not None:
            raise ValueError(
                f"{self._maker}(t) has already followed one training run, and a trial is one run: train "
                "again without this callback, or give the second run its own trial"
            )
        self._steps = self._t.steps()
        self._is_over = next(self._steps, None) is None

    def end(self, metrics: Mapping[str, Any], *, last: bool = False) -> bool:
        """Reports a step, and says whether there is another one.

        `last`: the framework ends the training here by itself, as early stopping does. The step is saved, and a process
        that resumes there must end at once too.

        A trial that resumes after its last step has nothing to report. Some frameworks evaluate once more then.
        """
        assert self._steps is not None
        if self._is_over:
            return False
        self._t.report(metrics, save=last)
        return not last and next(self._steps, None) is not None


def refuse_ranks(ranks: int, *, where: str, remedy: str) -> None:
    """Raises `ValueError` if a training has several processes."""
    if ranks > 1:
        raise ValueError(
            f"{where} trains on {ranks} ranks, and this callback saves and reports for one process. {remedy}. For "
            "a trial on several GPUs write the loop yourself: docs/how-to/multi-gpu-trials.md"
        )


def refuse_other_budget(t: Trial, steps: float, *, setting: str, remedy: str) -> None:
    """Raises `ValueError` if a framework would train another number of steps than the trial's budget has."""
    if steps != t.max_steps:
        raise ValueError(
            f"{setting} means {steps} training steps, and the trial's budget is {t.max_steps}. {remedy}"
        )
