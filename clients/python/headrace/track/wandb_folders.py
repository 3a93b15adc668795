"""Weights & Biases, offline: a run for each trial, grouped by study, which `wandb sync` uploads.

W&B's library writes a run's folder through a process of its own, which tells nobody what it has written. So a folder
counts only once its run is finished and its file has the exit record: then it gets a position file. If there is a
folder without one when the study is opened, it is deleted, and its trial is written again from the folders that do
count. The same happens if a write fails. The study's own position is deleted first, so that its events are read again
even if the exporter is killed meanwhile.

A run is finished when its trial has ended, when the study or the exporter ends, and when many others are open. A
trial that continues gets another folder with the same run ID, whose rows count on. `wandb sync` joins the rows of a
run's folders, but replaces its configuration and its summary, so each folder repeats them.

The number of open runs is bounded for all studies of the process together: a study's thread also finishes runs of
others. Each study has a lock, and one that is in use is left alone.
"""

import re
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from weakref import WeakSet

import wandb

from headrace.client.model import StudyInfo
from headrace.durable import DELETED
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
"""How many runs the process has open, except that studies that are being written may each open another one."""
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
    written_s: float = 0.0
    """When the run was written last."""
    unmarked: Path | None = None
    """The folder of a finished run that has no position file yet."""
    ended: Status | None = None
    params: dict[str, Value] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)


_STUDIES: Final["WeakSet[WandbRuns]"] = WeakSet()
"""The open studies of the process."""
_ROOM: Final = threading.Lock()
"""Held while runs are counted, and while some are finished so that others may be opened."""


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
            for left in folder.glob(f"{DELETED}*"):
                shutil.rmtree(left, ignore_errors=True)
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
            new = f"headrace-{plain}.{self._aside(plain)}.json"
            try:
                (folder / self._file).rename(folder / new)
            except FileNotFoundError:
                positions.write(folder, self._position(0), new)
        aside = self._aside(plain)
        self._key = f"{plain}r{aside}" if aside else plain
        self._told: set[str] = set()
        self._copies: dict[int, _Copy] = {}
        self._lock = threading.RLock()
        self._forgotten: ForgottenError | None = None
        """Why the study must be opened again."""
        unfinished = self._read_back()
        if unfinished or start is Start.REREAD:
            positions.remove(folder, self._file)
            _delete(unfinished)
        position = positions.read(folder, self._file)
        self.cursor = position.cursor if position is not None else 0
        self.newest = max([self.cursor, *(copy.cursor for copy in self._copies.values())])
        with _ROOM:
            _STUDIES.add(self)

    def write(self, trial: int, found: Sequence[Entry]) -> None:
        """Writes the entries that the run lacks."""
        with self._used():
            self._write(trial, found)

    def _write(self, trial: int, found: Sequence[Entry]) -> None:
        copy = self._copies.get(trial)
        new = [entry for entry in found if entry.cursor > (copy.cursor if copy else 0)]
        if not new:
            return
        if copy is None or (new[0].params is not None and copy.cursor):
            if new[0].params is None:
                raise ForgottenError(f"the run of trial {trial} is gone.")
            if copy is not None:
                self._restart(trial, copy)
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
            raise self._forget(trial, f"could not be written: {error!r}") from None
        copy.cursor, copy.written_s = new[-1].cursor, time.monotonic()

    def advance(self, cursor: int) -> None:
        """Finishes runs that have ended, and stores the study's cursor."""
        with self._used():
            for trial, copy in list(self._copies.items()):
                if copy.run is not None and copy.ended and cursor - copy.cursor >= LINGER:
                    self._finish(trial, copy)
            try:
                positions.write(self._folder, self._position(cursor), self._file)
            except FileNotFoundError:
                raise ForgottenError(f"{self._folder} is gone.") from None
            except OSError as error:
                raise unwritable(self._folder, error) from None
            self.cursor = cursor

    def close(self, *, ended: bool) -> None:  # noqa: ARG002 - the protocol's
        """Finishes every run, and raises the first failure."""
        failure: HeadraceError | None = None
        with self._lock:
            for trial, copy in list(self._copies.items()):
                try:
                    self._finish(trial, copy)
                except HeadraceError as error:
                    failure = failure or error
            if (failure := self._forgotten or failure) is not None:
                raise failure

    @contextmanager
    def _used(self) -> Iterator[None]:
        """Keeps the threads of other studies away."""
        with self._lock:
            if self._forgotten is not None:
                raise self._forgotten
            yield

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

    def _read_back(self) -> list[Path]:
        """Reads the positions of finished folders; returns those that do not count."""
        unfinished: list[Path] = []
        for trial, folders in self._folders().items():
            its = [positions.read(folder) for folder in folders]
            whole = [position for position in its if position is not None]
            if None in its[: len(whole)]:  # an earlier folder was damaged, so the later ones lack its rows
                whole = []
            unfinished += folders[len(whole) :]
            if whole:
                last = max(whole, key=lambda position: position.cursor)
                self._copies[trial] = _Copy(
                    cursor=last.cursor, rows=last.size, params=dict(last.params), summary=dict(last.summary)
                )
        return unfinished

    def _forget(self, trial: int, why: str) -> ForgottenError:
        """Gives a run up: its folder counts no more, and is deleted when the study is opened again."""
        self._forgotten = ForgottenError(f"the run of trial {trial} {why}.")
        self._abandon(self._copies.pop(trial))
        return self._forgotten

    def _restart(self, trial: int, copy: _Copy) -> None:
        """Deletes all folders of a trial."""
        self._abandon(copy)
        try:
            _delete(self._folders().get(trial, ()))
        except OSError as error:
            raise unwritable(self._folder, error) from None

    def _abandon(self, copy: _Copy) -> None:
        """Finishes a run and deletes the study's position, before the run's folder is deleted."""
        if copy.run is not None:
            with suppress(Exception):  # it is deleted, whatever state it is in
                copy.run.finish(exit_code=1)
            copy.run = None
        try:
            positions.remove(self._folder, self._file)
        except OSError as error:
            raise unwritable(self._folder, error) from None

    def _make_room(self) -> None:
        """Finishes the process's runs that were written longest ago, if too many are open."""
        with _ROOM:
            opened = [
                (copy.written_s, trial, runs)
                for runs in _STUDIES
                for trial, copy in list(runs._copies.items())
                if copy.run is not None
            ]
            excess = len(opened) + 1 - MOST_OPEN
            for _, trial, runs in sorted(opened, key=lambda one: one[:2]):
                if excess > 0 and runs._given_up(trial):
                    excess -= 1

    def _given_up(self, trial: int) -> bool:
        """Finishes a run so that another one may be opened; False if the study is being written."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            with suppress(HeadraceError):  # the study's next use raises it, or tries again
                if (copy := self._copies.get(trial)) is not None:
                    self._finish(trial, copy)
        finally:
            self._lock.release()
        return True

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
                raise self._forget(trial, f"could not be finished: {error!r}") from None
            copy.run = None
            if not completed(copy.unmarked):
                raise self._forget(trial, "was finished, but its file is not complete")
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
            raise self._forget(trial, f"is gone: {copy.unmarked}") from None
        except OSError as error:
            raise unwritable(copy.unmarked, error) from None
        copy.unmarked = None


def _delete(folders: Sequence[Path]) -> None:
    """Deletes folders under other names: a process of W&B's that outlived a killed exporter may still write there."""
    for folder in folders:
        away = folder.with_name(f"{DELETED}{folder.name}")
        shutil.rmtree(away, ignore_errors=True)
        folder.rename(away)
        shutil.rmtree(away, ignore_errors=True)
