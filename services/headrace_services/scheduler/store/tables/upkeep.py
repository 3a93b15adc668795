"""What keeps the database consistent: its schema, its identity, answers to repeated requests, deleted studies."""

from sqlalchemy import BigInteger, CheckConstraint, Column, Index, Integer, LargeBinary, Table, Text, text

from headrace.spec.names import DEFAULT_PROJECT
from headrace_services.scheduler.store.columns import time_column
from headrace_services.scheduler.store.tables.base import metadata

# What a program must know to continue with the schema, as each migration declares it (`store.schema`).
schema_version = Table(
    "schema_version",
    metadata,
    Column("revision", Text, primary_key=True),
    Column("min_compatible", Text, nullable=False),
    time_column("time", now=True),
)

# The identity of this database, by what Postgres reports about it. A restored copy reports something else.
lineage = Table(
    "lineage",
    metadata,
    Column("id", Integer, primary_key=True, server_default="1"),
    # Empty until a scheduler first starts on it.
    Column("fingerprint", Text, nullable=False, server_default=""),
    Column("restores", BigInteger, nullable=False, server_default="0"),
    # Proves leases: a worker cannot forge one. A copy has it too.
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

request = Table(
    "request",
    metadata,
    # An id is unique within the project of its caller.
    Column("project", Text, primary_key=True, server_default=DEFAULT_PROJECT),
    Column("request_id", Text, primary_key=True),
    Column("method", Text, nullable=False),
    # Of the request without its id: the same id with different content is refused.
    Column("digest", LargeBinary, nullable=False),
    Column("response", LargeBinary, nullable=False),
    time_column("time", now=True),
    Index("request_time", "time"),
)

# Studies that users deleted, from which workers learn that their folders may be deleted. A folder of an unknown
# study stays: it may be another cluster's.
tombstone = Table(
    "tombstone",
    metadata,
    Column("uid", Text, primary_key=True),
    Column("folder", Text, nullable=False),
    time_column("time", now=True),
    Index("tombstone_time", "time"),
)
