"""Weights & Biases, offline: a run for each trial, grouped by study, which `wandb sync` uploads.

W&B's library writes a run's folder through a process of its own, which tells nobody what it has written until the
run is finished. So a folder counts only once its run is finished: then it gets a position file. A folder without
one is deleted when the study is opened, and its events are read again from the first one.

A run is finished when its trial has ended, when the study or the exporter ends, and when many others are open. A
trial that continues gets another folder with the same run ID, whose rows count on; `wandb sync` joins them.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import wandb

from headrace.client.model import StudyInfo
from headrace.spec.names import DEFAULT_PROJECT
from headrace.track import copies
from headrace.track.copies import Position
from headrace.track.entries import Entry, Status
from headrace.track.names import for_wandb
from headrace.track.tracker import AwayError, ForgottenError, Say

STEP: Final = "headrace/step"
FIELDS: Final = "headrace/"
"""The prefix of fields in a run's summary."""
MOST_OPEN: Final = 50
LINGER: Final = 50
"""How many events of the study an ended run stays open for, because a few more of its own may follow."""
PROJECT: Final = "headrace"


@dataclass(slots=True, kw_only=True)
class _Copy:
    """What is known of a trial's run."""

    cursor: int = 0
    rows: int = 0
    run: Any = None
    """The open run; None if none is."""
    ended: Status | None = None


class WandbTool:
    """A folder with a folder `wandb`."""

    def __init__(self, folder: Path) -> None:
        self.title = f"W&B (offline) in {folder}"
        self._folder = folder

    def open(self, study: StudyInfo, say: Say, *, again: bool) -> "WandbRuns":
        """Reads back the study's finished runs and deletes its unfinished ones."""
        folder = self._folder / "wandb"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return WandbRuns(folder, study, say, again=again)
        except OSError as error:
            raise _cannot(folder, error) from None


class WandbRuns:
    """The runs of one study."""

    def __init__(self, folder: Path, study: StudyInfo, say: Say, *, again: bool) -> None:
        self._folder, self._study, self._say = folder, study, say
        self._key = study.uid.replace("-", "")[:12]
        self._file = f"headrace-{self._key}.json"
        self._told: set[str] = set()
        self._copies: dict[int, _Copy] = {}
        position = copies.read(folder, self._file)
        whole = self._read_back()
        self.cursor = position.cursor if position is not None and whole and not again else 0

    def write(self, trial: int, found: Sequence[Entry]) -> None:
        """Writes the entries that the run lacks."""
        copy = self._copies.get(trial)
        new = [entry for entry in found if entry.cursor > (copy.cursor if copy else 0)]
        if not new:
            return
        if copy is None or (new[0].params is not None and copy.cursor):
            if new[0].params is None:
                raise ForgottenError(f"the run of trial {trial} is gone.")
            self._remove(trial)
            copy = self._copies[trial] = _Copy()
        if copy.run is None:
            self._make_room()
            copy.run = self._opened(trial)
        for entry in new:
            self._log(copy, entry)
        copy.cursor = new[-1].cursor

    def advance(self, cursor: int) -> None:
        """Finishes runs that have ended, and stores the study's cursor."""
        for trial, copy in self._copies.items():
            if copy.run is not None and copy.ended and cursor - copy.cursor >= LINGER:
                self._finish(trial, copy)
        try:
            copies.write(
                self._folder, Position(study=self._study.name, uid=self._study.uid, cursor=cursor), self._file
            )
        except OSError as error:
            raise _cannot(self._folder, error) from None
        self.cursor = cursor

    def close(self, *, ended: bool) -> None:  # noqa: ARG002
        """Finishes every run."""
        for trial, copy in self._copies.items():
            if copy.run is not None:
                self._finish(trial, copy)

    def _id(self, trial: int) -> str:
        return f"{self._key}-{trial}"

    def _folders(self, run_id: str) -> list[Path]:
        return sorted(self._folder.glob(f"offline-run-*-{run_id}"))

    def _read_back(self) -> bool:
        """Reads the positions of finished folders; whether there were no others."""
        whole = True
        for folder in self._folders(f"{self._key}-*"):
            position = copies.read(folder)
            if position is None or position.trial is None:
                _delete(folder)
                whole = False
                continue
            copy = self._copies.setdefault(position.trial, _Copy())
            copy.cursor, copy.rows = max(copy.cursor, position.cursor), max(copy.rows, position.size)
        return whole

    def _remove(self, trial: int) -> None:
        for folder in self._folders(self._id(trial)):
            _delete(folder)

    def _make_room(self) -> None:
        opened = [(copy.cursor, trial) for trial, copy in self._copies.items() if copy.run is not None]
        if len(opened) >= MOST_OPEN:
            trial = min(opened)[1]
            self._finish(trial, self._copies[trial])

    def _opened(self, trial: int) -> Any:
        """Starts a run. Anything about this process and machine is left out: it is not the trial's."""
        project = self._study.project
        try:
            run = wandb.init(
                mode="offline",
                dir=str(self._folder.parent),
                id=self._id(trial),
                project=PROJECT if project in ("", DEFAULT_PROJECT) else project,
                group=self._study.name,
                name=f"{self._study.name}/{trial}",
                job_type="trial",
                reinit="create_new",
                settings=wandb.Settings(
                    silent=True,
                    console="off",
                    disable_git=True,
                    disable_code=True,
                    disable_job_creation=True,
                    x_disable_stats=True,
                    x_disable_meta=True,
                    x_save_requirements=False,
                ),
            )
        except wandb.Error as error:
            raise AwayError(f"a run cannot be started: {error}.") from None
        run.define_metric("*", step_metric=STEP)
        return run

    def _log(self, copy: _Copy, entry: Entry) -> None:
        if entry.params is not None:
            copy.run.config.update(dict(entry.params), allow_val_change=True)
        if entry.metrics:
            row = {self._named(name): value for name, value in entry.metrics.items()}
            copy.run.log({**row, STEP: entry.step, "_timestamp": entry.time_ms / 1000}, step=copy.rows)
            copy.rows += 1
        if entry.fields:
            copy.run.summary.update({f"{FIELDS}{name}": text for name, text in entry.fields.items()})
        if entry.status is not None:
            copy.ended = entry.status if entry.status.ended else None

    def _named(self, name: str) -> str:
        mapped = for_wandb(name)
        if mapped != name and name not in self._told:
            self._told.add(name)
            self._say(f"W&B keeps the name {name!r} for itself: it is written as {mapped!r}.")
        return mapped

    def _finish(self, trial: int, copy: _Copy) -> None:
        """Finishes the run, and then marks its folder: from now on it counts."""
        run, copy.run = copy.run, None
        folder = Path(run.settings.sync_dir)
        failed = copy.ended in (Status.FAILED, Status.KILLED)
        run.finish(exit_code=1 if failed else 0)
        position = Position(
            study=self._study.name, uid=self._study.uid, trial=trial, cursor=copy.cursor, size=copy.rows
        )
        try:
            copies.write(folder, position)
        except OSError as error:
            raise ForgottenError(f"{folder} is gone ({error.strerror}).") from None


def _delete(folder: Path) -> None:
    """Deletes a folder under another name: a process of W&B's that outlived a killed exporter may still write there."""
    away = folder.with_name(f".deleted-{folder.name}")
    shutil.rmtree(away, ignore_errors=True)
    folder.rename(away)
    shutil.rmtree(away, ignore_errors=True)


def _cannot(folder: Path, error: OSError) -> AwayError:
    return AwayError(f"{folder} cannot be written: {error.strerror}.")
