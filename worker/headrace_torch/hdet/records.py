"""What each sync leaves behind: a value, a line of a file, and material for a plot."""

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist

SyncCallback = Callable[["SyncReport"], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class HyperparameterRecord:
    """One hyperparameter at a sync.

    Attributes:
        name: as given; `lr/…` for learning rates.
        center: the value in the middle of the fan, from this sync on.
        values: every replica's value, from this sync on. A learning rate includes its schedule's rate of the
            next step.
        explored: every replica's value in the interval that ended.
        velocity: v after this sync.
        signal: Δ, or the direction in [−1, 1] for rules that standardise.
    """

    name: str
    center: float
    values: tuple[float, ...]
    explored: tuple[float, ...]
    velocity: float
    signal: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncReport:
    """One sync; equal on every rank except for `seconds`.

    Attributes:
        sync: its number, from 1.
        step: the optimizer steps taken so far.
        scored_by: `loss` (mean training loss of the interval) or `probe`.
        losses: what replicas were scored by; `None` if nothing was observed, NaN or ±inf if a replica diverged.
        scores: s_r; `None` for replicas without a finite loss.
        weights: w_r, which add up to 1, or are all 0 if no replica has a finite loss.
        hyperparameters: one record each.
        left_out: replicas whose parameters were not finite; they received the mean of the others.
        updated: whether centres could move: not during the warm-up, nor with automatic updates off.
        bytes_averaged: bytes that this rank passed to collectives for parameters, buffers and optimizer state.
        seconds: the time that it took this rank, the probe included.
    """

    sync: int
    step: int
    scored_by: str
    losses: tuple[float | None, ...]
    scores: tuple[float | None, ...]
    weights: tuple[float, ...]
    hyperparameters: tuple[HyperparameterRecord, ...]
    left_out: tuple[int, ...]
    updated: bool
    bytes_averaged: int
    seconds: float

    def hyperparameter(self, name: str) -> HyperparameterRecord:
        """Returns a hyperparameter's record.

        Raises:
            KeyError: there is no record of that name.
        """
        for record in self.hyperparameters:
            if record.name == name:
                return record
        raise KeyError(name)

    def to_json(self) -> str:
        """Returns one line of strict JSON.

        Losses that are not finite become null, and `diverged` lists their replicas.
        """
        fields: dict[str, Any] = asdict(self)
        diverged = [r for r, loss in enumerate(self.losses) if loss is not None and not math.isfinite(loss)]
        fields["losses"] = [None if r in diverged else loss for r, loss in enumerate(self.losses)]
        return json.dumps({**fields, "diverged": diverged}, allow_nan=False)

    @classmethod
    def from_json(cls, line: str) -> "SyncReport":
        """Returns the record of a line; a diverged loss comes back as NaN."""
        fields = json.loads(line)
        for r in fields.pop("diverged"):
            fields["losses"][r] = math.nan
        fields["hyperparameters"] = [
            HyperparameterRecord(**{key: _tuple(value) for key, value in one.items()})
            for one in fields["hyperparameters"]
        ]
        return cls(**{key: _tuple(value) for key, value in fields.items()})


class JsonLines:
    """A callback that appends each record to a file, on rank 0 only."""

    def __init__(self, path: str | Path) -> None:
        """Names the file; its folder must exist."""
        self._path = Path(path)

    def __call__(self, report: SyncReport) -> None:
        """Appends a line."""
        if dist.is_available() and dist.is_initialized() and dist.get_rank() != 0:
            return
        with self._path.open("a", encoding="utf-8") as file:
            file.write(report.to_json() + "\n")


def read_records(path: str | Path) -> list[SyncReport]:
    """Returns the records of a file in the order of their syncs.

    A resumed run repeats the syncs since its checkpoint: the last record of each sync counts. A truncated last
    line is dropped.
    """
    by_sync: dict[int, SyncReport] = {}
    lines = Path(path).read_text(encoding="utf-8").split("\n")
    for line in _complete(lines):
        report = SyncReport.from_json(line)
        by_sync[report.sync] = report
    return [by_sync[sync] for sync in sorted(by_sync)]


def _complete(lines: list[str]) -> Iterable[str]:
    return filter(None, lines[:-1])


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
