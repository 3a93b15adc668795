"""The code of studies, as shipped by clients."""

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    Table,
    Text,
)

from headrace_services.scheduler.store.columns import time_column
from headrace_services.scheduler.store.tables.base import metadata

code = Table(
    "code",
    metadata,
    # The SHA-256 of its manifest.
    Column("digest", Text, primary_key=True),
    Column("size_bytes", BigInteger, nullable=False),
    time_column("create_time", now=True),
    # When a client last asked for it, to create a study with it.
    time_column("use_time", now=True),
    CheckConstraint("digest ~ '^[0-9a-f]{64}$'", name="digest"),
    Index("code_used", "use_time"),
)

# The projects that shipped a code. It is invisible to every other project, though it is stored once for all.
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
