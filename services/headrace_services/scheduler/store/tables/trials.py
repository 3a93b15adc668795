"""Trials and their history: reports, results at rungs, exploits, events."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSON, JSONB

from headrace_services.scheduler.store.columns import Metrics, time_column
from headrace_services.scheduler.store.tables.base import metadata

trial = Table(
    "trial",
    metadata,
    Column("study_id", BigInteger, ForeignKey("study.id", ondelete="CASCADE"), primary_key=True),
    Column("number", BigInteger, primary_key=True),
    Column("state", Text, nullable=False),
    Column("params", JSON, nullable=False),
    Column("baseline", Boolean, nullable=False, server_default="false"),
    Column("bracket", Integer, nullable=False, server_default="0"),
    # For trials that an evolutionary sampler proposed.
    Column("generation", Integer),
    # The trial of another study whose configuration it has.
    Column("source", BigInteger),
    Column("attempt", BigInteger, nullable=False, server_default="0"),
    Column("step", BigInteger, nullable=False, server_default="0"),
    Column("milestone", BigInteger),
    Column("user_paused", Boolean, nullable=False, server_default="false"),
    Column("rungs", Integer, nullable=False, server_default="0"),
    Column("value", Float),
    Column("best_value", Float),
    Column("best_step", BigInteger, nullable=False, server_default="0"),
    # Those of the report with the best value, if that report counts.
    Column("best_metrics", Metrics, nullable=False, server_default="{}"),
    # The value that counts, by the objective's scope.
    Column("score", Float),
    # The values of its last reports that met the constraints, if their mean counts.
    Column("recent", ARRAY(Float), nullable=False, server_default="{}"),
    Column("recent_steps", ARRAY(Integer), nullable=False, server_default="{}"),
    # The same of an attempt that repeats steps.
    Column("repeated", ARRAY(Float), nullable=False, server_default="{}"),
    Column("repeated_steps", ARRAY(Integer), nullable=False, server_default="{}"),
    Column("metrics", Metrics, nullable=False, server_default="{}"),
    Column("reason", Text),
    Column("detail", Text, nullable=False, server_default=""),
    Column("checkpoint", JSONB(none_as_null=True)),
    # The checkpoint of the best value, if the study keeps it.
    Column("best_checkpoint", JSONB(none_as_null=True)),
    Column("lease_id", Text),
    # Its last lease was a client's, which may take it up again.
    Column("lapsed", Boolean, nullable=False, server_default="false"),
    Column("failures", Integer, nullable=False, server_default="0"),
    Column("interruptions", Integer, nullable=False, server_default="0"),
    # Why its last attempts could not start, if the reason was its checkpoint.
    Column("unread", JSONB(none_as_null=True)),
    # It must not be placed before then (seconds since 1970, by the database's clock).
    Column("not_before_s", Float),
    Column("losses_in_row", Integer, nullable=False, server_default="0"),
    Column("kills_in_row", Integer, nullable=False, server_default="0"),
    # At how many faults of a shared GPU it was there, with no culprit known.
    Column("shared_faults", Integer, nullable=False, server_default="0"),
    Column("steps_spent", BigInteger, nullable=False, server_default="0"),
    Column("log_path", Text, nullable=False, server_default=""),
    Column("log_tail", Text, nullable=False, server_default=""),
    # The stages in whose bubbles it ran or runs, in order.
    Column("bubbles", ARRAY(Text), nullable=False, server_default="{}"),
    # Steps and seconds of training by kind of grant.
    Column("speeds", JSONB, nullable=False, server_default="{}"),
    # How long its last restore took, in seconds.
    Column("read_s", Float),
    # If the study limits how long a trial runs: how long its earlier attempts ran, and since when the present one
    # runs (seconds since 1970, by the database's clock).
    Column("ran_s", Float, nullable=False, server_default="0"),
    Column("runs_since_s", Float),
    # The full budget of its last attempt.
    Column("budget", BigInteger),
    # Its result each time that it was over and was let continue, and which of these counts.
    Column("earlier_ends", JSONB, nullable=False, server_default="[]"),
    Column("counted_end", Integer),
    # The learning-rate schedules that it tracks and that end.
    Column("schedules", JSONB, nullable=False, server_default="[]"),
    # The digest of the code that its last attempt ran, and the files in which it ever ran other code than the
    # study started with.
    Column("code", Text, nullable=False, server_default=""),
    Column("code_changed", ARRAY(Text), nullable=False, server_default="{}"),
    # The steps that such code trained, its own and those that it copied, and whether its result is from after
    # that.
    Column("other_code", JSONB, nullable=False, server_default="[]"),
    Column("score_marked", Boolean, nullable=False, server_default="false"),
    # What users have noted on it. Cycles neither read nor write this.
    Column("tags", ARRAY(Text), nullable=False, server_default="{}"),
    Column("note", Text, nullable=False, server_default=""),
    # The event that ended the trial, for caches that catch up; none for a trial that was reopened.
    Column("end_cursor", BigInteger),
    time_column("create_time", now=True),
    time_column("start_time"),
    time_column("end_time"),
    # A trial is in one of its five states. (The trigger trial_transition has the transitions.)
    CheckConstraint("state IN ('PENDING', 'RUNNING', 'PAUSED', 'RESUMED', 'TERMINATED')", name="state"),
    # A trial holds a lease if and only if it is on a worker.
    CheckConstraint("(state IN ('RUNNING', 'RESUMED')) = (lease_id IS NOT NULL)", name="lease"),
    # Only a trial that waits has a lease that may be taken up again.
    CheckConstraint("NOT lapsed OR state IN ('PENDING', 'PAUSED')", name="lapsed"),
    # A trial is paused, and resumed, with a checkpoint.
    CheckConstraint("state NOT IN ('PAUSED', 'RESUMED') OR checkpoint IS NOT NULL", name="checkpoint"),
    # The best checkpoint belongs to a best value.
    CheckConstraint("best_checkpoint IS NULL OR best_value IS NOT NULL", name="best_checkpoint"),
    # A trial on a worker has a milestone.
    CheckConstraint("state NOT IN ('RUNNING', 'RESUMED') OR milestone IS NOT NULL", name="milestone"),
    # A trial that was placed has an attempt.
    CheckConstraint("state NOT IN ('RUNNING', 'RESUMED') OR attempt >= 1", name="placed"),
    # A trial that is over has a reason, an end time, and no milestone.
    CheckConstraint("(state = 'TERMINATED') = (reason IS NOT NULL)", name="reason"),
    CheckConstraint("(state = 'TERMINATED') = (end_time IS NOT NULL)", name="end"),
    CheckConstraint("state <> 'TERMINATED' OR milestone IS NULL", name="over"),
    CheckConstraint(
        "reason IN ('COMPLETED', 'STOPPED_EARLY', 'FAILED', 'CANCELLED', 'INFEASIBLE')", name="reasons"
    ),
    # One of the earlier ends counts, or none.
    CheckConstraint(
        "counted_end IS NULL OR counted_end BETWEEN 0 AND jsonb_array_length(earlier_ends) - 1",
        name="counted_end",
    ),
    # Only the first trial is a baseline.
    CheckConstraint("NOT baseline OR number = 0", name="baseline"),
    CheckConstraint("step >= 0 AND rungs >= 0 AND failures >= 0 AND steps_spent >= 0", name="counts"),
    # Generations count from 0.
    CheckConstraint("generation >= 0", name="generation"),
    Index(
        "trial_runnable",
        "study_id",
        text("(attempt = 0)"),
        "number",
        postgresql_where=text("state IN ('PENDING', 'PAUSED') AND milestone IS NOT NULL AND NOT user_paused"),
    ),
    Index("trial_rests", "study_id", "not_before_s", postgresql_where=text("not_before_s IS NOT NULL")),
    Index("trial_state", "study_id", "state", "number"),
    Index("trial_ended", "study_id", "end_cursor", postgresql_where=text("end_cursor IS NOT NULL")),
    Index("trial_score", "study_id", "score", postgresql_where=text("score IS NOT NULL")),
)

report = Table(
    "report",
    metadata,
    Column("study_id", BigInteger, primary_key=True),
    Column("number", BigInteger, primary_key=True),
    # The attempt, and the worker's own count: the same report is stored once.
    Column("attempt", BigInteger, primary_key=True),
    Column("sequence", BigInteger, primary_key=True),
    Column("step", BigInteger, nullable=False),
    Column("metrics", Metrics, nullable=False),
    Column("checkpoint", JSONB(none_as_null=True)),
    Column("train_time_s", Float, nullable=False, server_default="0"),
    # The decision that answered it, for a worker that asks again.
    Column("action", Text, nullable=False),
    Column("next_milestone", BigInteger, nullable=False),
    Column("decision_reason", Text, nullable=False, server_default=""),
    time_column("time", now=True),
    ForeignKeyConstraint(["study_id", "number"], ["trial.study_id", "trial.number"], ondelete="CASCADE"),
    CheckConstraint("action IN ('CONTINUE', 'PAUSE', 'STOP')", name="action"),
    Index("report_step", "study_id", "number", "step"),
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
    # The checkpoint saved with the report: another trial may copy it (population-based training).
    Column("checkpoint", JSONB(none_as_null=True)),
    # What was measured on the way; only if the policy prices pauses.
    Column("cost", JSONB(none_as_null=True)),
    time_column("time", now=True),
    ForeignKeyConstraint(["study_id", "number"], ["trial.study_id", "trial.number"], ondelete="CASCADE"),
    # Arrivals at a rung are numbered without duplicates.
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
    # Its event, for caches that catch up.
    Column("cursor", BigInteger, nullable=False),
    time_column("time", now=True),
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
    Index("exploit_donor", "study_id", "donor", "rung"),
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
    time_column("time", now=True),
    Index("event_trial", "study_id", "number", "cursor", postgresql_where=text("number IS NOT NULL")),
)
