"""Rows to records and back. The one place that knows how a record is spelled in the tables."""

import math
from collections import OrderedDict
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any

from msgspec.structs import asdict, fields
from sqlalchemy import Row

from headrace.spec import StudySpec
from headrace_services.scheduler.lifecycle import Reason, State, StudyState
from headrace_services.scheduler.records import (
    Checkpoint,
    Decision,
    Event,
    Lease,
    Leaving,
    Report,
    Reserved,
    RungCost,
    RungEntry,
    Slot,
    Speeds,
    Standing,
    Study,
    Trial,
    Usage,
)
from headrace_services.scheduler.store.tables import finite_json, json_number, metrics_of_json

AnyRow = Row[Any]
Columns = dict[str, Any]


def study(row: AnyRow, spec: StudySpec | None = None) -> Study:
    """A row of `study`. Its spec never changes: whoever has read it before passes it in."""
    now_s = getattr(row, "now_s", 0.0)
    return Study(
        id=row.id,
        uid=row.uid,
        name=row.name,
        spec=spec or _spec(row.uid, row.spec),
        state=StudyState(row.state),
        detail=row.detail,
        cursor=row.cursor,
        next_number=row.next_number,
        planned=row.planned,
        sampled=row.sampled,
        reports=row.reports,
        metric_seen=row.metric_seen,
        early_failures=row.early_failures,
        create_time=row.create_time,
        end_time=row.end_time,
        standing=standing(row.standing),
        now=datetime.fromtimestamp(now_s, UTC),
        now_s=now_s,
        leaving={
            lease_id: Leaving(for_study_id=asker, at_report=at_report, why=why)
            for lease_id, (asker, at_report, why) in (getattr(row, "leaving", None) or {}).items()
        },
    )


_specs: "OrderedDict[str, tuple[StudySpec, int]]" = OrderedDict()
_SPECS_KEPT = 256
_SPEC_CHARACTERS_KEPT = 16 * 1024**2
"""A spec of a million characters takes three to four million bytes once it is read."""


def _spec(uid: str, columns: Columns) -> StudySpec:
    """The spec of the study with this random id, validated once: it never changes."""
    if uid in _specs:
        _specs.move_to_end(uid)
        return _specs[uid][0]
    spec = StudySpec.stored(columns)
    _specs[uid] = (spec, len(str(columns)))
    while len(_specs) > _SPECS_KEPT or sum(size for _, size in _specs.values()) > _SPEC_CHARACTERS_KEPT:
        _specs.popitem(last=False)
    return spec


def standing(columns: Columns) -> Standing:
    """A study's standing, as it lies in its JSON column."""
    if not columns:
        return Standing()
    reserved = columns["reserved"]
    return Standing(
        usage=Usage(**columns["usage"]),
        speeds=speeds(columns["speeds"]),
        reserved=Reserved(**{**reserved, "slots": tuple(reserved["slots"])}) if reserved else None,
        wants_slots=columns["wants_slots"],
        wants_count=columns["wants_count"],
        quantum_s=columns["quantum_s"],
        looked_s=columns["looked_s"],
    )


def standing_columns(record: Standing) -> Columns:
    """The JSON of a standing."""
    return {
        "usage": asdict(record.usage),
        "speeds": dict(record.speeds),
        "reserved": asdict(record.reserved) if record.reserved else None,
        "wants_slots": record.wants_slots,
        "wants_count": record.wants_count,
        "quantum_s": record.quantum_s,
        "looked_s": record.looked_s,
    }


def speeds(columns: Columns) -> Speeds:
    """Steps and seconds by kind of grant."""
    return {kind: (steps, seconds) for kind, (steps, seconds) in columns.items()}


def trial(row: AnyRow) -> Trial:
    """A row of `trial`."""
    return Trial(
        study_id=row.study_id,
        number=row.number,
        state=State(row.state),
        params=row.params,
        baseline=row.baseline,
        bracket=row.bracket,
        generation=row.generation,
        epoch=row.epoch,
        step=row.step,
        milestone=row.milestone,
        held=row.held,
        rungs=row.rungs,
        value=row.value,
        best_value=row.best_value,
        best_step=row.best_step,
        metrics=metrics_of_json(row.metrics),
        reason=Reason(row.reason) if row.reason else None,
        detail=row.detail,
        checkpoint=checkpoint(row.checkpoint),
        lease_id=row.lease_id,
        failures=row.failures,
        interruptions=row.interruptions,
        losses_in_row=row.losses_in_row,
        steps_spent=row.steps_spent,
        log_path=row.log_path,
        log_tail=row.log_tail,
        speeds=speeds(row.speeds),
        read_s=row.read_s,
        create_time=row.create_time,
        start_time=row.start_time,
        end_time=row.end_time,
    )


def trial_columns(record: Trial) -> Columns:
    """The columns of a trial that change over its life."""
    return {
        "state": record.state.value,
        "epoch": record.epoch,
        "step": record.step,
        "milestone": record.milestone,
        "held": record.held,
        "rungs": record.rungs,
        "value": number(record.value),
        "best_value": number(record.best_value),
        "best_step": record.best_step,
        "metrics": finite_json(record.metrics),
        "reason": record.reason.value if record.reason else None,
        "detail": record.detail,
        "checkpoint": checkpoint_columns(record.checkpoint),
        "lease_id": record.lease_id,
        "failures": record.failures,
        "interruptions": record.interruptions,
        "losses_in_row": record.losses_in_row,
        "steps_spent": record.steps_spent,
        "log_path": record.log_path,
        "log_tail": record.log_tail,
        "speeds": dict(record.speeds),
        "read_s": record.read_s,
        "start_time": record.start_time,
        "end_time": record.end_time,
    }


def progress_columns(record: Trial) -> Columns:
    """The columns that a report changes while its trial stays where it is."""
    return {
        "step": record.step,
        "milestone": record.milestone,
        "rungs": record.rungs,
        "value": number(record.value),
        "best_value": number(record.best_value),
        "best_step": record.best_step,
        "metrics": finite_json(record.metrics),
        "checkpoint": checkpoint_columns(record.checkpoint),
        "losses_in_row": record.losses_in_row,
        "steps_spent": record.steps_spent,
        "speeds": dict(record.speeds),
    }


def is_progress(before: Trial, after: Trial) -> bool:
    """Whether the progress columns are all that changed."""
    return bool(_standing(before) == _standing(after))


def study_columns(record: Study) -> Columns:
    """The columns of a study that a step changes."""
    return {
        "state": record.state.value,
        "detail": record.detail,
        "cursor": record.cursor,
        "next_number": record.next_number,
        "sampled": record.sampled,
        "reports": record.reports,
        "metric_seen": record.metric_seen,
        "early_failures": record.early_failures,
        "standing": standing_columns(record.standing),
    }


STUDY_COLUMNS = (
    "state",
    "detail",
    "cursor",
    "next_number",
    "sampled",
    "reports",
    "metric_seen",
    "early_failures",
    "standing",
)


def checkpoint(columns: Columns | None) -> Checkpoint | None:
    """A checkpoint, as it lies in the JSON columns."""
    return Checkpoint(**columns) if columns else None


def checkpoint_columns(record: Checkpoint | None) -> Columns | None:
    """The JSON of a checkpoint."""
    return {name: getattr(record, name) for name in _CHECKPOINT} if record else None


_CHECKPOINT = tuple(part.name for part in fields(Checkpoint))


def lease(row: AnyRow) -> Lease:
    """A row of `lease`."""
    return Lease(
        id=row.id,
        study_id=row.study_id,
        number=row.number,
        epoch=row.epoch,
        worker_id=row.worker_id,
        incarnation=row.incarnation,
        client_id=row.client_id,
        ttl_s=row.ttl_s,
        slots=tuple(row.slots),
        live=row.live,
        last_sequence=row.last_sequence,
        step=row.step,
        resume=checkpoint(row.resume),
        milli=row.milli,
        memory_bytes=row.memory_bytes,
        model=row.model,
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
        free_milli=row.free_milli,
        used_memory_bytes=row.used_memory_bytes,
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
    """A row of `rung_result` as of now, with the event that recorded it, and the one that let its trial go past it."""
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
        "epoch": record.epoch,
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
    "epoch",
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
    """A number as the rows spell it: text where JSON cannot hold it."""
    return value if value is None or math.isfinite(value) else json_number(value)


_any_trial = Trial(study_id=0, number=0, params={}, milestone=None)
TRIAL_COLUMNS = tuple(trial_columns(_any_trial))
PROGRESS_COLUMNS = tuple(progress_columns(_any_trial))
_standing = attrgetter(*(name for name in TRIAL_COLUMNS if name not in PROGRESS_COLUMNS))
