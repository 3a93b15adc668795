"""A gang in this process: each rank is a thread with a trial of its own, and they share a folder like real ones."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.trial import Trial
from headrace.trial.runtime import TOLD, Action, Assignment, Decision, KeepBest, OwnEnd, Report


@dataclass
class RankRuntime:
    """Every report of step `stop` or later ends the trial."""

    stop: int
    folder: Path | None = None

    def attach(self) -> Assignment:
        raise AssertionError("a rank is handed its assignment here")

    def restored(self, *, read_time_s: float) -> None:
        assert read_time_s >= 0

    def report(self, report: Report) -> Decision:
        self.folder = report.checkpoint_dir or self.folder
        return Decision(action=Action.PAUSE if report.step >= self.stop else Action.CONTINUE)

    def finish(self, *, error: str, traceback: str, own: OwnEnd = TOLD) -> None:
        raise NotImplementedError("no test here runs a trial to its end")


def run_gang(
    folder: Path,
    world: int,
    body: Callable[[Trial], Any],
    *,
    restore: Path | None = None,
    resume_step: int = 0,
    stop: int = 1,
    patience_s: float = 20.0,
    milestone: int | None = None,
    keep_best: KeepBest | None = None,
) -> tuple[list[Any], Path | None]:
    """The result or error of `body` on each rank, and the folder of the checkpoint."""
    runtimes = [RankRuntime(stop) for _ in range(world)]

    def one(rank: int) -> Any:
        assignment = Assignment(
            trial="studies/s/trials/1",
            params={},
            max_steps=9,
            metric="loss",
            next_milestone=milestone or resume_step + 1,
            keep_best=keep_best,
            seed=3,
            restore_dir=restore,
            resume_step=resume_step,
            checkpoint_dir=folder,
            slots=tuple(range(world)),
            rank=rank,
            ranks=world,
            rank_patience_s=patience_s,
        )
        try:
            return body(Trial(assignment, runtimes[rank]))
        except Exception as error:  # noqa: BLE001 - it is the result
            return error

    with ThreadPoolExecutor(world) as pool:
        results = list(pool.map(one, range(world)))
    folders = {runtime.folder for runtime in runtimes}
    assert len(folders) == 1, "the ranks fill one folder"
    return results, folders.pop()
