"""The tables. Postgres holds every rule that a row can break; each constraint says its rule in English.

Milestones are the database's own truth of what is wanted of a trial: a trial is runnable iff it is PENDING
or PAUSED, has a milestone, and no user holds it. The migrations create all this; a test compares the two.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
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
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSON, JSONB

from headrace.spec.names import DEFAULT_PROJECT
from headrace_services.scheduler.store.columns import Metrics, read_of_studies, time_column

metadata = MetaData(
    naming_convention={
        "ix": "%(table_name)s_%(column_0_N_name)s_ix",
        "uq": "%(table_name)s_%(column_0_N_name)s_uq",
        "ck": "%(table_name)s_%(constraint_name)s",
        "fk": "%(table_name)s_%(column_0_N_name)s_fk",
        "pk": "%(table_name)s_pk",
    }
)


# Whose studies know each other by name, and how much they may have together. NULL is no limit.
project = Table(
    "project",
    metadata,
    Column("name", Text, primary_key=True),
    # The most slots that its studies hold at once, ephemeral ones not counted. Cycles that place for a project with
    # such a quota lock its row.
    Column("slots", Integer),
    # The most studies that have not ended.
    Column("studies", Integer),
    time_column("create_time", now=True),
    CheckConstraint("slots >= 0", name="slots"),
    CheckConstraint("studies >= 0", name="studies"),
)

study = Table(
    "study",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("name", Text, nullable=False),
    Column("project", Text, ForeignKey("project.name"), nullable=False, server_default=DEFAULT_PROJECT),
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
    # The name of the study that it waits for.
    Column("after", Text),
    # With `scale: auto`: what its pilot has chosen.
    Column("scale_choice", JSONB(none_as_null=True)),
    # Of a gate: the key of what it checks.
    Column("checks", Text),
    # The digest of its program's folder, where that was shipped.
    Column("code", Text),
    # How often trials of it were reopened, or its spec changed: caches of another revision are void.
    Column("revision", BigInteger, nullable=False, server_default="0"),
    # The attempts of its trials are numbered above this: a database that was restored issues no number twice.
    Column("attempts_from", BigInteger, nullable=False, server_default="0"),
    # When a user deleted it: nobody finds it any more, and its rows go one batch after the other.
    time_column("delete_time"),
    # For each kind of thing that has an age: the end of the study for which it was deleted.
    Column("aged", JSONB, nullable=False, server_default="{}"),
    Column("sampled", BigInteger, nullable=False, server_default="0"),
    Column("reports", BigInteger, nullable=False, server_default="0"),
    Column("metric_seen", Boolean, nullable=False, server_default="false"),
    Column("early_failures", BigInteger, nullable=False, server_default="0"),
    # Of the spec, for other studies' cycles to read; and what changes of the study's place in the cluster.
    Column("weight", Float, nullable=False, server_default="1"),
    Column("priority", Integer, nullable=False, server_default="0"),
    Column("standing", JSONB, nullable=False, server_default="{}"),
    *read_of_studies(),
    time_column("create_time", now=True),
    time_column("end_time"),
    # A study is in one of its five states.
    CheckConstraint("state IN ('ACTIVE', 'PAUSED', 'COMPLETED', 'STOPPED', 'FAILED')", name="state"),
    # A study has an end if and only if it ended.
    CheckConstraint("(state IN ('COMPLETED', 'STOPPED', 'FAILED')) = (end_time IS NOT NULL)", name="end"),
    # Only a study that ended is deleted.
    CheckConstraint("delete_time IS NULL OR end_time IS NOT NULL", name="deleted"),
    CheckConstraint("weight > 0", name="weight"),
    # A name is its study's own within the project.
    UniqueConstraint("project", "name"),
    Index("study_project", "project", "id"),
    Index("study_unended", "project", postgresql_where=text("end_time IS NULL")),
    Index("study_active", "id", postgresql_where=text("state = 'ACTIVE'")),
    Index(
        "study_timed",
        "id",
        postgresql_where=text("state IN ('ACTIVE', 'PAUSED') AND spec #>> '{until,hours}' IS NOT NULL"),
    ),
    Index("study_waiting", "id", postgresql_where=text("after IS NOT NULL AND end_time IS NULL")),
    Index("study_checks", "checks", postgresql_where=text("checks IS NOT NULL")),
    Index("study_ended", "end_time", postgresql_where=text("end_time IS NOT NULL")),
    Index("study_live", "id", postgresql_where=text("state IN ('ACTIVE', 'PAUSED')")),
    Index("study_listed", "project", "id", postgresql_where=text("delete_time IS NULL")),
    Index("study_deleted", "id", postgresql_where=text("delete_time IS NOT NULL")),
    Index("study_code", "code", postgresql_where=text("code IS NOT NULL")),
    Index("study_ending", "id", postgresql_where=text("standing ->> 'ended_through' IS NOT NULL")),
)

worker = Table(
    "worker",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("incarnation", Text, nullable=False),
    # Its machine, for people; and which home its outbox lies in.
    Column("host", Text, nullable=False, server_default=""),
    Column("home", Text, nullable=False, server_default=""),
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
    # Of its last session; absent where it needs no certificate.
    time_column("certificate_until"),
    time_column("session_time", now=True),
    time_column("last_seen", now=True),
    # The worker's leases live until then, by the database's clock.
    time_column("expires_at", now=True),
    # A user's wish: nothing new is placed on it (CORDON), and its trials go elsewhere too (DRAIN). Why, since when, how
    # long they have (NULL: as long as they take), and which incarnation it was asked of.
    Column("hold", Text, nullable=False, server_default=""),
    Column("hold_why", Text, nullable=False, server_default=""),
    time_column("hold_time"),
    Column("hold_grace_s", Float),
    Column("hold_incarnation", Text, nullable=False, server_default=""),
    # Why its daemon leaves, in its own words; empty while it does not.
    Column("leaving", Text, nullable=False, server_default=""),
    CheckConstraint("hold IN ('', 'CORDON', 'DRAIN')", name="hold"),
    # A wish has a time.
    CheckConstraint("(hold = '') = (hold_time IS NULL)", name="hold_time"),
    CheckConstraint("hold = 'DRAIN' OR hold_grace_s IS NULL", name="hold_grace"),
    Index("worker_away", "last_seen", postgresql_where=text("NOT connected")),
)

# Slots that are held: by one lease, or by several that share them. The trigger lease_begins counts them: never more
# live leases than seats.
slot_grant = Table(
    "slot_grant",
    metadata,
    # The id of its first lease.
    Column("id", Text, primary_key=True),
    Column("study_id", BigInteger, ForeignKey("study.id", ondelete="CASCADE"), nullable=False),
    # Over all its parts.
    Column("slot_count", Integer, nullable=False),
    # Thousandths of each slot, and its memory budget where that is not the whole slot.
    Column("milli", Integer, nullable=False, server_default="1000"),
    Column("memory_bytes", BigInteger, nullable=False, server_default="0"),
    # The device model, by which speed is learnt.
    Column("model", Text, nullable=False, server_default=""),
    # How many live leases it may have, what their trials have in common, and whether it takes no further one.
    Column("seats", Integer, nullable=False, server_default="1"),
    Column("key", Text, nullable=False, server_default=""),
    Column("closed", Boolean, nullable=False, server_default="false"),
    # The stage in whose bubbles its trials work; empty where its slots are its own.
    Column("bubbles", Text, nullable=False, server_default=""),
    Column("live", Boolean, nullable=False, server_default="true"),
    time_column("grant_time", now=True),
    time_column("end_time"),
    CheckConstraint("live = (end_time IS NULL)", name="end"),
    CheckConstraint("slot_count >= 1", name="slots"),
    # A bundle is on one slot.
    CheckConstraint("seats = 1 OR (seats > 1 AND slot_count = 1)", name="seats"),
    # Only a bundle takes further trials, and so none any more.
    CheckConstraint("NOT closed OR seats > 1", name="closed"),
    # A grant of several slots has them whole.
    CheckConstraint("milli = 1000 OR (milli BETWEEN 1 AND 999 AND slot_count = 1)", name="milli"),
    # In bubbles it has one slot, and that whole.
    CheckConstraint("bubbles = '' OR (slot_count = 1 AND milli = 1000)", name="bubbles"),
    Index("slot_grant_study", "study_id"),
    Index("slot_grant_open", "study_id", postgresql_where=text("live AND seats > 1 AND NOT closed")),
)

grant_part = Table(
    "grant_part",
    metadata,
    Column("grant_id", Text, ForeignKey("slot_grant.id", ondelete="CASCADE"), primary_key=True),
    # A grant has one part on a worker at most.
    Column("worker_id", BigInteger, ForeignKey("worker.id"), primary_key=True),
    Column("incarnation", Text, nullable=False),
    Column("slots", ARRAY(Integer), nullable=False),
    CheckConstraint("cardinality(slots) >= 1", name="slots"),
    Index("grant_part_worker", "worker_id"),
)

lease = Table(
    "lease",
    metadata,
    Column("id", Text, primary_key=True),
    Column("study_id", BigInteger, nullable=False),
    Column("number", BigInteger, nullable=False),
    Column("attempt", BigInteger, nullable=False),
    # What the trial runs on, and the worker that speaks for it.
    Column("grant_id", Text, ForeignKey("slot_grant.id", ondelete="CASCADE")),
    Column("worker_id", BigInteger),
    Column("incarnation", Text, nullable=False, server_default=""),
    Column("client_id", Text, nullable=False, server_default=""),
    Column("ttl_s", Float),
    Column("live", Boolean, nullable=False, server_default="true"),
    Column("last_sequence", BigInteger, nullable=False, server_default="0"),
    Column("step", BigInteger, nullable=False, server_default="0"),
    Column("resume", JSONB(none_as_null=True)),
    # The full budget that the attempt was told: it may have grown since.
    Column("budget", BigInteger),
    time_column("grant_time", now=True),
    time_column("expires_at"),
    time_column("end_time"),
    ForeignKeyConstraint(["study_id", "number"], ["trial.study_id", "trial.number"], ondelete="CASCADE"),
    # A worker speaks for a lease only where the grant has a part.
    ForeignKeyConstraint(["grant_id", "worker_id"], ["grant_part.grant_id", "grant_part.worker_id"]),
    # An attempt is granted once.
    UniqueConstraint("study_id", "number", "attempt"),
    # A lease belongs to a worker or to a client, never to both.
    CheckConstraint("(worker_id IS NULL) <> (client_id = '')", name="holder"),
    # A client's lease expires by itself; a worker's with its worker, or by itself once the worker does not name it.
    CheckConstraint("worker_id IS NOT NULL OR expires_at IS NOT NULL", name="expiry"),
    # A worker's lease has a grant, a client's has none.
    CheckConstraint("(worker_id IS NULL) = (grant_id IS NULL)", name="grant"),
    CheckConstraint("attempt >= 1", name="attempt"),
    CheckConstraint("live = (end_time IS NULL)", name="end"),
    # A trial has at most one live lease.
    Index("lease_live_trial", "study_id", "number", unique=True, postgresql_where=text("live")),
    Index("lease_live_worker", "worker_id", postgresql_where=text("live")),
    Index("lease_live_client", "expires_at", postgresql_where=text("live AND worker_id IS NULL")),
    Index("lease_live_grant", "grant_id", postgresql_where=text("live")),
    Index("lease_grant_ix", "grant_id", "worker_id"),
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
    # The grant that occupies the device: one at most, by the shape of the table.
    Column("grant_id", Text, ForeignKey("slot_grant.id", deferrable=True, initially="DEFERRED")),
    # What grants that share the device hold of it: thousandths, and the sum of their memory budgets.
    Column("shared_milli", Integer, nullable=False, server_default="0"),
    Column("shared_memory_bytes", BigInteger, nullable=False, server_default="0"),
    # The device's share of its machine's cores.
    Column("cores", Float, nullable=False, server_default="0"),
    # How it is joined to the worker's device of each index (the contract's LinkKind); empty where that is unknown.
    Column("links", ARRAY(Integer), nullable=False, server_default="{}"),
    # Whether the worker names it. A device that it names no more stays until its grant ends.
    Column("offered", Boolean, nullable=False, server_default="true"),
    # Whether trials may be placed on it: it is offered and sound, and neither it nor its worker is held
    # (`store.machines` computes it).
    Column("present", Boolean, nullable=False, server_default="true"),
    # Why the device failed, in its worker's words, since the daemon's start.
    Column("defect", Text, nullable=False, server_default=""),
    # The large job and its stage in whose bubbles alone the slot can be had, and the share of its time that trials may
    # expect there; an ordinary slot has no owner.
    Column("owner", Text, nullable=False, server_default=""),
    Column("stage", Integer),
    Column("duty", Float),
    CheckConstraint("kind IN ('CPU', 'GPU')", name="kind"),
    # A device is given out once, and not twice: whole to one grant, or in parts that fit.
    CheckConstraint("shared_milli BETWEEN 0 AND 1000 AND shared_memory_bytes >= 0", name="parts"),
    CheckConstraint("grant_id IS NULL OR shared_milli = 0", name="whole"),
    # A slot is whole, shared or ephemeral: one of a large job is given out whole, in its bubbles.
    CheckConstraint("owner = '' OR shared_milli = 0", name="ephemeral"),
    # An ephemeral slot says whose it is and what may be expected of it, and no other slot does.
    CheckConstraint("(owner = '') = (stage IS NULL) AND (owner = '') = (duty IS NULL)", name="owner"),
    CheckConstraint("duty BETWEEN 0 AND 1", name="duty"),
    Index("slot_free", "worker_id", postgresql_where=text("grant_id IS NULL AND present")),
    Index("slot_grant_id", "grant_id", postgresql_where=text("grant_id IS NOT NULL")),
)

# Devices on which nothing starts until a user takes it back: those that failed, and those that a user has cordoned. A
# row outlives the daemon, and follows the device to another machine.
cordon = Table(
    "cordon",
    metadata,
    # A GPU's uuid; of any other device its worker's name and its index (`store.machines`).
    Column("device", Text, primary_key=True),
    Column("reason", Text, nullable=False),
    # Whether the device failed; else a user asked for it.
    Column("quarantined", Boolean, nullable=False),
    time_column("time", now=True),
)

# Grants whose trials are to leave their slots to others. Written by the cycles of other studies, without the lock
# of the grant's own, which reads it with its row: a message between studies that share a cluster.
leave = Table(
    "leave",
    metadata,
    Column("grant_id", Text, ForeignKey("slot_grant.id", ondelete="CASCADE"), primary_key=True),
    # The study whose trials are to leave, and the one that asks; none where an ephemeral slot's owner takes it back,
    # where the worker is drained, and where the device failed.
    Column("study_id", BigInteger, nullable=False),
    Column("for_study_id", BigInteger, ForeignKey("study.id", ondelete="CASCADE")),
    # At the next report with a checkpoint; else at the next rung.
    Column("at_report", Boolean, nullable=False),
    Column("why", Text, nullable=False),
    Index("leave_study", "study_id"),
    Index("leave_for_study", "for_study_id"),
)

# What a study knows of its bundles: how many trials share a process on a kind of device. Read and written under the
# lock on the study.
bundle_profile = Table(
    "bundle_profile",
    metadata,
    Column("study_id", BigInteger, ForeignKey("study.id", ondelete="CASCADE"), primary_key=True),
    # The device's model.
    Column("device", Text, primary_key=True),
    # What the trials of a bundle have in common, and its digest: a key may be longer than an index takes.
    Column("digest", Text, primary_key=True),
    Column("key", Text, nullable=False),
    # For a number of members: turns, the least time of one in seconds, the most memory in bytes; and of turns before
    # which trials joined or left.
    Column("steady", JSONB, nullable=False, server_default="{}"),
    Column("fresh", JSONB, nullable=False, server_default="{}"),
    # Half the members of the process that ran out of memory.
    Column("most", Integer),
    time_column("time", now=True),
    CheckConstraint("most >= 1", name="most"),
    Index("bundle_profile_time", "study_id", "time"),
)

# How busy a device was: the last hour, a row a minute, each in the place of the one an hour before.
slot_load = Table(
    "slot_load",
    metadata,
    Column("worker_id", BigInteger, ForeignKey("worker.id", ondelete="CASCADE"), primary_key=True),
    Column("index", Integer, primary_key=True),
    # The minute of the hour.
    Column("place", Integer, primary_key=True),
    time_column("minute", nullable=False),
    Column("samples", Integer, nullable=False),
    # The mean of the samples, from 0 to 1.
    Column("utilization", Float, nullable=False),
    # The most of them.
    Column("memory_used_bytes", BigInteger, nullable=False),
    CheckConstraint("place BETWEEN 0 AND 59", name="place"),
    CheckConstraint("samples >= 1", name="samples"),
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
    # The value that counts, by the objective's scope.
    Column("score", Float),
    # The values of its last reports, where their mean counts.
    Column("recent", ARRAY(Float), nullable=False, server_default="{}"),
    Column("metrics", Metrics, nullable=False, server_default="{}"),
    Column("reason", Text),
    Column("detail", Text, nullable=False, server_default=""),
    Column("checkpoint", JSONB(none_as_null=True)),
    # That of the best value, where the study keeps it.
    Column("best_checkpoint", JSONB(none_as_null=True)),
    Column("lease_id", Text),
    Column("failures", Integer, nullable=False, server_default="0"),
    Column("interruptions", Integer, nullable=False, server_default="0"),
    Column("checkpoint_missing", Boolean, nullable=False, server_default="false"),
    Column("losses_in_row", Integer, nullable=False, server_default="0"),
    Column("kills_in_row", Integer, nullable=False, server_default="0"),
    Column("steps_spent", BigInteger, nullable=False, server_default="0"),
    Column("log_path", Text, nullable=False, server_default=""),
    Column("log_tail", Text, nullable=False, server_default=""),
    # The stages in whose bubbles it ran or runs, in order.
    Column("bubbles", ARRAY(Text), nullable=False, server_default="{}"),
    # Steps and seconds of training by kind of grant.
    Column("speeds", JSONB, nullable=False, server_default="{}"),
    # How long its last restore took, in seconds.
    Column("read_s", Float),
    # The event that ended the trial, for caches that catch up; none of a trial that was reopened.
    Column("end_cursor", BigInteger),
    time_column("create_time", now=True),
    time_column("start_time"),
    time_column("end_time"),
    # A trial is in one of its five states. (The trigger trial_transition holds what leads where.)
    CheckConstraint("state IN ('PENDING', 'RUNNING', 'PAUSED', 'RESUMED', 'TERMINATED')", name="state"),
    # A trial holds a lease if and only if it is on a worker.
    CheckConstraint("(state IN ('RUNNING', 'RESUMED')) = (lease_id IS NOT NULL)", name="lease"),
    # A trial is paused, and resumed, on a checkpoint.
    CheckConstraint("state NOT IN ('PAUSED', 'RESUMED') OR checkpoint IS NOT NULL", name="checkpoint"),
    # The best checkpoint is that of a best value.
    CheckConstraint("best_checkpoint IS NULL OR best_value IS NOT NULL", name="best_checkpoint"),
    # A trial on a worker is on its way somewhere.
    CheckConstraint("state NOT IN ('RUNNING', 'RESUMED') OR milestone IS NOT NULL", name="milestone"),
    # A trial that was placed has an attempt.
    CheckConstraint("state NOT IN ('RUNNING', 'RESUMED') OR attempt >= 1", name="placed"),
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
        text("(attempt = 0)"),
        "number",
        postgresql_where=text("state IN ('PENDING', 'PAUSED') AND milestone IS NOT NULL AND NOT user_paused"),
    ),
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
    # The decision that it was answered with, for a worker that asks again.
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
    # What was saved with the report: what another trial may be given (population-based training).
    Column("checkpoint", JSONB(none_as_null=True)),
    # What was measured on the way; only where the policy prices pauses.
    Column("cost", JSONB(none_as_null=True)),
    time_column("time", now=True),
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

# Who may call. Of a token its digest is stored, never the secret.
token = Table(
    "token",
    metadata,
    # The part of its text that is no secret.
    Column("id", Text, primary_key=True),
    # Tells the order in which tokens were made.
    Column("number", BigInteger, Identity(), nullable=False, unique=True),
    Column("name", Text, nullable=False, server_default=""),
    Column("digest", LargeBinary, nullable=False),
    Column("project", Text, nullable=False),
    Column("role", Text, nullable=False),
    time_column("create_time", now=True),
    # None: it never expires.
    time_column("expire_time"),
    time_column("revoke_time"),
    # To about ten minutes.
    time_column("last_used_time"),
    # A token has one of the four roles.
    CheckConstraint("role IN ('viewer', 'editor', 'admin', 'worker')", name="role"),
    # What is stored is a SHA-256.
    CheckConstraint("octet_length(digest) = 32", name="digest"),
)

# What a program must know to go on beside the schema, by the migration that says so (`store.schema`).
schema_version = Table(
    "schema_version",
    metadata,
    Column("revision", Text, primary_key=True),
    Column("min_compatible", Text, nullable=False),
    time_column("time", now=True),
)

# Parts of logs, on their way from the replica that a worker is connected to, to the one that was asked. Nothing of it
# need outlast a crash.
log_read = Table(
    "log_read",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("worker_id", BigInteger, nullable=False),
    # The worker's request and its answer, as the contract's messages.
    Column("ask", LargeBinary, nullable=False),
    Column("chunk", LargeBinary),
    time_column("time", now=True),
    Index("log_read_worker", "worker_id", postgresql_where=text("chunk IS NULL")),
    Index("log_read_time", "time"),
    prefixes=["UNLOGGED"],
)

request = Table(
    "request",
    metadata,
    # An id counts within the project of its caller.
    Column("project", Text, primary_key=True, server_default=DEFAULT_PROJECT),
    Column("request_id", Text, primary_key=True),
    Column("method", Text, nullable=False),
    # Of the request without its id: the same id with other content is refused.
    Column("digest", LargeBinary, nullable=False),
    Column("response", LargeBinary, nullable=False),
    time_column("time", now=True),
    Index("request_time", "time"),
)

# What lets a worker join. Of its secret the SHA-256 is here.
join_token = Table(
    "join_token",
    metadata,
    Column("id", Text, primary_key=True),
    Column("digest", LargeBinary, nullable=False),
    # The one worker that may join with it; empty: any whose name is free.
    Column("worker", Text, nullable=False, server_default=""),
    Column("uses", Integer, nullable=False, server_default="1"),
    Column("used", Integer, nullable=False, server_default="0"),
    time_column("create_time", now=True),
    time_column("expire_time", nullable=False),
    time_column("revoke_time"),
    # No more workers join with a token than may.
    CheckConstraint("used BETWEEN 0 AND uses", name="uses"),
    Index("join_token_expire", "expire_time"),
)

# The workers that have a certificate, or had one.
joined_worker = Table(
    "joined_worker",
    metadata,
    Column("worker", Text, primary_key=True),
    # The token that it joined with, and the SHA-256 of its present key: a join that is repeated is known by both.
    Column("token_id", Text, nullable=False),
    Column("key_digest", LargeBinary, nullable=False),
    time_column("join_time", now=True),
    # The end of the last certificate that it got.
    time_column("certificate_until", nullable=False),
    # Certificates that were signed until then are refused.
    time_column("revoke_time"),
    Index("joined_worker_until", "certificate_until"),
)

# Studies that users deleted, by which workers know that their folders may go. A folder whose study nobody knows stays:
# it may be another cluster's.
tombstone = Table(
    "tombstone",
    metadata,
    Column("uid", Text, primary_key=True),
    Column("folder", Text, nullable=False),
    time_column("time", now=True),
    Index("tombstone_time", "time"),
)

# Which database this is, by what Postgres says of it. A copy that was restored says something else.
lineage = Table(
    "lineage",
    metadata,
    Column("id", Integer, primary_key=True, server_default="1"),
    # Empty until a scheduler first starts on it.
    Column("fingerprint", Text, nullable=False, server_default=""),
    Column("restores", BigInteger, nullable=False, server_default="0"),
    # Proves leases: a worker cannot invent one. A copy has it too.
    Column(
        "secret",
        LargeBinary,
        nullable=False,
        server_default=text("uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())"),
    ),
    time_column("time", now=True),
    # There is one row.
    CheckConstraint("id = 1", name="one"),
)

code = Table(
    "code",
    metadata,
    # The SHA-256 of its manifest.
    Column("digest", Text, primary_key=True),
    Column("size_bytes", BigInteger, nullable=False),
    time_column("create_time", now=True),
    # When somebody asked for it last, to create a study with it.
    time_column("use_time", now=True),
    CheckConstraint("digest ~ '^[0-9a-f]{64}$'", name="digest"),
    Index("code_used", "use_time"),
)

# The projects that shipped a code. For every other project it is not there, though there is one copy for all.
code_project = Table(
    "code_project",
    metadata,
    Column("digest", Text, ForeignKey("code.digest", ondelete="CASCADE"), primary_key=True),
    Column("project", Text, primary_key=True),
)

code_chunk = Table(
    "code_chunk",
    metadata,
    Column("digest", Text, ForeignKey("code.digest", ondelete="CASCADE"), primary_key=True),
    # Counts from 0 without gaps.
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("data", LargeBinary, nullable=False),
    # A chunk fits into a message.
    CheckConstraint("octet_length(data) BETWEEN 1 AND 1048576", name="size"),
)
