"""MLflow: an experiment for each study, with a run for each trial.

The run's cursor is its tag `headrace.cursor`, sent in the same request as the metrics, which the server stores first.
A request that was lost or cut off may have been carried out, so the run is then *unsure*: before the next write its
metrics are read back, and points that exist are not sent. A point is recognized by its metric, step and time; the
time is the event's, so it never differs. A server with a database also drops points that are equal in everything,
which covers a lost request that is carried out late. Points from the tables have other times than those from events:
they are counted by metric and step instead.

A request that MLflow does not take is divided until the value that it rejects is alone, which is left out.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from mlflow.entities import Metric, Param, Run, RunTag, ViewType

from headrace.client.model import StudyInfo
from headrace.spec.names import DEFAULT_PROJECT
from headrace.track.entries import Entry, Status
from headrace.track.mlflow_client import (
    Client,
    DeletedError,
    ExistsError,
    InvalidError,
    TooLargeError,
    experiment_deleted,
)
from headrace.track.names import for_mlflow
from headrace.track.redaction import shown_uri
from headrace.track.tracker import AwayError, ForgottenError, Say, Start

T = TypeVar("T")
PREFIX: Final = "headrace."
CURSOR: Final = f"{PREFIX}cursor"
UID: Final = f"{PREFIX}study_uid"
TRIAL: Final = f"{PREFIX}trial"
RENAMED: Final = f"{PREFIX}renamed"
_AND, _IS = "; ", " = "
STATUS: Final = {
    Status.WAITING: "SCHEDULED",
    Status.RUNNING: "RUNNING",
    Status.FINISHED: "FINISHED",
    Status.FAILED: "FAILED",
    Status.KILLED: "KILLED",
}
MOST_METRICS: Final = 800
MOST_TAGS: Final = 90
LONGEST_PARAM: Final = 6000
LONGEST_TAG: Final = 5000
ADVANCE_EVERY: Final = 500
"""How many events the experiment's cursor may be behind: it only says where to start reading."""


@dataclass(slots=True, kw_only=True)
class _Copy:
    """What is known of a trial's run."""

    run_id: str
    cursor: int = 0
    unsure: bool = False
    deleted: bool = False
    renamed: dict[str, str] = field(default_factory=dict)
    """Mapped names that differ, with the original ones."""


class MlflowTool:
    """An MLflow server."""

    def __init__(self, uri: str) -> None:
        self.title = f"MLflow at {shown_uri(uri)}"
        self._client = Client(uri)

    def open(self, study: StudyInfo, say: Say, start: Start) -> "MlflowRuns":
        """Finds the study's experiment, whatever its name is by now, or creates it, and reads back its runs."""
        mine = f"tags.`{UID}` = '{study.uid}'"
        found = self._client.search_experiments(view_type=ViewType.ALL, filter_string=mine)
        if not found:
            return MlflowRuns(self._client, self._created(study), 0, say)
        if found[0].lifecycle_stage == "deleted":
            raise experiment_deleted(found[0].experiment_id)
        cursor = 0 if start is Start.REREAD else int(found[0].tags.get(CURSOR, 0))
        runs = MlflowRuns(self._client, found[0].experiment_id, cursor, say)
        if start is not Start.SET_ASIDE:
            return runs
        self._client.set_experiment_tag(runs.experiment_id, UID, f"{study.uid} until event {runs.newest}")
        self._client.rename_experiment(runs.experiment_id, f"{found[0].name} until event {runs.newest}")
        return MlflowRuns(self._client, self._created(study), 0, say)

    def _created(self, study: StudyInfo) -> str:
        """A new experiment with the study's name, or with its ID too if there is one of that name."""
        tags = {UID: study.uid, f"{PREFIX}study": study.name, f"{PREFIX}project": study.project}
        name = study.name if study.project in ("", DEFAULT_PROJECT) else f"{study.project}/{study.name}"
        try:
            return str(self._client.create_experiment(name, tags=tags))
        except ExistsError:
            return str(self._client.create_experiment(f"{name} ({study.uid[:8]})", tags=tags))


class MlflowRuns:
    """The runs of one study."""

    def __init__(self, client: Client, experiment_id: str, cursor: int, say: Say) -> None:
        self._client, self.experiment_id, self._say = client, experiment_id, say
        self.cursor = cursor
        self._advanced = cursor
        self._told: set[str] = set()
        self._copies = self._listed()
        self.newest = max([cursor, *(copy.cursor for copy in self._copies.values())])
        self._unsure = False
        """Whether a run may have been created that is not among the copies."""

    def write(self, trial: int, found: Sequence[Entry]) -> None:
        """Writes the entries that the run lacks."""
        copy = self._copies.get(trial)
        if copy is None:
            copy = self._created(trial, found[0])
        new = [entry for entry in found if entry.cursor > copy.cursor]
        if copy.deleted or not new:
            return
        read_back, copy.unsure = copy.unsure or new[0].of_tables, True
        try:
            self._send(copy, new, read_back=read_back)
        except DeletedError:
            if self._client.get_experiment(self.experiment_id).lifecycle_stage == "deleted":
                raise experiment_deleted(self.experiment_id) from None
            copy.deleted = True
            self._say(f"The run of trial {trial} was deleted in MLflow: nothing more is written to it.")
            return
        copy.unsure, copy.cursor = False, new[-1].cursor

    def advance(self, cursor: int) -> None:
        """Stores the experiment's cursor from time to time."""
        if cursor - self._advanced >= ADVANCE_EVERY:
            self._stored(cursor)
        self.cursor = cursor

    def close(self, *, ended: bool) -> None:
        """Stores the experiment's cursor, if everything is written."""
        if ended and self._advanced < self.cursor:
            self._stored(self.cursor)

    def _stored(self, cursor: int) -> None:
        self._client.set_experiment_tag(self.experiment_id, CURSOR, str(cursor))
        self._advanced = cursor

    def _listed(self) -> dict[int, _Copy]:
        """The copies that exist. Of two for a trial, which a lost request may leave, the emptier one is deleted."""
        found: dict[int, _Copy] = {}
        for run in self._runs():
            trial = run.data.tags.get(TRIAL)
            if trial is None:
                continue
            copy = _Copy(
                run_id=run.info.run_id,
                cursor=int(run.data.tags.get(CURSOR, 0)),
                unsure=True,
                deleted=run.info.lifecycle_stage == "deleted",
                renamed=dict(
                    one.split(_IS, 1) for one in run.data.tags.get(RENAMED, "").split(_AND) if _IS in one
                ),
            )
            first = found.setdefault(int(trial), copy)
            if first is not copy:
                kept, extra = sorted((first, copy), key=lambda one: (one.deleted, -one.cursor, one.run_id))
                found[int(trial)] = kept
                if not extra.deleted and not extra.cursor:
                    self._client.delete_run(extra.run_id)
        return found

    def _runs(self) -> Iterator[Run]:
        token: str | None = None
        while True:
            page = self._client.search_runs(
                [self.experiment_id], run_view_type=ViewType.ALL, max_results=1000, page_token=token
            )
            yield from page
            token = page.token
            if not token:
                return

    def _created(self, trial: int, first: Entry) -> _Copy:
        if self._unsure:
            self._copies = self._listed()
            self._unsure = False
            if trial in self._copies:
                return self._copies[trial]
        if first.params is None:
            raise ForgottenError(f"the run of trial {trial} is gone.")
        self._unsure = True
        tags = {TRIAL: str(trial)}
        try:
            run = self._client.create_run(
                self.experiment_id, start_time=first.time_ms, run_name=f"trial {trial}", tags=tags
            )
        except DeletedError:
            raise experiment_deleted(self.experiment_id) from None
        self._unsure = False
        self._copies[trial] = _Copy(run_id=run.info.run_id)
        return self._copies[trial]

    def _send(self, copy: _Copy, new: Sequence[Entry], *, read_back: bool) -> None:
        """Sends parameters, points and fields, and the cursor last."""
        self._send_params(copy, new)
        metrics = [metric for entry in new for metric in self._points(copy, entry)]
        if read_back:
            metrics = self._lacking(copy, metrics, timed=not new[0].of_tables)
        fields: dict[str, str] = {}
        for entry in new:
            fields |= entry.fields
        tags = [RunTag(f"{PREFIX}{self._named(copy, name)}", _text(text)) for name, text in fields.items()]
        if copy.renamed:
            renamed = _AND.join(f"{mapped}{_IS}{name}" for mapped, name in copy.renamed.items())
            tags.append(RunTag(RENAMED, _text(renamed)))
        if statuses := [entry for entry in new if entry.status is not None]:
            self._set_status(copy, statuses[-1])
        *earlier, last = _batches(metrics, MOST_METRICS) or [[]]
        *earlier_tags, last_tags = _batches([*tags, RunTag(CURSOR, str(new[-1].cursor))], MOST_TAGS)
        for batch in (*earlier, *earlier_tags, [*last, *last_tags]):
            self._log(copy, batch)

    def _send_params(self, copy: _Copy, new: Sequence[Entry]) -> None:
        params = []
        for entry in new:
            for name, value in (entry.params or {}).items():
                text = str(value)
                if len(text) > LONGEST_PARAM:
                    self._say_once(f"The parameter {name!r} is cut to {LONGEST_PARAM} characters in MLflow.")
                params.append(Param(self._named(copy, name), _text(text, LONGEST_PARAM)))
        for batch in _batches(params, MOST_TAGS):
            self._log(copy, batch)

    def _points(self, copy: _Copy, entry: Entry) -> Iterator[Metric]:
        for name, value in entry.metrics.items():
            yield Metric(self._named(copy, name), value, entry.time_ms, entry.step or 0)

    def _named(self, copy: _Copy, name: str) -> str:
        mapped = for_mlflow(name)
        if mapped != name and mapped not in copy.renamed:
            copy.renamed[mapped] = name
            self._say_once(f"MLflow does not allow the name {name!r}: it is written as {mapped!r}.")
        return mapped

    def _say_once(self, line: str) -> None:
        if line not in self._told:
            self._told.add(line)
            self._say(line)

    def _lacking(self, copy: _Copy, metrics: Sequence[Metric], *, timed: bool) -> list[Metric]:
        """The points that the run lacks. Without `timed`, their times may differ from those that it has."""

        def known(point: Metric) -> tuple[str, int, int]:
            return point.key, point.step, point.timestamp if timed else 0

        there = Counter(
            known(point)
            for key in {metric.key for metric in metrics}
            for point in self._client.get_metric_history(copy.run_id, key)
        )
        lacking = []
        for metric in metrics:
            if there[known(metric)]:
                there[known(metric)] -= not timed  # of those with the same time all are there, or one
            else:
                lacking.append(metric)
        return lacking

    def _set_status(self, copy: _Copy, entry: Entry) -> None:
        assert entry.status is not None
        status = STATUS[entry.status]
        if entry.status.ended:
            self._client.set_terminated(copy.run_id, status, entry.time_ms)
        else:
            self._client.update_run(copy.run_id, status)

    def _log(self, copy: _Copy, batch: Sequence[Metric | Param | RunTag]) -> None:
        """Sends at once, or in parts if MLflow does not take the whole. It stores metrics before tags."""
        metrics, params, tags = (
            [one for one in batch if isinstance(one, kind)] for kind in (Metric, Param, RunTag)
        )
        try:
            self._client.log_batch(copy.run_id, metrics=metrics, params=params, tags=tags)
        except TooLargeError as error:
            if len(batch) > 1:
                lacking = self._lacking(copy, metrics, timed=True)  # some may have been stored
                rest = [*lacking, *params, *tags]
                middle = len(batch) // 2
                for part in (rest[:middle], rest[middle:]):
                    self._log(copy, part)
            elif not isinstance(error, InvalidError):
                raise
            elif tags and tags[0].key == CURSOR:
                raise AwayError(f"no usable answer: {error.message}") from None  # it takes nothing at all
            else:
                self._say_once(f"MLflow does not take {batch[0].key!r}, which is left out: {error.message}")


def _text(text: str, longest: int = LONGEST_TAG) -> str:
    """A text that every database takes."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")[:longest]


def _batches(items: list[T], most: int) -> list[list[T]]:
    return [items[place : place + most] for place in range(0, len(items), most)]
