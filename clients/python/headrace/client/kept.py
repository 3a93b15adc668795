"""Checkpoints outside a trial: which one is meant, and its files or their contents.

The scheduler knows where a checkpoint is, but never has its files. They are read from the store: a folder that
this machine can access, or S3.
"""

import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlsplit

from headrace.checkpoints import (
    CheckpointMissingError,
    CheckpointStore,
    CheckpointUnreadableError,
    Place,
    StoreUnavailableError,
    store_from_url,
)
from headrace.checkpoints.manifest import verify
from headrace.client.arguments import whole_number
from headrace.client.convert import checkpoint_to_proto
from headrace.client.deleted import deleted_checkpoint
from headrace.client.missing import MissingExtraError
from headrace.client.model import Checkpoint, Report, StudyInfo, TrialInfo
from headrace.client.sync import Client
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.trial.reading import Saved

_T = TypeVar("_T")
_DELETED = "`headrace gc` and retention ages delete checkpoints of ended studies."
_KEEPS_LAST = (
    "Write `objective: {…, keep: best}` in a study file to keep it. Ask without `best` for the last one."
)


class NoCheckpointError(HeadraceError):
    """The requested checkpoint does not exist, or cannot be reached from here."""


def load(
    study: str,
    trial: int | None = None,
    *,
    rung: int | None = None,
    best: bool = False,
    last: bool = False,
    address: str | None = None,
) -> dict[str, Any]:
    """The states of the objects that a trial tracked, by name, as in
    `model.load_state_dict(load("digits")["model"])`.

    Without `trial`, the study's best trial is used. By default, the checkpoint is that of its best value if the
    study says `keep: best`, otherwise its last one; for a trial that counts with an earlier end
    (`TrialInfo.counted_end`), that end's. `last=True` requests the last checkpoint, `best=True` only that of the
    best value, and `rung` that of the rung at this step. Tensors are on the CPU. For a gang, these are the
    states that rank 0 saved.

    Raises `NoCheckpointError` if there is no such checkpoint, if it was damaged, or if its store cannot be reached from
    this machine. `address` is the scheduler's, as in `Client`.
    """
    with Client(address) as client:
        _, info, found = find(client, study, trial, rung=rung, best=best, last=last)
    saved = _first_there(info, found, _read)
    if saved.files:
        names = ", ".join(saved.files)
        raise NoCheckpointError(
            f"{names} of trial {info.number} of study {study} saved itself in files of its own.",
            remedy=f"Copy them with `headrace checkpoint get {study} {info.number}`, and find them in "
            "trial.read_checkpoint(FOLDER).files.",
        )
    if saved.state and not saved.tracked:
        raise NoCheckpointError(
            f"Trial {info.number} of study {study} tracks nothing: what it saved is in t.state.",
            remedy=f"Copy it with `headrace checkpoint get {study} {info.number}`, and find it in "
            "trial.read_checkpoint(FOLDER).state.",
        )
    return dict(saved.tracked)


def find(
    client: Client, study: str, number: int | None, *, rung: int | None, best: bool, last: bool
) -> tuple[StudyInfo, TrialInfo, list[Checkpoint]]:
    """The study, the trial, and the checkpoints that may be meant, most likely first.

    Raises `NoCheckpointError`, `ValueError` for more than one choice, and the client's errors.
    """
    if (rung is not None) + best + last > 1:
        raise ValueError("give one of rung, best and last")
    if rung is not None:
        rung = whole_number("rung", rung, "Give the step of a rung, such as rung=9.")
    handle = client.study(study)
    status = handle.status()
    info = _best(status) if number is None else handle.trial(number).info()
    reports = handle.trial(info.number).reports
    return status, info, choose(status, info, rung=rung, best=best, last=last, reports=reports)


def choose(
    study: StudyInfo,
    trial: TrialInfo,
    *,
    rung: int | None,
    best: bool,
    last: bool,
    reports: Callable[[], Iterable[Report]],
) -> list[Checkpoint]:
    """The checkpoints that may be meant, most likely first; raises `NoCheckpointError` if there is none."""
    if rung is not None:
        return _at_rung(study, trial, rung, reports)
    meant = trial.checkpoint if last else trial.kept_checkpoint
    if meant is None and (deleted := deleted_checkpoint(trial, reports(), study.spec, last=last)) is not None:
        raise NoCheckpointError(
            f"The checkpoint of trial {trial.number} of study {study.name} was deleted{deleted.of_step and '; '}"
            f"{deleted.of_step}.",
            remedy=f"{_DELETED} The trial's results stay.{_later(trial)}",
        )
    if meant is None:
        end = None if last else trial.counted_end
        of = trial.outcome if end is None else f"its result is of step {end.step}, where none was saved"
        raise NoCheckpointError(
            f"Trial {trial.number} of study {study.name} has no checkpoint ({of}).",
            remedy="A trial saves what it gives to t.track(...) or keeps in t.state, at its rungs, and at its own end. "
            f"{_DELETED}",
        )
    if trial.counted_end is not None and not last:
        return [meant]
    if best and trial.best_checkpoint is None and meant.step != trial.best_step:
        raise NoCheckpointError(
            f"The best value of trial {trial.number} of study {study.name} is of step {trial.best_step}, and its "
            f"checkpoint is the last one, of step {meant.step}.",
            remedy=_KEEPS_LAST,
        )
    return [meant]


def _later(trial: TrialInfo) -> str:
    last = trial.checkpoint
    return (
        f" Its last one, of step {last.step}, is there: `last=True`, or `--last`." if last is not None else ""
    )


def open_store(url: str) -> CheckpointStore:
    """The store at an address. Raises `MissingExtraError` for S3 if its library is not installed."""
    try:
        return store_from_url(url)
    except ModuleNotFoundError as error:
        raise MissingExtraError.of("A checkpoint on S3", "worker", error.name) from None


def copy(trial: TrialInfo, found: list[Checkpoint], out: Path) -> Checkpoint:
    """Copies the first of these checkpoints that exists to `out`, an empty or missing folder, and verifies it.

    `out` is complete or is not created at all. Raises `NoCheckpointError`, and `OSError` if `out` cannot be
    written.
    """

    def fetch(one: Checkpoint) -> Checkpoint:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as scratch:
            whole = Path(scratch) / "checkpoint"
            _store_of(one).fetch(checkpoint_to_proto(one), whole)
            whole.rename(out)
        return one

    return _first_there(trial, found, fetch)


def _best(study: StudyInfo) -> TrialInfo:
    """The best trial. Raises an error with several objectives, as there is none."""
    if study.best is None:
        raise NoCheckpointError(
            f"No trial of study {study.name} has reported a finite {study.spec.objective.metric} yet, so none is the "
            "best.",
            remedy="Name a trial by its number.",
        )
    return study.best


def _at_rung(
    study: StudyInfo, trial: TrialInfo, rung: int, reports: Callable[[], Iterable[Report]]
) -> list[Checkpoint]:
    result = next((one for one in trial.rungs if one.milestone == rung), None)
    if result is None:
        reached = ", ".join(str(one.milestone) for one in trial.rungs) or "none"
        raise NoCheckpointError(
            f"Trial {trial.number} of study {study.name} was not recorded at a rung at step {rung}; its rungs: "
            f"{reached}.",
            remedy="Name a rung by its step, as `headrace show` lists them.",
        )
    found = [one.checkpoint for one in reports() if one.step == result.step and one.checkpoint is not None]
    if not found:
        raise NoCheckpointError(
            f"Trial {trial.number} of study {study.name} saved no checkpoint at the rung at step {rung}.",
            remedy="A trial saves what it gives to t.track(...) or keeps in t.state.",
        )
    return found[::-1]


def _first_there(trial: TrialInfo, found: list[Checkpoint], use: Callable[[Checkpoint], _T]) -> _T:
    """The result of `use` for the first checkpoint that exists; raises `NoCheckpointError` if none does."""
    missing: Exception | None = None
    for one in found:
        try:
            return use(one)
        except (CheckpointMissingError, FileNotFoundError) as error:
            missing = missing or error
        except PermissionError as error:
            if not str(error.filename).startswith(unquote(urlsplit(one.uri).path)):
                raise  # the target of the files cannot be written
            raise _not_permitted(one) from error
        except StoreUnavailableError as error:
            if one.uri.startswith("file:"):  # a folder of another machine
                missing = missing or error
                continue
            raise NoCheckpointError(
                f"{error}.", remedy="Give this machine the workers' AWS_* variables, or run this on theirs."
            ) from error
        except CheckpointUnreadableError as error:
            if isinstance(error.__cause__, PermissionError):
                raise _not_permitted(one) from error
            raise NoCheckpointError(
                f"{error}.",
                remedy="It was changed or damaged in the store. Another rung's may be whole: --rung.",
            ) from error
    raise NoCheckpointError(_said(found[0]), remedy=_why_not_there(trial, found[0])) from missing


def _not_permitted(one: Checkpoint) -> NoCheckpointError:
    return NoCheckpointError(
        f"The checkpoint of step {one.step} may not be read by this user: {one.uri}.",
        remedy="In a folder checkpoints belong to the workers' user: run this as that user.",
    )


def _said(one: Checkpoint) -> str:
    where = "on this machine" if one.uri.startswith("file:") else "in its store"
    return f"The checkpoint of step {one.step} is not there {where}: {one.uri}."


def _why_not_there(trial: TrialInfo, one: Checkpoint) -> str:
    deleted = (
        "It may have been deleted: a study keeps the last `checkpoints_kept` of a trial, and the best one with "
        "`keep: best`."
    )
    if not one.uri.startswith("file:"):
        return deleted
    worker = f"worker {trial.last_worker}" if trial.last_worker else "the worker that saved it"
    return (
        f"If it lies on the machine of {worker}, run this there, or start workers with a --store that all machines "
        f"reach: a shared folder, or s3://BUCKET/PREFIX. {deleted}"
    )


def _read(one: Checkpoint) -> "Saved":
    from headrace.trial.reading import saved_in

    try:
        store, ref = _store_of(one), checkpoint_to_proto(one)
        if store.folder is not None:
            folder = Path(unquote(urlsplit(one.uri).path))
            verify(folder, ref)
            return saved_in(folder)
        with tempfile.TemporaryDirectory(prefix="headrace-") as scratch:
            folder = Path(scratch) / "checkpoint"
            store.fetch(ref, folder)
            return saved_in(folder)
    except ModuleNotFoundError as error:
        raise MissingExtraError.of_package(error.name or "") from None


def _store_of(one: Checkpoint) -> CheckpointStore:
    place = Place.of(one.uri)
    if place is None or not one.manifest_sha256:
        raise NoCheckpointError(
            f"The checkpoint was saved by the user's own program: {one.uri}.",
            remedy="Headrace knows only its address; read it the way that program does.",
        )
    return open_store(place.store)
