"""Who may call: tokens of people, and workers that have joined."""

from sqlalchemy import BigInteger, CheckConstraint, Column, Identity, Index, Integer, LargeBinary, Table, Text

from headrace_services.scheduler.store.columns import time_column
from headrace_services.scheduler.store.tables.base import metadata

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
    # When the last one of all its certificates ends. An earlier one may last longer than a later one.
    time_column("certificate_until", nullable=False),
    # Certificates that were signed until then are refused.
    time_column("revoke_time"),
    Index("joined_worker_until", "certificate_until"),
)
