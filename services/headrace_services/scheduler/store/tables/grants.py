"""Who holds what: grants of slots, leases of trials, which trials must leave, and bundle profiles."""

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
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from headrace_services.scheduler.store.columns import time_column
from headrace_services.scheduler.store.tables.base import metadata

# Slots held by one lease, or by several that share them. The trigger lease_begins counts the leases: there are
# never more live ones than seats.
slot_grant = Table(
    "slot_grant",
    metadata,
    # The id of its first lease.
    Column("id", Text, primary_key=True),
    Column("study_id", BigInteger, ForeignKey("study.id", ondelete="CASCADE"), nullable=False),
    # Over all its parts.
    Column("slot_count", Integer, nullable=False),
    # Thousandths of each slot, and its memory budget if that is not the whole slot's memory.
    Column("milli", Integer, nullable=False, server_default="1000"),
    Column("memory_bytes", BigInteger, nullable=False, server_default="0"),
    # The device model, by which speed is learned.
    Column("model", Text, nullable=False, server_default=""),
    # How many live leases it may have, what their trials have in common, and whether it accepts no more.
    Column("seats", Integer, nullable=False, server_default="1"),
    Column("key", Text, nullable=False, server_default=""),
    Column("closed", Boolean, nullable=False, server_default="false"),
    # The stage in whose bubbles its trials work; empty for ordinary slots.
    Column("bubbles", Text, nullable=False, server_default=""),
    Column("live", Boolean, nullable=False, server_default="true"),
    time_column("grant_time", now=True),
    time_column("end_time"),
    CheckConstraint("live = (end_time IS NULL)", name="end"),
    CheckConstraint("slot_count >= 1", name="slots"),
    # A bundle is on one slot.
    CheckConstraint("seats = 1 OR (seats > 1 AND slot_count = 1)", name="seats"),
    # Only a bundle accepts further trials, so only a bundle can be closed.
    CheckConstraint("NOT closed OR seats > 1", name="closed"),
    # A grant of several slots has them whole.
    CheckConstraint("milli = 1000 OR (milli BETWEEN 1 AND 999 AND slot_count = 1)", name="milli"),
    # In bubbles it has one slot, which is whole.
    CheckConstraint("bubbles = '' OR (slot_count = 1 AND milli = 1000)", name="bubbles"),
    Index("slot_grant_study", "study_id"),
    Index("slot_grant_open", "study_id", postgresql_where=text("live AND seats > 1 AND NOT closed")),
)

grant_part = Table(
    "grant_part",
    metadata,
    Column("grant_id", Text, ForeignKey("slot_grant.id", ondelete="CASCADE"), primary_key=True),
    # A grant has at most one part on a worker.
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
    # The full budget that the attempt was given: it may have grown since.
    Column("budget", BigInteger),
    # What ended it: an action of the lifecycle, or `lapse`, after which a client's lease may come back (the
    # trigger lease_comes_back).
    Column("ended", Text, nullable=False, server_default=""),
    time_column("grant_time", now=True),
    time_column("expires_at"),
    time_column("end_time"),
    ForeignKeyConstraint(["study_id", "number"], ["trial.study_id", "trial.number"], ondelete="CASCADE"),
    # A worker speaks for a lease only if the grant has a part on it.
    ForeignKeyConstraint(["grant_id", "worker_id"], ["grant_part.grant_id", "grant_part.worker_id"]),
    # An attempt is granted only once.
    UniqueConstraint("study_id", "number", "attempt"),
    # A lease belongs to a worker or to a client, never to both.
    CheckConstraint("(worker_id IS NULL) <> (client_id = '')", name="holder"),
    # A client's lease expires by itself. A worker's lease expires with its worker, or by itself once the worker
    # does not name it.
    CheckConstraint("worker_id IS NOT NULL OR expires_at IS NOT NULL", name="expiry"),
    # A worker's lease has a grant, a client's has none.
    CheckConstraint("(worker_id IS NULL) = (grant_id IS NULL)", name="grant"),
    CheckConstraint("attempt >= 1", name="attempt"),
    CheckConstraint("live = (end_time IS NULL)", name="end"),
    # A live lease has not ended.
    CheckConstraint("NOT live OR ended = ''", name="ended"),
    # A trial has at most one live lease.
    Index("lease_live_trial", "study_id", "number", unique=True, postgresql_where=text("live")),
    Index("lease_live_worker", "worker_id", postgresql_where=text("live")),
    Index("lease_live_client", "expires_at", postgresql_where=text("live AND worker_id IS NULL")),
    Index("lease_live_grant", "grant_id", postgresql_where=text("live")),
    Index("lease_grant_ix", "grant_id", "worker_id"),
)

# Grants whose trials must leave their slots to others. Written by the cycles of other studies, without the lock of
# the grant's own study, which reads it with its row: a message between studies that share a cluster.
leave = Table(
    "leave",
    metadata,
    Column("grant_id", Text, ForeignKey("slot_grant.id", ondelete="CASCADE"), primary_key=True),
    # The study whose trials must leave, and the one that asks. None asks if an ephemeral slot's owner takes it
    # back, the worker is drained, or the device failed.
    Column("study_id", BigInteger, nullable=False),
    Column("for_study_id", BigInteger, ForeignKey("study.id", ondelete="CASCADE")),
    # At the next report with a checkpoint, if true; at the next rung, if false.
    Column("at_report", Boolean, nullable=False),
    Column("why", Text, nullable=False),
    Index("leave_study", "study_id"),
    Index("leave_for_study", "for_study_id"),
)

# What a study knows about its bundles: how many trials share a process on a kind of device. Read and written under
# the lock on the study.
bundle_profile = Table(
    "bundle_profile",
    metadata,
    Column("study_id", BigInteger, ForeignKey("study.id", ondelete="CASCADE"), primary_key=True),
    # The device's model.
    Column("device", Text, primary_key=True),
    # What the trials of a bundle have in common, and its digest: a key may be too long for an index.
    Column("digest", Text, primary_key=True),
    Column("key", Text, nullable=False),
    # By number of members: turns, the shortest time of one in seconds, the peak memory in bytes. The same for
    # turns before which trials joined or left.
    Column("steady", JSONB, nullable=False, server_default="{}"),
    Column("fresh", JSONB, nullable=False, server_default="{}"),
    # Half the members of the process that ran out of memory.
    Column("most", Integer),
    # How long the first step of a process and a later one took, in seconds, and with how many members.
    Column("first_step", JSONB),
    time_column("time", now=True),
    CheckConstraint("most >= 1", name="most"),
    Index("bundle_profile_time", "study_id", "time"),
)
