"""The tables. Postgres holds every rule that a row can break; each constraint says its rule in English.

Milestones are the database's own truth of what is wanted of a trial: a trial is runnable iff it is PENDING
or PAUSED, has a milestone, and no user holds it. The migrations create all this; a test compares the two.
"""

import math
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSON, JSONB
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator

metadata = MetaData(
    naming_convention={
        "ix": "%(table_name)s_%(column_0_N_name)s_ix",
        "uq": "%(table_name)s_%(column_0_N_name)s_uq",
        "ck": "%(table_name)s_%(constraint_name)s",
        "fk": "%(table_name)s_%(column_0_N_name)s_fk",
        "pk": "%(table_name)s_pk",
    }
)

_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class Metrics(TypeDecorator[dict[str, float]]):
    """Metrics by name. JSON has no NaN and no infinities: they are stored under protobuf's JSON names."""

    impl = JSONB
    cache_ok = True

    def process_bind_param(self, value: dict[str, float] | None, dialect: Dialect) -> Any:  # noqa: ARG002
        """Spell out what JSON cannot hold."""
        return None if value is None else finite_json(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> dict[str, float] | None:  # noqa: ARG002
        """Undo it."""
        return None if value is None else metrics_of_json(value)


def finite_json(metrics: dict[str, float]) -> dict[str, float | str]:
    """Return metrics as JSON can hold them."""
    return {name: n if math.isfinite(n) else json_number(n) for name, n in metrics.items()}


def metrics_of_json(value: dict[str, Any]) -> dict[str, float]:
    """Return metrics as they were before `finite_json`."""
    return {name: _NON_FINITE[n] if isinstance(n, str) else float(n) for name, n in value.items()}


def json_number(number: float) -> float | str:
    """Return `number` as protobuf's JSON mapping writes it."""
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    return number


def _time(name: str, *, now: bool = False, nullable: bool = True) -> Column[Any]:
    default = func.clock_timestamp() if now else None
    return Column(name, DateTime(timezone=True), nullable=nullable and not now, server_default=default)


study = Table(
    "study",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("state", Text, nullable=False),
    Column("detail", Text, nullable=False, server_default=""),
    # Random: makes lease ids that no other database ever gave out.
    Column("uid", Text, nullable=False, unique=True),
    # JSON, not JSONB: numbers stay as they were written, so a float never comes back as an integer.
    Column("spec", JSON, nullable=False),
    Column("cursor", BigInteger, nullable=False, server_default="0"),
    Column("next_number", BigInteger, nullable=False, server_default="0"),
    # Of studies older than the column it is unknown.
    Column("planned", BigInteger),
    Column("sampled", BigInteger, nullable=False, server_default="0"),
    Column("reports", BigInteger, nullable=False, server_default="0"),
    Column("metric_seen", Boolean, nullable=False, server_default="false"),
    Column("early_failures", BigInteger, nullable=False, server_default="0"),
    # Of the spec, for other studies' steps to read; and what changes of the study's place in the cluster.
    Column("weight", Float, nullable=False, server_default="1"),
    Column("priority", Integer, nullable=False, server_default="0"),
    Column("standing", JSONB, nullable=False, server_default="{}"),
    _time("create_time", now=True),
    _time("end_time"),
    # A study is in one of its five states.
    CheckConstraint("state IN ('ACTIVE', 'PAUSED', 'COMPLETED', 'STOPPED', 'FAILED')", name="state"),
    # A study has an end if and only if it ended.
    CheckConstraint("(state IN ('COMPLETED', 'STOPPED', 'FAILED')) = (end_time IS NOT NULL)", name="end"),
    CheckConstraint("weight > 0", name="weight"),
    Index("study_active", "id", postgresql_where=text("state = 'ACTIVE'")),
)

worker = Table(
    "worker",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("incarnation", Text, nullable=False),
    # What keeps it from its work now, in its own words.
    Column("trouble", Text, nullable=False, server_default=""),
    # Which refused messages it keeps, in its own words.
    Column("set_aside", Text, nullable=False, server_default=""),
    # Counts the streams; only the newest one speaks for the worker.
    Column("session", BigInteger, nullable=False, server_default="0"),
    Column("connected", Boolean, nullable=False, server_default="false"),
    Column("labels", JSONB, nullable=False, server_default="{}"),
    Column("version", Text, nullable=False, server_default=""),
    Column("log_dir", Text, nullable=False, server_default=""),
    # The machine's cores; 0 where it did not say.
    Column("cpus", Integer, nullable=False, server_default="0"),
    _time("session_time", now=True),
    _time("last_seen", now=True),
    # The worker's leases live until then, by the database's clock.
    _time("expires_at", now=True),
)

lease = Table(
    "lease",
    metadata,
    Column("id", Text, primary_key=True),
    Column("study_id", BigInteger, nullable=False),
    Column("number", BigInteger, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("worker_id", BigInteger, ForeignKey("worker.id")),
    Column("incarnation", Text, nullable=False, server_default=""),
    Column("client_id", Text, nullable=False, server_default=""),
    Column("ttl_s", Float),
    Column("slots", ARRAY(Integer), nullable=False),
    Column("live", Boolean, nullable=False, server_default="true"),
    Column("last_sequence", BigInteger, nullable=False, server_default="0"),
    Column("step", BigInteger, nullable=False, server_default="0"),
    Column("resume", JSONB(none_as_null=True)),
    # Thousandths of each slot, and its memory budget where that is not the whole slot.
    Column("milli", Integer, nullable=False, server_default="1000"),
    Column("memory_bytes", BigInteger, nullable=False, server_default="0"),
    # The device model, by which speed is learnt.
    Column("model", Text, nullable=False, server_default=""),
    _time("grant_time", now=True),
    _time("expires_at"),
    _time("end_time"),
    ForeignKeyConstraint(["study_id", "number"], ["trial.study_id", "trial.number"], ondelete="CASCADE"),
    # An epoch is granted once.
    UniqueConstraint("study_id", "number", "epoch"),
    # A lease belongs to a worker or to a client, never to both.
    CheckConstraint("(worker_id IS NULL) <> (client_id = '')", name="holder"),
    # A client's lease expires by itself; a worker's with its worker.
    CheckConstraint("(worker_id IS NULL) = (expires_at IS NOT NULL)", name="expiry"),
    # A worker's lease has slots, a client's has none.
    CheckConstraint("(worker_id IS NULL) = (cardinality(slots) = 0)", name="slots"),
    CheckConstraint("epoch >= 1", name="epoch"),
    CheckConstraint("live = (end_time IS NULL)", name="end"),
    # A grant of several slots has them whole.
    CheckConstraint("milli = 1000 OR (milli BETWEEN 1 AND 999 AND cardinality(slots) <= 1)", name="milli"),
    # A trial has at most one live lease.
    Index("lease_live_trial", "study_id", "number", unique=True, postgresql_where=text("live")),
    Index("lease_live_worker", "worker_id", postgresql_where=text("live")),
    Index("lease_live_client", "expires_at", postgresql_where=text("live AND worker_id IS NULL")),
)

slot = Table(
    "slot",
    metadata,
    Column("worker_id", BigInteger, ForeignKey("worker.id", ondelete="CASCADE"), primary_key=True),
    Column("index", Integer, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("memory_bytes", BigInteger, nullable=False),
    Column("uuid", Text, nullable=False),
    # The lease that occupies the device: one at most, by the shape of the table.
    Column("lease_id", Text, ForeignKey("lease.id", deferrable=True, initially="DEFERRED")),
    # What leases that share the device hold of it: thousandths, and the sum of their memory budgets.
    Column("shared_milli", Integer, nullable=False, server_default="0"),
    Column("shared_memory_bytes", BigInteger, nullable=False, server_default="0"),
    # The device's share of its machine's cores.
    Column("cores", Float, nullable=False, server_default="0"),
    # Withdrawn devices stay until their lease ends.
    Column("present", Boolean, nullable=False, server_default="true"),
    CheckConstraint("kind IN ('CPU', 'GPU')", name="kind"),
    # A device is given out once, and not twice: whole to one lease, or in parts that fit.
    CheckConstraint("shared_milli BETWEEN 0 AND 1000 AND shared_memory_bytes >= 0", name="parts"),
    CheckConstraint("lease_id IS NULL OR shared_milli = 0", name="whole"),
    Index("slot_free", "worker_id", postgresql_where=text("lease_id IS NULL AND present")),
)

# Running trials that are to leave their slots to others. Written by the steps of other studies, without the lock
# of the trial's own, which reads it with its row: a message between studies that share a cluster.
leave = Table(
    "leave",
    metadata,
    Column("lease_id", Text, ForeignKey("lease.id", ondelete="CASCADE"), primary_key=True),
    # The study whose trial is to leave, and the one that asks.
    Column("study_id", BigInteger, nullable=False),
    Column("for_study_id", BigInteger, ForeignKey("study.id", ondelete="CASCADE"), nullable=False),
    # At the next report with a checkpoint; else at the next rung.
    Column("at_report", Boolean, nullable=False),
    Column("why", Text, nullable=False),
    Index("leave_study", "study_id"),
    Index("leave_for_study", "for_study_id"),
)

trial = Table(
    "trial",
    metadata,
    Column("study_id", BigInteger, ForeignKey("study.id", ondelete="CASCADE"), primary_key=True),
    Column("number", BigInteger, primary_key=True),
    Column("state", Text, nullable=False),
    Column("params", JSON, nullable=False),
    Column("baseline", Boolean, nullable=False, server_default="false"),
    Column("bracket", Integer, nullable=False, server_default="0"),
    # Of the trials that an evolutionary sampler proposed.
    Column("generation", Integer),
    Column("epoch", BigInteger, nullable=False, server_default="0"),
    Column("step", BigInteger, nullable=False, server_default="0"),
    Column("milestone", BigInteger),
    Column("held", Boolean, nullable=False, server_default="false"),
    Column("rungs", Integer, nullable=False, server_default="0"),
    Column("value", Float),
    Column("best_value", Float),
    Column("best_step", BigInteger, nullable=False, server_default="0"),
    Column("metrics", Metrics, nullable=False, server_default="{}"),
    Column("reason", Text),
    Column("detail", Text, nullable=False, server_default=""),
    Column("checkpoint", JSONB(none_as_null=True)),
    Column("lease_id", Text),
    Column("failures", Integer, nullable=False, server_default="0"),
    Column("interruptions", Integer, nullable=False, server_default="0"),
    Column("losses_in_row", Integer, nullable=False, server_default="0"),
    Column("steps_spent", BigInteger, nullable=False, server_default="0"),
    Column("log_path", Text, nullable=False, server_default=""),
    Column("log_tail", Text, nullable=False, server_default=""),
    # Steps and seconds of training by kind of grant.
    Column("speeds", JSONB, nullable=False, server_default="{}"),
    # How long its last restore took, in seconds.
    Column("read_s", Float),
    # The event that ended the trial, for caches that catch up.
    Column("end_cursor", BigInteger),
    _time("create_time", now=True),
    _time("start_time"),
    _time("end_time"),
    # A trial is in one of its five states. (The trigger trial_transition holds what leads where.)
    CheckConstraint("state IN ('PENDING', 'RUNNING', 'PAUSED', 'RESUMED', 'TERMINATED')", name="state"),
    # A trial holds a lease if and only if it is on a worker.
    CheckConstraint("(state IN ('RUNNING', 'RESUMED')) = (lease_id IS NOT NULL)", name="lease"),
    # A trial is paused, and resumed, on a checkpoint.
    CheckConstraint("state NOT IN ('PAUSED', 'RESUMED') OR checkpoint IS NOT NULL", name="checkpoint"),
    # A trial on a worker is on its way somewhere.
    CheckConstraint("state NOT IN ('RUNNING', 'RESUMED') OR milestone IS NOT NULL", name="milestone"),
    # A trial that was placed has an epoch.
    CheckConstraint("state NOT IN ('RUNNING', 'RESUMED') OR epoch >= 1", name="placed"),
    # A trial that is over has a reason, an end, and nothing that is wanted of it.
    CheckConstraint("(state = 'TERMINATED') = (reason IS NOT NULL)", name="reason"),
    CheckConstraint("(state = 'TERMINATED') = (end_time IS NOT NULL)", name="end"),
    CheckConstraint("state <> 'TERMINATED' OR milestone IS NULL", name="over"),
    CheckConstraint("reason IN ('COMPLETED', 'STOPPED_EARLY', 'FAILED', 'CANCELLED')", name="reasons"),
    # Only the first trial is a baseline.
    CheckConstraint("NOT baseline OR number = 0", name="baseline"),
    CheckConstraint("step >= 0 AND rungs >= 0 AND failures >= 0 AND steps_spent >= 0", name="counts"),
    # Generations count from 0.
    CheckConstraint("generation >= 0", name="generation"),
    Index(
        "trial_runnable",
        "study_id",
        text("(epoch = 0)"),
        "number",
        postgresql_where=text("state IN ('PENDING', 'PAUSED') AND milestone IS NOT NULL AND NOT held"),
    ),
    Index("trial_state", "study_id", "state", "number"),
    Index("trial_ended", "study_id", "end_cursor", postgresql_where=text("end_cursor IS NOT NULL")),
    Index("trial_best", "study_id", "best_value", postgresql_where=text("best_value IS NOT NULL")),
)

report = Table(
    "report",
    metadata,
    Column("study_id", BigInteger, primary_key=True),
    Column("number", BigInteger, primary_key=True),
    # The attempt, and the worker's own count: the same report is stored once.
    Column("epoch", BigInteger, primary_key=True),
    Column("sequence", BigInteger, primary_key=True),
    Column("step", BigInteger, nullable=False),
    Column("metrics", Metrics, nullable=False),
    Column("checkpoint", JSONB(none_as_null=True)),
    Column("train_time_s", Float, nullable=False, server_default="0"),
    # The decision that it was answered with, for a worker that asks again.
    Column("action", Text, nullable=False),
    Column("next_milestone", BigInteger, nullable=False),
    Column("decision_reason", Text, nullable=False, server_default=""),
    _time("time", now=True),
    ForeignKeyConstraint(["study_id", "number"], ["trial.study_id", "trial.number"], ondelete="CASCADE"),
    CheckConstraint("action IN ('CONTINUE', 'PAUSE', 'STOP')", name="action"),
)

rung_result = Table(
    "rung_result",
    metadata,
    Column("study_id", BigInteger, primary_key=True),
    Column("number", BigInteger, primary_key=True),
    # A trial is recorded once at each rung.
    Column("rung", Integer, primary_key=True),
    Column("bracket", Integer, nullable=False),
    Column("milestone", BigInteger, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("value", Float),
    Column("arrival", BigInteger, nullable=False),
    # The events that recorded and promoted it, for caches that catch up.
    Column("cursor", BigInteger, nullable=False),
    Column("promoted_cursor", BigInteger),
    # What was saved with the report: what another trial may be given (population-based training).
    Column("checkpoint", JSONB(none_as_null=True)),
    # What was measured on the way; only where the policy prices pauses.
    Column("cost", JSONB(none_as_null=True)),
    _time("time", now=True),
    ForeignKeyConstraint(["study_id", "number"], ["trial.study_id", "trial.number"], ondelete="CASCADE"),
    # Arrivals at a rung are numbered without doubles.
    UniqueConstraint("study_id", "bracket", "rung", "arrival"),
    # The first report at or past the milestone counts.
    CheckConstraint("step >= milestone", name="step"),
    Index("rung_result_cursor", "study_id", "cursor"),
    Index(
        "rung_result_promoted",
        "study_id",
        "promoted_cursor",
        postgresql_where=text("promoted_cursor IS NOT NULL"),
    ),
)

exploit = Table(
    "exploit",
    metadata,
    Column("study_id", BigInteger, primary_key=True),
    Column("number", BigInteger, primary_key=True),
    # A trial copies at most once at each rung.
    Column("rung", Integer, primary_key=True),
    Column("donor", BigInteger, nullable=False),
    Column("checkpoint", JSONB, nullable=False),
    Column("donor_value", Float),
    Column("previous_params", JSON, nullable=False),
    Column("params", JSON, nullable=False),
    # The event that tells of it, for caches that catch up.
    Column("cursor", BigInteger, nullable=False),
    _time("time", now=True),
    # Both were recorded at the rung.
    ForeignKeyConstraint(
        ["study_id", "number", "rung"],
        ["rung_result.study_id", "rung_result.number", "rung_result.rung"],
        ondelete="CASCADE",
    ),
    ForeignKeyConstraint(
        ["study_id", "donor", "rung"],
        ["rung_result.study_id", "rung_result.number", "rung_result.rung"],
        ondelete="CASCADE",
    ),
    CheckConstraint("donor <> number", name="itself"),
    Index("exploit_cursor", "study_id", "cursor"),
)

event = Table(
    "event",
    metadata,
    Column("study_id", BigInteger, ForeignKey("study.id", ondelete="CASCADE"), primary_key=True),
    # Counts from 1 without gaps: assigned under the lock on the study.
    Column("cursor", BigInteger, primary_key=True),
    Column("number", BigInteger),
    Column("kind", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("detail", JSONB, nullable=False),
    _time("time", now=True),
    Index("event_trial", "study_id", "number", "cursor", postgresql_where=text("number IS NOT NULL")),
)

request = Table(
    "request",
    metadata,
    Column("request_id", Text, primary_key=True),
    Column("method", Text, nullable=False),
    # Of the request without its id: the same id with other content is refused.
    Column("digest", LargeBinary, nullable=False),
    Column("response", LargeBinary, nullable=False),
    _time("time", now=True),
    Index("request_time", "time"),
)
