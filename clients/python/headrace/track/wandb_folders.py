"""Weights & Biases, offline: a run for each trial, grouped by study, which `wandb sync` uploads.

W&B's library writes a run's folder through a process of its own, which tells nobody what it has written. So a folder
counts only once its run is finished and its file has the exit record: then it gets a position file. If there is a
folder without one when the study is opened, all folders of its trial are deleted, and the trial is written again. The
same happens if a write fails.

A run is finished when its trial has ended, when the study or the exporter ends, and when many others are open. A
trial that continues gets another folder with the same run ID, whose rows count on. `wandb sync` joins the rows of a
run's folders, but replaces its configuration and its summary, so each folder repeats them.
"""

import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import wandb

from headrace.client.model import StudyInfo
from headrace.errors import HeadraceError
from headrace.spec import Value
from headrace.spec.names import DEFAULT_PROJECT
from headrace.track import positions
from headrace.track.entries import Entry, Status
from headrace.track.names import for_wandb
from headrace.track.positions import Position, unwritable
from headrace.track.tracker import AwayError, ForgottenError, Say, Start
from headrace.track.wandb_files import completed

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
    unmarked: Path | None = None
    """The folder of a finished run that has no position file yet."""
    ended: Status | None = None
    params: dict[str, Value] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)


class WandbTool:
    """A folder with a folder `wandb`."""

    def __init__(self, folder: Path) -> None:
        self.title = f"W&B (offline) in {folder}"
        self._folder = folder

    def open(self, study: StudyInfo, say: Say, start: Start) -> "WandbRuns":
        """Reads back the study's finished runs and deletes its unfinished ones."""
        folder = self._folder / "wandb"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return WandbRuns(folder, study, say, start)
        except OSError as error:
            raise unwritable(folder, error) from None


class WandbRuns:
    """The runs of one study."""

    def __init__(self, folder: Path, study: StudyInfo, say: Say, start: Start) -> None:
        self._folder, self._study, self._say = folder, study, say
        plain = study.uid.replace("-", "")[:12]
        self._file = f"headrace-{plain}.json"
        if start is Start.SET_ASIDE:
            positions.write(folder, self._position(0), f"headrace-{plain}.{self._aside(plain)}.json")
            (folder / self._file).unlink(missing_ok=True)
        aside = self._aside(plain)
        self._key = f"{plain}r{aside}" if aside else plain
        self._told: set[str] = set()
        self._copies: dict[int, _Copy] = {}
        position = positions.read(folder, self._file)
        whole = self._read_back()
        resumed = position is not None and whole and start is not Start.REREAD
        self.cursor = position.cursor if position is not None and resumed else 0
        self.newest = max([self.cursor, *(copy.cursor for copy in self._copies.values())])

    def write(self, trial: int, found: Sequence[Entry]) -> None:
        """Writes the entries that the run lacks."""
        copy = self._copies.get(trial)
        new = [entry for entry in found if entry.cursor > (copy.cursor if copy else 0)]
        if not new:
            return
        if copy is None or (new[0].params is not None and copy.cursor):
            if new[0].params is None:
                raise ForgottenError(f"the run of trial {trial} is gone.")
            self._drop(trial)
            copy = self._copies[trial] = _Copy()
        self._mark(trial, copy)
        repeated = copy.run is None
        if copy.run is None:
            self._make_room()
            copy.run = self._opened(trial)
        try:
            if repeated:
                copy.run.config.update(copy.params)
                copy.run.summary.update(copy.summary)
            for entry in new:
                self._log(copy, entry)
        except Exception as error:  # noqa: BLE001 - W&B raises what its process's connection raises
            self._drop(trial)
            raise ForgottenError(f"the run of trial {trial} could not be written: {error!r}.") from None
        copy.cursor = new[-1].cursor

    def advance(self, cursor: int) -> None:
        """Finishes runs that have ended, and stores the study's cursor."""
        for trial, copy in list(self._copies.items()):
            if copy.run is not None and copy.ended and cursor - copy.cursor >= LINGER:
                self._finish(trial, copy)
        try:
            positions.write(self._folder, self._position(cursor), self._file)
        except OSError as error:
            raise unwritable(self._folder, error) from None
        self.cursor = cursor

    def close(self, *, ended: bool) -> None:  # noqa: ARG002 - the protocol's
        """Finishes every run, and raises the first failure."""
        failure: HeadraceError | None = None
        for trial, copy in list(self._copies.items()):
            try:
                self._finish(trial, copy)
            except HeadraceError as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def _aside(self, plain: str) -> int:
        """How often the study's runs were set aside. Those that follow have IDs of their own."""
        return len(list(self._folder.glob(f"headrace-{plain}.*.json")))

    def _position(self, cursor: int, **of_trial: Any) -> Position:
        return Position(study=self._study.name, uid=self._study.uid, cursor=cursor, **of_trial)

    def _id(self, trial: int) -> str:
        return f"{self._key}-{trial}"

    def _folders(self) -> dict[int, list[Path]]:
        """The folders of each trial. W&B adds a number to the name of a second one in the same second."""
        name = re.compile(rf"offline-run-\d+_\d+-{re.escape(self._key)}-(\d+)(-\d+)?")
        found: dict[int, list[Path]] = {}
        for folder in sorted(self._folder.iterdir()):
            if match := name.fullmatch(folder.name):
                found.setdefault(int(match[1]), []).append(folder)
        return found

    def _read_back(self) -> bool:
        """Reads the positions of finished folders; whether there were no others."""
        found = self._folders()
        for trial, folders in found.items():
            its = [positions.read(folder) for folder in folders]
            whole = [position for position in its if position is not None]
            if len(whole) < len(its):
                _delete(folders)
                continue
            last = max(whole, key=lambda position: position.cursor)
            self._copies[trial] = _Copy(
                cursor=last.cursor, rows=last.size, params=dict(last.params), summary=dict(last.summary)
            )
        return self._copies.keys() == found.keys()

    def _drop(self, trial: int) -> None:
        """Forgets a run and deletes its folders."""
        copy = self._copies.pop(trial, None)
        if copy is not None and copy.run is not None:
            with suppress(Exception):  # it is deleted, whatever state it is in
                copy.run.finish(exit_code=1)
        try:
            _delete(self._folders().get(trial, ()))
        except OSError as error:
            raise unwritable(self._folder, error) from None

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
            run.define_metric("*", step_metric=STEP)
        except Exception as error:  # noqa: BLE001 - W&B raises what its process's connection raises
            raise AwayError(f"a run cannot be started: {error!r}.") from None
        return run

    def _log(self, copy: _Copy, entry: Entry) -> None:
        if entry.params is not None:
            copy.params = dict(entry.params)
            copy.run.config.update(copy.params, allow_val_change=True)
        if entry.metrics:
            row = {self._named(name): value for name, value in entry.metrics.items()} | {STEP: entry.step}
            copy.run.log({**row, "_timestamp": entry.time_ms / 1000}, step=copy.rows)
            copy.rows += 1
            copy.summary |= row
        if entry.fields:
            fields = {f"{FIELDS}{name}": text for name, text in entry.fields.items()}
            copy.run.summary.update(fields)
            copy.summary |= fields
        if entry.status is not None:
            copy.ended = entry.status if entry.status.ended else None

    def _named(self, name: str) -> str:
        mapped = for_wandb(name)
        if mapped != name and name not in self._told:
            self._told.add(name)
            self._say(f"W&B keeps the name {name!r} for itself: it is written as {mapped!r}.")
        return mapped

    def _finish(self, trial: int, copy: _Copy) -> None:
        """Finishes the run if it is open, and then marks its folder: from now on it counts."""
        if copy.run is not None:
            copy.unmarked = Path(copy.run.settings.sync_dir)
            failed = copy.ended in (Status.FAILED, Status.KILLED)
            try:
                copy.run.finish(exit_code=1 if failed else 0)
            except Exception as error:  # noqa: BLE001 - W&B raises what its process's connection raises
                self._drop(trial)
                raise ForgottenError(f"the run of trial {trial} could not be finished: {error!r}.") from None
            copy.run = None
            if not completed(copy.unmarked):
                self._drop(trial)
                raise ForgottenError(f"the run of trial {trial} was finished, but its file is not complete.")
        self._mark(trial, copy)

    def _mark(self, trial: int, copy: _Copy) -> None:
        if copy.unmarked is None:
            return
        try:
            position = self._position(
                copy.cursor, trial=trial, size=copy.rows, params=copy.params, summary=copy.summary
            )
            positions.write(copy.unmarked, position)
        except FileNotFoundError:
            self._drop(trial)
            raise ForgottenError(f"{copy.unmarked} is gone.") from None
        except OSError as error:
            raise unwritable(copy.unmarked, error) from None
        copy.unmarked = None


def _delete(folders: Sequence[Path]) -> None:
    """Deletes folders under other names: a process of W&B's that outlived a killed exporter may still write there."""
    for folder in folders:
        away = folder.with_name(f".deleted-{folder.name}")
        shutil.rmtree(away, ignore_errors=True)
        folder.rename(away)
        shutil.rmtree(away, ignore_errors=True)
