"""Who may call: users' tokens, and workers that have joined."""

from sqlalchemy import BigInteger, CheckConstraint, Column, Identity, Index, Integer, LargeBinary, Table, Text

from headrace_services.scheduler.store.columns import time_column
from headrace_services.scheduler.store.tables.base import metadata

# Who may call. The digest of a token is stored, never the secret.
token = Table(
    "token",
    metadata,
    # The part of its text that is not secret.
    Column("id", Text, primary_key=True),
    # The order in which tokens were made.
    Column("number", BigInteger, Identity(), nullable=False, unique=True),
    Column("name", Text, nullable=False, server_default=""),
    Column("digest", LargeBinary, nullable=False),
    Column("project", Text, nullable=False),
    Column("role", Text, nullable=False),
    time_column("create_time", now=True),
    # None: it never expires.
    time_column("expire_time"),
    time_column("revoke_time"),
    # Accurate to about ten minutes.
    time_column("last_used_time"),
    # A token has one of the four roles.
    CheckConstraint("role IN ('viewer', 'editor', 'admin', 'worker')", name="role"),
    # The stored digest is a SHA-256.
    CheckConstraint("octet_length(digest) = 32", name="digest"),
)

# Join tokens of workers. The SHA-256 of the secret is stored.
join_token = Table(
    "join_token",
    metadata,
    Column("id", Text, primary_key=True),
    Column("digest", LargeBinary, nullable=False),
    # The only worker that may join with it; empty for any whose name is free.
    Column("worker", Text, nullable=False, server_default=""),
    Column("uses", Integer, nullable=False, server_default="1"),
    Column("used", Integer, nullable=False, server_default="0"),
    time_column("create_time", now=True),
    time_column("expire_time", nullable=False),
    time_column("revoke_time"),
    # A token admits no more workers than it may.
    CheckConstraint("used BETWEEN 0 AND uses", name="uses"),
    Index("join_token_expire", "expire_time"),
)

# The workers that have or had a certificate.
joined_worker = Table(
    "joined_worker",
    metadata,
    Column("worker", Text, primary_key=True),
    # The token that it joined with, and the SHA-256 of its present key: both identify a join that is repeated.
    Column("token_id", Text, nullable=False),
    Column("key_digest", LargeBinary, nullable=False),
    time_column("join_time", now=True),
    # When the last of all its certificates ends. An earlier one may last longer than a later one.
    time_column("certificate_until", nullable=False),
    # Certificates signed up to then are refused.
    time_column("revoke_time"),
    Index("joined_worker_until", "certificate_until"),
)
