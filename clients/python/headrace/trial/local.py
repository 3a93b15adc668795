"""A run by hand: the same script without a cluster.

Every report is a row of a table on the terminal, and there are no decisions. With a checkpoint folder, an
interrupted run continues where it was. The folder keeps the latest checkpoint and the configuration that it
belongs to.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from headrace.trial.runtime import TOLD, Action, Assignment, Decision, OwnEnd, Report, Value

_WIDTH = 12


class LocalRuntime:
    """Runs one configuration to the end of its budget."""

    def __init__(
        self,
        *,
        params: Mapping[str, Value],
        steps: int,
        seed: int,
        checkpoints: Path | None = None,
        number: int = 0,
    ) -> None:
        self._number = number
        self._params = dict(params)
        self._steps = steps
        self._seed = seed
        self._checkpoints = checkpoints
        self._columns: tuple[str, ...] = ()

    def attach(self) -> Assignment:
        """The configuration; raises `ValueError` if the folder contains a checkpoint of a different one."""
        newest = self._newest_checkpoint()
        return Assignment(
            trial=f"studies/local/trials/{self._number}",
            params=self._params,
            max_steps=self._steps,
            next_milestone=1 if self._checkpoints else self._steps,
            seed=self._seed,
            restore_dir=newest,
            resume_step=int(newest.name.split("-")[1]) if newest else 0,
            checkpoint_dir=self._checkpoints,
        )

    def restored(self, *, read_time_s: float) -> None:
        """Prints where the run continues."""
        print(f"continues from {self._newest_checkpoint()} (read in {read_time_s:.2f} s)")

    def report(self, report: Report) -> Decision:
        """Prints a row; see `decide`."""
        columns = tuple(report.metrics)
        if columns != self._columns:
            self._columns = columns
            print(f"{'step':>6}" + "".join(f"  {name:>{_WIDTH}}" for name in columns))
        row = "".join(f"  {value:>{max(_WIDTH, len(name))}.6g}" for name, value in report.metrics.items())
        print(f"{report.step:>6}{row}", flush=True)
        return self.decide(report)

    def decide(self, report: Report) -> Decision:
        """Continues to the budget, and deletes the checkpoints before this one."""
        _keep_only(report.checkpoint_dir)
        if report.step >= self._steps:
            return Decision(action=Action.STOP, reason="the budget is spent")
        return Decision(action=Action.CONTINUE, next_milestone=report.step + 1 if self._checkpoints else 0)

    def finish(self, *, error: str, traceback: str, own: OwnEnd = TOLD) -> None:  # noqa: ARG002  (its runtime's signature)
        """Does nothing: an exception is shown by Python."""
        _keep_only(own.checkpoint_dir)

    def _newest_checkpoint(self) -> Path | None:
        if self._checkpoints is None:
            return None
        self._checkpoints.mkdir(parents=True, exist_ok=True)
        known = self._checkpoints / "run.json"
        run = {"params": self._params, "seed": self._seed, "steps": self._steps}
        if not known.exists():
            known.write_text(json.dumps(run))
        elif json.loads(known.read_text()) != run:
            raise ValueError(
                f"{self._checkpoints} belongs to another run ({known.read_text()}); "
                "give --checkpoints a folder of its own"
            )
        return max(self._checkpoints.glob("step-*"), default=None, key=lambda folder: folder.name)


def _keep_only(newest: Path | None) -> None:
    """Deletes the checkpoints before this one."""
    if newest is not None:
        for older in newest.parent.glob("step-*"):
            if older != newest:
                shutil.rmtree(older)
