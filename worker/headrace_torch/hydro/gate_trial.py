"""The trial of a gate: checks a study's surrogate, and reports the steepest slope.

It has two steps. The first runs the check, stores its verdict and its plot in the checkpoint, and reports. The
second raises if the check did not pass. So there is always a report before the failure, which is then attributed
to this trial and not to a machine. A trial that is lost between the two does not check again.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from headrace_torch.hydro.coordinate_check.check import coordinate_check
from headrace_torch.hydro.coordinate_check.plot import draw_coordinate_check
from headrace_torch.hydro.coordinate_check.report import CoordinateReport
from headrace_torch.hydro.errors import CoordinateCheckError
from headrace_torch.hydro.shrink.surrogate import Surrogate
from headrace_torch.hydro.study import named, surrogate_of

PLOT = "coordinate_check.svg"
_OTHERWISE = "In the study file gate: {widths: [...]} compares other widths, and gate: false skips the check."


class Settings(Protocol):
    """What the study says about its surrogate."""

    model: str
    width: int
    scale: int
    optimizer: str
    inputs: str
    widths: tuple[int, ...]


class GateTrial(Protocol):
    """The trial, as far as it is needed here; `headrace.trial.Trial` implements it."""

    surrogate: Settings | None
    state: dict[str, Any]

    @property
    def cpus(self) -> int:
        """How many cores this process may use."""

    def with_arguments(self, factory: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
        """The factory, with the arguments that the trial's parameters give it."""

    def track(self, **named: Any) -> None:
        """Stores an object in the checkpoint."""

    def steps(self) -> Iterator[int]:
        """The remaining steps."""

    def report(self, metrics: Mapping[str, float], /, *, save: bool = False) -> None:
        """Reports a step."""


class Plot:
    """The plot of a check, as a file of a checkpoint."""

    def __init__(self) -> None:
        self.drawing = ""

    def save_files(self, folder: Path) -> None:
        """Writes it."""
        (folder / PLOT).write_text(self.drawing, encoding="utf-8")

    def load_files(self, folder: Path) -> None:
        """Reads it."""
        self.drawing = (folder / PLOT).read_text(encoding="utf-8")


def run(t: GateTrial) -> None:
    """Checks the surrogate of the trial's study.

    Raises:
        CoordinateCheckError: the check did not pass; names the layers with the steepest slopes.
    """
    torch.set_num_threads(
        t.cpus
    )  # more threads than cores would wait for each other at each of its many small operations
    plot = Plot()
    t.track(plot=plot)
    for step in t.steps():
        if step == 1:
            verdict, slope = _check(t, plot)
            t.state.update(verdict=verdict, slope=slope)
        elif t.state["verdict"]:
            raise CoordinateCheckError(t.state["verdict"])
        t.report({"worst_slope": t.state["slope"]}, save=step == 1)


def _check(t: GateTrial, plot: Plot) -> tuple[str, float]:
    """Why the check did not pass, or nothing; and the steepest slope, NaN if there is none."""
    settings = t.surrogate
    assert settings is not None, "a gate's study has a surrogate"
    surrogate = _surrogate(t, settings)
    try:
        report = coordinate_check(surrogate, optimizer=settings.optimizer, widths=settings.widths or None)
    except CoordinateCheckError as error:  # there was no report: a loss that is not finite, for example
        return str(error), math.nan
    print(report, flush=True)
    plot.drawing = draw_coordinate_check(report)
    try:
        report.raise_if_failed()
    except CoordinateCheckError as error:
        return f"{error} {_OTHERWISE}", _steepest(report)
    return "", _steepest(report)


def _surrogate(t: GateTrial, settings: Settings) -> Surrogate:
    return surrogate_of(
        t.with_arguments(named(settings.model)),
        width=settings.width or None,
        scale=settings.scale or None,
        optimizer=settings.optimizer,
        inputs=settings.inputs,
    )


def _steepest(report: CoordinateReport) -> float:
    return abs(report.worst.slope or 0.0)
