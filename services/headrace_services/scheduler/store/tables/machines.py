"""Workers and their devices: what exists, what keeps trials off, and how busy it is."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    Identity,
    Index,
    Integer,
    LargeBinary,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from headrace_services.scheduler.store.columns import time_column
from headrace_services.scheduler.store.tables.base import metadata

worker = Table(
    "worker",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("incarnation", Text, nullable=False),
    # Its machine, for users to see, and the home that its outbox is in.
    Column("host", Text, nullable=False, server_default=""),
    Column("home", Text, nullable=False, server_default=""),
    # What prevents it from working now, in its own words.
    Column("trouble", Text, nullable=False, server_default=""),
    # The rejected messages that it keeps, in its own words.
    Column("rejected", Text, nullable=False, server_default=""),
    # How its processes ran several trials, in its own words.
    Column("reused", Text, nullable=False, server_default=""),
    # How trials share its GPUs, in its own words.
    Column("mps", Text, nullable=False, server_default=""),
    # Counts the streams; only the newest one speaks for the worker.
    Column("session", BigInteger, nullable=False, server_default="0"),
    Column("connected", Boolean, nullable=False, server_default="false"),
    Column("labels", JSONB, nullable=False, server_default="{}"),
    Column("version", Text, nullable=False, server_default=""),
    Column("log_dir", Text, nullable=False, server_default=""),
    # The machine's cores; 0 if it did not report them.
    Column("cpus", Integer, nullable=False, server_default="0"),
    # From its last session; absent if it needs no certificate.
    time_column("certificate_until"),
    time_column("session_time", now=True),
    time_column("last_seen", now=True),
    # The worker's leases live until then, by the database's clock.
    time_column("expires_at", now=True),
    # A user's wish: nothing new is placed on it (CORDON), or its trials move elsewhere too (DRAIN). Then the
    # reason, since when, how long they have (NULL: as long as they take), and the incarnation that it was asked
    # of.
    Column("hold", Text, nullable=False, server_default=""),
    Column("hold_why", Text, nullable=False, server_default=""),
    time_column("hold_time"),
    Column("hold_grace_s", Float),
    Column("hold_incarnation", Text, nullable=False, server_default=""),
    # Why its daemon leaves, in its own words; empty if it does not.
    Column("leaving", Text, nullable=False, server_default=""),
    # The name of the lock that its daemon holds on its home, which no copy of the home has.
    Column("home_lock", Text, nullable=False, server_default=""),
    # How many attempts in a row did not reach their programs, why and when the last one did not, and until when
    # the worker is suspended for it (`store.failed_starts`).
    Column("unreached", Integer, nullable=False, server_default="0"),
    Column("unreached_why", Text, nullable=False, server_default=""),
    time_column("unreached_time"),
    time_column("suspended_until"),
    CheckConstraint("(unreached = 0) = (unreached_time IS NULL)", name="unreached"),
    CheckConstraint("unreached > 0 OR suspended_until IS NULL", name="suspended"),
    CheckConstraint("hold IN ('', 'CORDON', 'DRAIN')", name="hold"),
    # A wish has a time.
    CheckConstraint("(hold = '') = (hold_time IS NULL)", name="hold_time"),
    CheckConstraint("hold = 'DRAIN' OR hold_grace_s IS NULL", name="hold_grace"),
    Index("worker_away", "last_seen", postgresql_where=text("NOT connected")),
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
    # The grant that occupies the device: at most one, by the shape of the table.
    Column("grant_id", Text, ForeignKey("slot_grant.id", deferrable=True, initially="DEFERRED")),
    # What grants that share the device hold: thousandths, and the sum of their memory budgets.
    Column("shared_milli", Integer, nullable=False, server_default="0"),
    Column("shared_memory_bytes", BigInteger, nullable=False, server_default="0"),
    # The device's share of its machine's cores.
    Column("cores", Float, nullable=False, server_default="0"),
    # Whether trials cannot share it.
    Column("unshared", Boolean, nullable=False, server_default="false"),
    # Its interconnect to the worker's device of each index (the API's LinkKind); empty if unknown.
    Column("links", ARRAY(Integer), nullable=False, server_default="{}"),
    # Whether the worker names it. A device that it no longer names stays until its grant ends.
    Column("offered", Boolean, nullable=False, server_default="true"),
    # Whether trials may be placed on it: it is offered and sound, and neither it nor its worker is held (computed
    # by `store.machines`).
    Column("present", Boolean, nullable=False, server_default="true"),
    # Why the device failed since the daemon's start, in its worker's words.
    Column("defect", Text, nullable=False, server_default=""),
    # The large job and its stage in whose bubbles the slot is available, and the share of its time that trials may
    # expect there. An ordinary slot has no owner.
    Column("owner", Text, nullable=False, server_default=""),
    Column("stage", Integer),
    Column("duty", Float),
    CheckConstraint("kind IN ('CPU', 'GPU')", name="kind"),
    # A device is never given out twice: it goes whole to one grant, or in parts that fit.
    CheckConstraint("shared_milli BETWEEN 0 AND 1000 AND shared_memory_bytes >= 0", name="parts"),
    CheckConstraint("grant_id IS NULL OR shared_milli = 0", name="whole"),
    # A slot is whole, shared or ephemeral: a slot of a large job is given out whole, in its bubbles.
    CheckConstraint("owner = '' OR shared_milli = 0", name="ephemeral"),
    # An ephemeral slot names its owner and its duty cycle, and no other slot does.
    CheckConstraint("(owner = '') = (stage IS NULL) AND (owner = '') = (duty IS NULL)", name="owner"),
    CheckConstraint("duty BETWEEN 0 AND 1", name="duty"),
    Index("slot_free", "worker_id", postgresql_where=text("grant_id IS NULL AND present")),
    Index("slot_grant_id", "grant_id", postgresql_where=text("grant_id IS NOT NULL")),
)

# Devices on which nothing starts until a user releases them: those that failed, and those that a user has
# cordoned. A row outlives the daemon, and follows the device to another machine.
cordon = Table(
    "cordon",
    metadata,
    # A GPU's uuid; for any other device its worker's name and its index (`store.machines`).
    Column("device", Text, primary_key=True),
    Column("reason", Text, nullable=False),
    # Whether the device failed; if not, a user asked for it.
    Column("quarantined", Boolean, nullable=False),
    time_column("time", now=True),
)

# A store of checkpoints, by the address that workers use.
checkpoint_store = Table(
    "checkpoint_store",
    metadata,
    Column("url", Text, primary_key=True),
    # The id that its marker must have.
    Column("id", Text, nullable=False),
    # Whether a worker has found that marker there.
    Column("seen", Boolean, nullable=False, server_default="false"),
    # The name of the worker that must make the marker.
    Column("maker", Text, nullable=False),
    time_column("create_time", now=True),
)

# How busy a device was in the last hour: one row for each minute, which replaces the one of an hour before.
slot_load = Table(
    "slot_load",
    metadata,
    Column("worker_id", BigInteger, ForeignKey("worker.id", ondelete="CASCADE"), primary_key=True),
    Column("index", Integer, primary_key=True),
    # The minute of the hour.
    Column("place", Integer, primary_key=True),
    time_column("minute", nullable=False),
    Column("samples", Integer, nullable=False),
    # The mean of the samples, from 0 to 1; null where the driver does not know it.
    Column("utilization", Float),
    # The maximum of the samples.
    Column("memory_used_bytes", BigInteger, nullable=False),
    CheckConstraint("place BETWEEN 0 AND 59", name="place"),
    CheckConstraint("samples >= 1", name="samples"),
)

# Parts of logs in transit from the replica that a worker is connected to, to the one that was asked. They need not
# survive a crash.
log_read = Table(
    "log_read",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("worker_id", BigInteger, nullable=False),
    # The worker's request and its answer, as messages of the API.
    Column("ask", LargeBinary, nullable=False),
    Column("chunk", LargeBinary),
    time_column("time", now=True),
    Index("log_read_worker", "worker_id", postgresql_where=text("chunk IS NULL")),
    Index("log_read_time", "time"),
    prefixes=["UNLOGGED"],
)
