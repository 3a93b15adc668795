"""What keeps the database right: its schema, which one it is, requests that may come again, studies that are gone."""

from sqlalchemy import BigInteger, CheckConstraint, Column, Index, Integer, LargeBinary, Table, Text, text

from headrace.spec.names import DEFAULT_PROJECT
from headrace_services.scheduler.store.columns import time_column
from headrace_services.scheduler.store.tables.base import metadata

# What a program must know to go on beside the schema, by the migration that says so (`store.schema`).
schema_version = Table(
    "schema_version",
    metadata,
    Column("revision", Text, primary_key=True),
    Column("min_compatible", Text, nullable=False),
    time_column("time", now=True),
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
