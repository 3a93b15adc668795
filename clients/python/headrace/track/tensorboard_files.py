"""TensorBoard: a folder for each study, with a folder and one event file for each trial.

The position file beside the event file has the cursor, and the length of the file as of it. A record that was
written after it, or half of one, is cut off when the folder is opened. Records carry the event's time, so the same
events give the same bytes: a TensorBoard that had read the records that were cut off notices nothing.

A file that is missing or shorter than that is written again from the trial's first event.

Values are stored as 64-bit floats. NaN and infinities are stored as they are; TensorBoard draws no point for them.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tensorboard.compat.proto.event_pb2 import Event as Record
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_DOUBLE, DT_STRING
from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2
from tensorboard.plugins.hparams import summary_v2 as hparams
from tensorboard.plugins.scalar import metadata as scalar
from tensorboard.summary.writer.record_writer import RecordWriter

from headrace.client.model import StudyInfo
from headrace.spec import CategoricalDomain, FloatDomain, IntDomain
from headrace.track import positions
from headrace.track.entries import Entry, Status
from headrace.track.names import for_folder, for_wandb
from headrace.track.positions import Position, unwritable
from headrace.track.tracker import ForgottenError, Say, Start

FILE: Final = "events.out.tfevents.0000000000.headrace"
"""TensorBoard reads files with `tfevents` in their name."""
TEXTS: Final = "headrace/"
"""The prefix of the tags of texts, one for each field of a trial. TensorBoard shows the last ones."""
_SESSION: Final = {
    Status.FINISHED: "STATUS_SUCCESS",
    Status.FAILED: "STATUS_FAILURE",
    Status.KILLED: "STATUS_FAILURE",
}


class TensorboardTool:
    """A folder for TensorBoard."""

    def __init__(self, folder: Path) -> None:
        self.title = f"TensorBoard in {folder}"
        self._folder = folder

    def open(self, study: StudyInfo, say: Say, start: Start) -> "TensorboardRuns":  # noqa: ARG002 - the protocol's
        """Finds the study's folder, or creates it."""
        try:
            return self._opened(study, start)
        except OSError as error:
            raise unwritable(self._folder, error) from None

    def _opened(self, study: StudyInfo, start: Start) -> "TensorboardRuns":
        plain = for_folder(study.name)
        for name in (plain, f"{plain}-{study.uid[:8]}"):
            folder = self._folder / name
            found = positions.read(folder)
            if found is not None and found.uid == study.uid:
                runs = TensorboardRuns(folder, study, 0 if start is Start.REREAD else found.cursor)
                if start is not Start.SET_ASIDE:
                    return runs
                folder.rename(folder.with_name(f"{name}-until-{runs.newest}"))
            if not folder.exists():
                break
        new = self._folder / f".{name}.new"  # whole before it has its name
        new.mkdir(parents=True, exist_ok=True)
        _append(new / FILE, 0, [_record(0, 0, _experiment(study))])
        positions.write(new, Position(study=study.name, uid=study.uid, cursor=0))
        new.rename(folder)
        return TensorboardRuns(folder, study, 0)


class TensorboardRuns:
    """The folders of one study's trials."""

    def __init__(self, folder: Path, study: StudyInfo, cursor: int) -> None:
        self._folder, self._study = folder, study
        self.cursor = cursor
        trials = (positions.read(trial) for trial in folder.glob("trial-*"))
        self.newest = max([cursor, *(position.cursor for position in trials if position is not None)])

    def write(self, trial: int, found: Sequence[Entry]) -> None:
        """Appends the entries that the trial's file lacks."""
        folder = self._folder / f"trial-{trial:04d}"
        try:
            self._write(folder, found)
        except FileNotFoundError:
            raise ForgottenError(f"{self._folder} is gone.") from None
        except OSError as error:
            raise unwritable(folder, error) from None

    def _write(self, folder: Path, found: Sequence[Entry]) -> None:
        position = positions.read(folder)
        if position is not None and not _reaches(folder / FILE, position.size):
            (folder / positions.NAME).unlink(missing_ok=True)
            position = None
        new = [entry for entry in found if entry.cursor > (position.cursor if position else 0)]
        if not new:
            return
        if new[0].params is not None:  # the trial begins, or is copied from the tables
            position = None
        elif position is None:
            raise ForgottenError(f"{folder / FILE} is gone, or shorter than it was.")
        folder.mkdir(exist_ok=True)
        if position is None:
            (folder / positions.NAME).unlink(missing_ok=True)
        records = [record for entry in new for record in _records(entry)]
        size = _append(folder / FILE, position.size if position else 0, records)
        trial, cursor = new[-1].trial, new[-1].cursor
        positions.write(
            folder,
            Position(study=self._study.name, uid=self._study.uid, trial=trial, cursor=cursor, size=size),
        )

    def advance(self, cursor: int) -> None:
        """Stores the study's cursor."""
        if not (self._folder / positions.NAME).exists():  # the folder is gone, or is being deleted
            raise ForgottenError(f"{self._folder} is gone.")
        try:
            positions.write(
                self._folder, Position(study=self._study.name, uid=self._study.uid, cursor=cursor)
            )
        except FileNotFoundError:
            raise ForgottenError(f"{self._folder} is gone.") from None
        except OSError as error:
            raise unwritable(self._folder, error) from None
        self.cursor = cursor

    def close(self, *, ended: bool) -> None:
        """Nothing is open."""


def _reaches(file: Path, size_bytes: int) -> bool:
    try:
        return file.stat().st_size >= size_bytes
    except (FileNotFoundError, NotADirectoryError):
        return False


def _append(file: Path, size_bytes: int, records: Sequence[Record]) -> int:
    """Cuts the file to a length and appends to it; returns its new length."""
    with file.open("r+b" if file.exists() else "w+b") as out:
        out.truncate(size_bytes)
        out.seek(size_bytes)
        writer = RecordWriter(out)
        if size_bytes == 0:
            first = records[0].wall_time if records else 0.0
            writer.write(Record(wall_time=first, file_version="brain.Event:2").SerializeToString())
        for record in records:
            writer.write(record.SerializeToString())
        return out.tell()


def _records(entry: Entry) -> Iterator[Record]:
    """The records of an entry: parameters for the HParams tab, scalars, the fields as text, the end."""
    at, step = entry.time_ms / 1000, entry.step or 0
    if entry.params is not None:
        values = {name: value for name, value in entry.params.items() if value is not None}
        yield _record(at, 0, hparams.hparams_pb(values, trial_id=f"trial {entry.trial}", start_time_secs=at))
    if entry.metrics:
        yield _record(at, step, Summary(value=[_scalar(*metric) for metric in entry.metrics.items()]))
    reported = {"attempt"} if entry.metrics else set()  # which each report repeats
    if texts := [_text(name, text) for name, text in entry.fields.items() if name not in reported]:
        yield _record(at, entry.cursor, Summary(value=texts))
    if entry.status in _SESSION:
        yield _record(at, 0, _end(_SESSION[entry.status], at))


def _record(at: float, step: int, summary: Summary) -> Record:
    return Record(wall_time=at, step=step, summary=summary)


def _scalar(name: str, value: float) -> Summary.Value:
    return Summary.Value(
        tag=_metric(name),
        tensor=TensorProto(dtype=DT_DOUBLE, double_val=[value], tensor_shape=TensorShapeProto()),
        metadata=SummaryMetadata(
            plugin_data=SummaryMetadata.PluginData(plugin_name=scalar.PLUGIN_NAME),
            data_class="DATA_CLASS_SCALAR",
        ),
    )


def _metric(name: str) -> str:
    """The tag of a metric. TensorBoard shows one kind of data for a tag, and some tags are those of texts."""
    return for_wandb(name) if name.startswith((TEXTS, "_u")) else name


def _text(name: str, text: str) -> Summary.Value:
    return Summary.Value(
        tag=f"{TEXTS}{name}",
        tensor=TensorProto(dtype=DT_STRING, string_val=[text.encode()], tensor_shape=TensorShapeProto()),
        metadata=SummaryMetadata(
            plugin_data=SummaryMetadata.PluginData(plugin_name="text"), data_class="DATA_CLASS_TENSOR"
        ),
    )


def _end(status: str, at: float) -> Summary:
    info = plugin_data_pb2.SessionEndInfo(status=api_pb2.Status.Value(status), end_time_secs=at)
    return _plugin(metadata.SESSION_END_INFO_TAG, plugin_data_pb2.HParamsPluginData(session_end_info=info))


def _plugin(tag: str, data: plugin_data_pb2.HParamsPluginData) -> Summary:
    kind = metadata.create_summary_metadata(data)
    return Summary(value=[Summary.Value(tag=tag, metadata=kind, tensor=metadata.NULL_TENSOR)])


def _experiment(study: StudyInfo) -> Summary:
    """The parameters with their domains, and the objectives, for the HParams tab."""
    space = [hparams.HParam(name, _domain(domain)) for name, domain in study.spec.space.items()]
    metrics = [hparams.Metric(_metric(objective.metric)) for objective in study.spec.objectives]
    return hparams.hparams_config_pb(space, metrics, time_created_secs=0)


def _domain(domain: object) -> hparams.Domain | None:
    match domain:
        case FloatDomain(low=low, high=high):
            return hparams.RealInterval(low, high)
        case IntDomain(low=low, high=high):
            return hparams.IntInterval(low, high)
        case CategoricalDomain(values=values) if len({type(value) for value in values}) == 1:
            return hparams.Discrete(list(values))
        case _:
            return None
