"""Columns with more than a plain type: metrics, times, and what Postgres computes from a study."""

from typing import Any

from sqlalchemy import (
    Boolean,
    Column,
    ColumnElement,
    Computed,
    DateTime,
    Double,
    Integer,
    Table,
    Text,
    case,
    cast,
    func,
    literal_column,
    or_,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator

from headrace_services.scheduler.core.json_numbers import finite_json, metrics_of_json


class Metrics(TypeDecorator[dict[str, float]]):
    """Metrics by name. JSON has no NaN and no infinities: they are stored under protobuf's JSON names."""

    impl = JSONB
    cache_ok = True

    def process_bind_param(self, value: dict[str, float] | None, dialect: Dialect) -> Any:  # noqa: ARG002 - SQLAlchemy's signature
        """Encode what JSON cannot hold."""
        return None if value is None else finite_json(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> dict[str, float] | None:  # noqa: ARG002 - SQLAlchemy's signature
        """Decode it."""
        return None if value is None else metrics_of_json(value)


def metric_in(metrics: ColumnElement[Any], name: str) -> ColumnElement[float]:
    """A metric of a column of metrics; NULL if it lacks the metric, or holds what is no number there."""
    value = cast(metrics, JSONB).op("->")(cast(name, Text))
    text = value.op("#>>")(literal_column("'{}'::text[]"))
    sound = or_(func.jsonb_typeof(value) == "number", text.in_(("NaN", "Infinity", "-Infinity")))
    return case((sound, cast(text, Double)))


def columns_of_metrics(table: Table) -> tuple[str, ...]:
    """The columns of a table that hold metrics."""
    return tuple(column.name for column in table.columns if isinstance(column.type, Metrics))


def time_column(name: str, *, now: bool = False, nullable: bool = True) -> Column[Any]:
    """Make a column for a time. With `now` its default is the time of the insert."""
    default = func.clock_timestamp() if now else None
    return Column(name, DateTime(timezone=True), nullable=nullable and not now, server_default=default)


READ_OF_STUDIES = {
    "resources": "CASE WHEN spec ->> 'template' IS NOT NULL THEN spec ->> 'resources' END",
    "wants": "CASE WHEN (standing ->> 'wants_slots')::integer > 0 THEN (standing ->> 'wants_slots') || ' ' || "
    "coalesce(standing ->> 'wants_milli', '') || ' ' || coalesce(standing ->> 'wants_cores', '') || ' ' || "
    "coalesce((standing -> 'avoided')::text, '') || (spec ->> 'resources') END",
    "held_off": "coalesce((standing ->> 'held_off')::integer, 0)",
    "keeps_slots": "jsonb_typeof(standing -> 'reserved') IS NOT DISTINCT FROM 'object'",
    "quantum_s": "coalesce((standing ->> 'quantum_s')::double precision, 0)",
} | {
    name: f"coalesce((standing #>> '{{usage,{name}}}')::double precision, 0)"
    for name in ("gpu_s", "cpu_s", "gpu_milli", "cpu_slots", "at_s", "credit_s")
}
"""Columns that Postgres computes from two others, and that the cycles of other studies compare in Postgres
(`store.neighbours`).

A study without `resources` does not run on workers. A study without `wants` does not wait for slots. A study with
`held_off` waits for the quota of its project.
"""


def read_of_studies() -> list[Column[Any]]:
    """Make these columns."""
    kinds: dict[str, Any] = {"resources": Text, "wants": Text, "keeps_slots": Boolean, "held_off": Integer}
    return [
        Column(name, kinds.get(name, Double), Computed(of, persisted=True))
        for name, of in READ_OF_STUDIES.items()
    ]
