"""Files that ended studies have left on disk and that could be deleted: checkpoints, logs and reports.

Nothing of a live study is ever listed, nor anything of another study: each study has its own folders, named by
its name and its `uid` (`headrace.folders`), and only those are searched. Files on other machines cannot be seen
from here, and are not listed. The scheduler forgets the checkpoints that are deleted, so that nobody is sent to them.
"""

import shutil
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from headrace.checkpoints import Place
from headrace.client.kept import open_store
from headrace.client.missing import MissingExtraError
from headrace.client.model import StudyInfo, TrialInfo
from headrace.client.outcome import Outcome
from headrace.client.study_flows import forget_checkpoints
from headrace.client.sync import Client
from headrace.errors import StudyNotEndedError, StudyNotFoundError
from headrace.folders import study_folder
from headrace.home import home_dir


class StudyMovedError(Exception):
    """A study has changed since its leftovers were found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """One kind of file that one ended study has left in one place."""

    study: str
    what: Literal["checkpoints", "logs", "report"]
    where: str
    """A store's URL, or a path."""
    size_bytes: int
    trials: tuple[str, ...] = ()
    """For checkpoints: the trials' folders in the store."""
    uris: tuple[str, ...] = ()
    """The checkpoints in these folders that trials of the study refer to."""
    uid: str
    """The study's uid."""
    cursor: int
    """The study's cursor when this was found."""

    def delete(self, client: Client) -> None:
        """Deletes it, if the study has ended and has not changed since this was found: the status is read again
        before each place. Files that are already gone are not an error. The scheduler forgets checkpoints before
        they are deleted.

        Raises `StudyMovedError` if the study has changed, and `OSError` if something cannot be deleted.
        """
        if self.what == "checkpoints":
            self._delete_checkpoints(client)
            return
        self._require_unmoved(client)
        path = Path(self.where)
        with suppress(FileNotFoundError):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    def _delete_checkpoints(self, client: Client) -> None:
        """Deletes checkpoints after the scheduler has forgotten them: if this is interrupted, files are left that the
        next `gc` lists again, but no reference to files that are gone.
        """
        self._require_unmoved(client)
        client.transport.run(forget_checkpoints(client.study(self.study), self.uris, cursor=self.cursor))
        store = open_store(self.where)
        for trial in self.trials:
            self._require_unmoved(client)
            store.clear(trial)

    def _require_unmoved(self, client: Client) -> None:
        try:
            now = client.study(self.study).status()
        except StudyNotFoundError:
            raise StudyMovedError(f"study '{self.study}' has been deleted meanwhile") from None
        if not now.state.ended:
            raise StudyMovedError(f"study '{self.study}' has been reopened")
        if (now.uid, now.cursor) != (self.uid, self.cursor):
            raise StudyMovedError(f"study '{self.study}' has changed since this was listed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What could be deleted, and what was not searched."""

    leftovers: tuple[Leftover, ...]
    elsewhere: tuple[str, ...]
    """Stores and folders that this machine cannot access, or that do not answer."""
    kept_bytes: int
    """The size of the best trials' checkpoints, which stay."""


def find(client: Client, names: Sequence[str] = (), *, best_too: bool = False) -> Found:
    """What ended studies have left: those with these names, or all. The checkpoints of a study's best trial, and
    of those on its Pareto front, stay unless `best_too`.

    Raises `StudyNotEndedError` for the name of a live study, before anything else is searched.
    """
    if names:
        studies = [client.study(name).status() for name in dict.fromkeys(names)]
        for study in studies:
            if not study.state.ended:
                raise StudyNotEndedError(
                    f"study '{study.name}' is {study.state.value}",
                    remedy=f"Only what ended studies left is deleted; `headrace stop {study.name}` ends it.",
                )
    else:
        studies = [client.study(one.name).status() for one in client.studies() if one.state.ended]
    looked = _Looked(best_too=best_too)
    for study in studies:
        if study.uid:  # without a uid, its folders could belong to another study
            looked.at(study, client.study(study.name).trials())
    return Found(
        leftovers=tuple(looked.leftovers), elsewhere=tuple(looked.elsewhere), kept_bytes=looked.kept_bytes
    )


@dataclass(slots=True, kw_only=True)
class _Looked:
    """What has been found so far."""

    best_too: bool
    leftovers: list[Leftover] = field(default_factory=list)
    elsewhere: dict[str, None] = field(default_factory=dict)
    kept_bytes: int = 0

    def at(self, study: StudyInfo, trials: Sequence[TrialInfo]) -> None:
        """Searches one ended study."""
        good = frozenset() if self.best_too else _good(study, trials)
        for store in _stores(study, trials):
            try:
                sizes = _sizes(store, _place(study))
            except (MissingExtraError, OSError):
                self.elsewhere[store] = None
            else:
                self._add_checkpoints(study, trials, store, sizes, good)
        for folder in _log_folders(study, trials):
            if folder.is_dir() and not folder.is_symlink():
                self.leftovers.append(_on_disk(study, "logs", folder))
            elif not folder.parent.is_dir():
                self.elsewhere[str(folder.parent)] = None
        report = home_dir() / "reports" / f"{study_folder(study.name, study.uid)}.html"
        if report.is_file() and not report.is_symlink():
            self.leftovers.append(_on_disk(study, "report", report))

    def _add_checkpoints(
        self,
        study: StudyInfo,
        trials: Iterable[TrialInfo],
        store: str,
        sizes: Mapping[str, int],
        good: frozenset[str],
    ) -> None:
        self.kept_bytes += sum(size for trial, size in sizes.items() if trial in good)
        gone = {trial: size for trial, size in sizes.items() if trial not in good}
        if gone:
            self.leftovers.append(
                Leftover(
                    study=study.name,
                    what="checkpoints",
                    where=store,
                    size_bytes=sum(gone.values()),
                    trials=tuple(sorted(gone)),
                    uris=_referred(trials, store, gone),
                    uid=study.uid,
                    cursor=study.cursor,
                )
            )


def _good(study: StudyInfo, trials: Sequence[TrialInfo]) -> frozenset[str]:
    """The folders of trials whose checkpoints somebody may want to load; all trials, if the front is unknown.
    The checkpoint of a member of a population may be in the folder of the member that it copied.
    """
    best = [study.leader] if study.leader is not None else []
    good = trials if Outcome(study).front_left_out else (*best, *study.front)
    numbers = {trial.number for trial in good}
    good = (*good, *(trial for trial in trials if trial.number in numbers))
    kept = [one for trial in good for one in trial.checkpoints]
    lent = {place.trial for one in kept if (place := Place.of(one.uri)) is not None}
    return frozenset(lent | {f"{_place(study)}/trials/{number}" for number in numbers})


def _place(study: StudyInfo) -> str:
    return f"studies/{study_folder(study.name, study.uid)}"


def _stores(study: StudyInfo, trials: Iterable[TrialInfo]) -> list[str]:
    """The stores in which workers have put checkpoints of a study, as far as its trials show. A user's own
    address does not count, nor does one outside the study's folder.
    """
    kept = [one for trial in trials for one in trial.checkpoints]
    places = [place for one in kept if one.manifest_sha256 and (place := Place.of(one.uri)) is not None]
    return list(dict.fromkeys(place.store for place in places if place.study == _place(study)))


def _referred(trials: Iterable[TrialInfo], store: str, folders: Container[str]) -> tuple[str, ...]:
    """The checkpoints in these folders of a store that trials refer to."""
    kept = dict.fromkeys(one.uri for trial in trials for one in trial.checkpoints)
    places = {uri: Place.of(uri) for uri in kept}
    return tuple(
        uri
        for uri, place in places.items()
        if place is not None and place.store == store and place.trial in folders
    )


def _sizes(url: str, study: str) -> dict[str, int]:
    """The bytes of each trial. Raises `OSError` if the store is unavailable, or on another machine."""
    store = open_store(url)
    store.require()
    return store.sizes(study)


def _log_folders(study: StudyInfo, trials: Iterable[TrialInfo]) -> list[Path]:
    """The folders of the study's logs, which include those of its bundles."""
    name = study_folder(study.name, study.uid)
    parents = [Path(trial.log_path).parent for trial in trials if trial.log_path]
    return [folder for folder in dict.fromkeys(parents) if folder.name == name and folder.is_absolute()]


def _on_disk(study: StudyInfo, what: Literal["logs", "report"], path: Path) -> Leftover:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if not file.is_dir()]
    size = 0
    for file in files:
        with suppress(FileNotFoundError):
            size += file.stat(follow_symlinks=False).st_size
    return Leftover(
        study=study.name, what=what, where=str(path), size_bytes=size, uid=study.uid, cursor=study.cursor
    )
