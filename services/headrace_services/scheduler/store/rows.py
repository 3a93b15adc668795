"""Conversion between rows and records. The one place that knows how a record is stored in the tables."""

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct, convert, to_builtins
from msgspec.structs import asdict, fields
from sqlalchemy import Row

from headrace.spec import StudySpec
from headrace_services.scheduler.core.json_numbers import finite_json, json_number, metrics_of_json
from headrace_services.scheduler.core.lifecycle import Reason, State, StudyState
from headrace_services.scheduler.core.records import (
    Checkpoint,
    Decision,
    EarlierEnd,
    Event,
    Grant,
    Lease,
    OtherCode,
    Part,
    Report,
    RungCost,
    RungEntry,
    Schedule,
    Slot,
    Study,
    Trial,
    Unread,
)
from headrace_services.scheduler.core.scales import ScaleChoice
from headrace_services.scheduler.core.study_status import (
    Closing,
    Leader,
    Leaving,
    Progress,
    Reserved,
    Speeds,
    Standing,
    Unreached,
    Usage,
)
from headrace_services.scheduler.store import tables
from headrace_services.scheduler.store.columns import columns_of_metrics

AnyRow = Row[Any]
Columns = dict[str, Any]


class KnownSpec(Struct, frozen=True, kw_only=True):
    """A study's spec as it was read before."""

    spec: StudySpec
    revision: int


def study(row: AnyRow, known: KnownSpec | None = None) -> Study:
    """A row of `study`, with its spec as it is `known` if the revision is the same."""
    now_s = getattr(row, "now_s", 0.0)
    return Study(
        id=row.id,
        uid=row.uid,
        name=row.name,
        project=row.project,
        spec=known.spec if known else spec_of(row.uid, row.revision, row.spec),
        state=StudyState(row.state),
        detail=row.detail,
        cursor=row.cursor,
        next_number=row.next_number,
        planned=row.planned,
        after=row.after,
        scale_choice=scale_choice(row.scale_choice),
        code_files={path: tuple(versions) for path, versions in row.code_files.items()},
        sampled=row.sampled,
        reports=row.reports,
        metric_seen=row.metric_seen,
        early_failures=row.early_failures,
        create_time=row.create_time,
        end_time=row.end_time,
        standing=standing(row.standing),
        revision=row.revision,
        attempts_from=row.attempts_from,
        tags=tuple(row.tags),
        note=row.note,
        now=datetime.fromtimestamp(now_s, UTC),
        now_s=now_s,
        leaving={
            grant_id: Leaving(for_study_id=asker, at_report=at_report, why=why)
            for grant_id, (asker, at_report, why) in (getattr(row, "leaving", None) or {}).items()
        },
    )


_specs: "OrderedDict[tuple[str, int], tuple[StudySpec, int]]" = OrderedDict()
_SPECS_KEPT = 256
_SPEC_CHARACTERS_KEPT = 16 * 1024**2
"""A spec of a million characters takes three to four million bytes in memory."""


def spec_of(uid: str, revision: int, columns: Columns) -> StudySpec:
    """The spec of the study with this random id, validated once for each revision."""
    key = (uid, revision)
    if key in _specs:
        _specs.move_to_end(key)
        return _specs[key][0]
    spec = StudySpec.stored(columns)
    _specs[key] = (spec, len(str(columns)))
    while len(_specs) > _SPECS_KEPT or sum(size for _, size in _specs.values()) > _SPEC_CHARACTERS_KEPT:
        _specs.popitem(last=False)
    return spec


def standing(columns: Columns) -> Standing:
    """A study's status, from its JSON column; a key that an older scheduler did not write has its default."""
    columns = _NEW_STANDING | columns
    reserved = columns["reserved"]
    return Standing(
        usage=Usage(**columns["usage"]),
        speeds=speeds(columns["speeds"]),
        reserved=Reserved(**{**reserved, "slots": tuple(reserved["slots"])}) if reserved else None,
        wants_slots=columns["wants_slots"],
        wants_milli=columns["wants_milli"],
        wants_cores=columns["wants_cores"],
        wants_bubbles=columns["wants_bubbles"],
        wants_count=columns["wants_count"],
        held_off=columns["held_off"],
        quota=columns["quota"],
        quantum_s=columns["quantum_s"],
        looked_s=columns["looked_s"],
        kept=(columns["kept"][0], columns["kept"][1]),
        left_to={int(study_id): since_s for study_id, since_s in columns["left_to"].items()},
        early=columns["early"],
        ended_through=columns["ended_through"],
        avoided=columns["avoided"],
        progress=Progress(
            **columns["progress"], leader=Leader(**columns["leader"]) if columns["leader"] else None
        ),
        started_s=columns["started_s"],
        over_s=columns["over_s"],
        returns=columns["returns"],
        closing=Closing(**columns["closing"]) if columns["closing"] else None,
        unreached={int(number): Unreached(**one) for number, one in columns["unreached"].items()},
    )


def standing_columns(record: Standing) -> Columns:
    """The JSON of a study's status."""
    return {
        "usage": asdict(record.usage),
        "speeds": dict(record.speeds),
        "reserved": asdict(record.reserved) if record.reserved else None,
        "wants_slots": record.wants_slots,
        "wants_milli": record.wants_milli,
        "wants_cores": record.wants_cores,
        "wants_bubbles": record.wants_bubbles,
        "wants_count": record.wants_count,
        "held_off": record.held_off,
        "quota": record.quota,
        "quantum_s": record.quantum_s,
        "looked_s": record.looked_s,
        "kept": list(record.kept),
        "left_to": {str(study_id): since_s for study_id, since_s in record.left_to.items()},
        "early": dict(record.early),
        "ended_through": record.ended_through,
        "avoided": dict(record.avoided),
        "progress": {name: one for name, one in asdict(record.progress).items() if name != "leader"},
        "leader": asdict(record.progress.leader) if record.progress.leader else None,
        "started_s": record.started_s,
        "over_s": record.over_s,
        "returns": record.returns,
        "closing": asdict(record.closing) if record.closing else None,
        "unreached": {str(number): asdict(one) for number, one in record.unreached.items()},
    }


_NEW_STANDING = standing_columns(Standing())


def speeds(columns: Columns) -> Speeds:
    """Steps and seconds by kind of grant."""
    return {kind: (steps, seconds) for kind, (steps, seconds) in columns.items()}


TRIAL_IDENTITY = (
    "study_id",
    "number",
    "params",
    "baseline",
    "bracket",
    "generation",
    "source",
    "create_time",
)
"""The columns of a trial that are set when it is created; only an exploit changes the parameters later."""
TRIAL_COLUMNS = tuple(part.name for part in fields(Trial) if part.name not in TRIAL_IDENTITY)
"""The columns that change during its life: every further field of the record is a column with the same name."""


def trial(row: AnyRow) -> Trial:
    """A row of `trial`."""
    return Trial(**_read(row, _TRIAL_FIELDS))


def trial_columns(record: Trial) -> Columns:
    """The columns of a trial that change during its life."""
    return _written(record, TRIAL_COLUMNS)


def trial_identity(record: Trial) -> Columns:
    """The columns of a trial that do not change."""
    return _written(record, TRIAL_IDENTITY)


def study_columns(record: Study) -> Columns:
    """The columns of a study that a cycle changes."""
    return {name: getattr(record, name) for name in STUDY_COLUMNS} | {
        "standing": standing_columns(record.standing),
        "scale_choice": to_builtins(record.scale_choice),
    }


STUDY_COLUMNS = (
    "state",
    "detail",
    "cursor",
    "next_number",
    "sampled",
    "planned",
    "after",
    "scale_choice",
    "reports",
    "metric_seen",
    "early_failures",
    "standing",
    "revision",
)


def scale_choice(columns: Columns | None) -> ScaleChoice | None:
    """What a pilot has chosen, from its JSON column."""
    return convert(columns, ScaleChoice) if columns else None


def checkpoint(columns: Columns | None) -> Checkpoint | None:
    """A checkpoint, from its JSON columns."""
    return (
        Checkpoint(**{**columns, "other_code": _other_code(columns.get("other_code", ()))})
        if columns
        else None
    )


def checkpoint_columns(record: Checkpoint | None) -> Columns | None:
    """The JSON of a checkpoint."""
    if record is None:
        return None
    columns: Columns = {name: getattr(record, name) for name in _CHECKPOINT}
    return columns | {"other_code": _other_code_columns(record.other_code)} if record.other_code else columns


_CHECKPOINT = tuple(part.name for part in fields(Checkpoint) if part.name != "other_code")


def _other_code(columns: Sequence[Columns]) -> tuple[OtherCode, ...]:
    return tuple(OtherCode(**{**one, "files": tuple(one["files"])}) for one in columns)


def _other_code_columns(records: tuple[OtherCode, ...]) -> list[Columns]:
    return [{**asdict(one), "files": list(one.files)} for one in records]


def earlier_ends(columns: list[Columns]) -> tuple[EarlierEnd, ...]:
    """The earlier ends of a trial, from their JSON column."""
    return tuple(
        EarlierEnd(
            **{
                **end,
                "reason": Reason(end["reason"]),
                "metrics": metrics_of_json(end["metrics"]),
                "checkpoint": checkpoint(end["checkpoint"]),
                "code_changed": tuple(end["code_changed"]),
            }
        )
        for end in columns
    )


def _earlier_end_columns(records: tuple[EarlierEnd, ...]) -> list[Columns]:
    return [
        {
            **asdict(end),
            "metrics": finite_json(end.metrics),
            "checkpoint": checkpoint_columns(end.checkpoint),
        }
        for end in records
    ]


def _schedules(columns: list[Columns]) -> tuple[Schedule, ...]:
    return tuple(Schedule(**one) for one in columns)


def lease(row: AnyRow) -> Lease:
    """A row of `leases.SOURCE`."""
    return Lease(
        id=row.id,
        study_id=row.study_id,
        number=row.number,
        attempt=row.attempt,
        worker_id=row.worker_id,
        incarnation=row.incarnation,
        client_id=row.client_id,
        ttl_s=row.ttl_s,
        grant=_grant(row) if row.grant_id is not None else None,
        live=row.live,
        last_sequence=row.last_sequence,
        step=row.step,
        resume=checkpoint(row.resume),
        budget=row.budget,
        ended=row.ended,
    )


def _grant(row: AnyRow) -> Grant:
    return Grant(
        id=row.grant_id,
        study_id=row.study_id,
        parts=tuple(
            Part(worker_id=worker_id, incarnation=incarnation, slots=tuple(slots))
            for worker_id, incarnation, slots in row.parts
        ),
        milli=row.milli,
        memory_bytes=row.memory_bytes,
        model=row.model,
        seats=row.seats,
        key=row.key,
        closed=row.closed,
        owner_stage=row.bubbles,
        leases=row.sharing,
    )


def bundle_grant(row: AnyRow) -> Grant:
    """The grant in a row of `bundles`."""
    part = Part(worker_id=row.worker_id, incarnation=row.granted_to, slots=(row.slot_index,))
    return Grant(
        id=row.grant_id,
        study_id=row.study_id,
        parts=(part,),
        milli=row.milli,
        memory_bytes=row.budget,
        model=row.learnt_by,
        seats=row.seats,
        key=row.key,
        owner_stage=row.bubbles,
        leases=row.members,
    )


def slot(row: AnyRow) -> Slot:
    """A row of `slot` joined with its worker, with the column `placeable`."""
    return Slot(
        worker_id=row.worker_id,
        index=row.slot_index,
        kind=row.kind,
        memory_bytes=row.memory_bytes,
        labels=row.labels,
        worker_name=row.worker_name,
        incarnation=row.incarnation,
        log_dir=row.log_dir,
        placeable=row.placeable,
        model=row.model,
        cores=row.cores,
        unshared=row.unshared,
        links=tuple(row.links),
        free_milli=row.free_milli,
        used_memory_bytes=row.used_memory_bytes,
        owner=row.owner,
        stage=row.stage or 0,
        duty=1.0 if row.duty is None else row.duty,
    )


def rung_entry(row: AnyRow) -> RungEntry:
    """A row of `rung_result`."""
    return RungEntry(
        number=row.number,
        bracket=row.bracket,
        rung=row.rung,
        milestone=row.milestone,
        step=row.step,
        value=row.value,
        arrival=row.arrival,
        promoted=row.promoted_cursor is not None,
        checkpoint=checkpoint(row.checkpoint),
        cost=RungCost(**row.cost) if row.cost else None,
    )


def decision(row: AnyRow) -> Decision:
    """The decision in a row of `report`."""
    return Decision(action=row.action, next_milestone=row.next_milestone, reason=row.decision_reason)


def rung_columns(study: Study, entry: RungEntry, cursor: int, promoted_cursor: int | None) -> Columns:
    """A row of `rung_result` as of now, with the event that recorded it, and the event of its trial's promotion
    past it."""
    return {
        "study_id": study.id,
        "number": entry.number,
        "rung": entry.rung,
        "bracket": entry.bracket,
        "milestone": entry.milestone,
        "step": entry.step,
        "value": number(entry.value),
        "arrival": entry.arrival,
        "checkpoint": checkpoint_columns(entry.checkpoint),
        "cost": asdict(entry.cost) if entry.cost else None,
        "cursor": cursor,
        "promoted_cursor": promoted_cursor,
        "time": study.now,
    }


RUNG_COLUMNS = (
    "study_id",
    "number",
    "rung",
    "bracket",
    "milestone",
    "step",
    "value",
    "arrival",
    "checkpoint",
    "cost",
    "cursor",
    "promoted_cursor",
    "time",
)


def event_columns(study_id: int, cursor: int, event: Event) -> Columns:
    """A row of `event`."""
    return {
        "study_id": study_id,
        "cursor": cursor,
        "number": event.number,
        "kind": event.kind,
        "message": event.message,
        "detail": event.detail,
    }


EVENT_COLUMNS = ("study_id", "cursor", "number", "kind", "message", "detail")


def report_columns(study: Study, record: Report) -> Columns:
    """A row of `report` as of now."""
    return {
        "study_id": study.id,
        "number": record.number,
        "attempt": record.attempt,
        "sequence": record.sequence,
        "step": record.step,
        "metrics": finite_json(record.metrics),
        "checkpoint": checkpoint_columns(record.checkpoint),
        "train_time_s": record.train_time_s,
        "action": record.decision.action,
        "next_milestone": record.decision.next_milestone,
        "decision_reason": record.decision.reason,
        "time": study.now,
    }


REPORT_COLUMNS = (
    "study_id",
    "number",
    "attempt",
    "sequence",
    "step",
    "metrics",
    "checkpoint",
    "train_time_s",
    "action",
    "next_milestone",
    "decision_reason",
    "time",
)


def number(value: float | None) -> float | str | None:
    """A number as the rows store it: text if JSON cannot hold it."""
    return value if value is None or math.isfinite(value) else json_number(value)


def _reason(name: str | None) -> Reason | None:
    return Reason(name) if name else None


_METRICS = columns_of_metrics(tables.trial)
_READ: dict[str, Callable[[Any], Any]] = {
    "state": State,
    "reason": _reason,
    "checkpoint": checkpoint,
    "best_checkpoint": checkpoint,
    "unread": lambda columns: convert(columns, Unread) if columns else None,
    "speeds": speeds,
    "bubbles": tuple,
    **dict.fromkeys(("recent", "recent_steps", "repeated", "repeated_steps"), tuple),
    "earlier_ends": earlier_ends,
    "schedules": _schedules,
    "code_changed": tuple,
    "other_code": _other_code,
    **dict.fromkeys(_METRICS, metrics_of_json),
}
"""How to read columns whose form differs from the record's."""
_WRITTEN: dict[str, Callable[[Any], Any]] = {
    "value": number,
    "best_value": number,
    "score": number,
    **dict.fromkeys(("recent", "repeated"), lambda values: [number(value) for value in values]),
    **dict.fromkeys(("recent_steps", "repeated_steps"), list),
    "checkpoint": checkpoint_columns,
    "best_checkpoint": checkpoint_columns,
    "unread": to_builtins,
    "speeds": dict,
    "bubbles": list,
    "earlier_ends": _earlier_end_columns,
    "schedules": lambda records: [asdict(one) for one in records],
    "code_changed": list,
    "other_code": _other_code_columns,
    **dict.fromkeys(_METRICS, finite_json),
}
"""How to write fields whose form differs from the column's. Enums are texts."""
_TRIAL_FIELDS = tuple(part.name for part in fields(Trial))


def _read(row: AnyRow, names: Iterable[str]) -> dict[str, Any]:
    return {name: _READ[name](getattr(row, name)) if name in _READ else getattr(row, name) for name in names}


def _written(record: Any, names: Iterable[str]) -> Columns:
    return {
        name: _WRITTEN[name](getattr(record, name)) if name in _WRITTEN else getattr(record, name)
        for name in names
    }
