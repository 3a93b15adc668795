"""Projects and studies: what users create."""

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
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSON, JSONB

from headrace.spec.names import DEFAULT_PROJECT
from headrace_services.scheduler.store.columns import read_of_studies, time_column
from headrace_services.scheduler.store.tables.base import metadata

# Within a project, studies refer to each other by name. NULL is no limit.
project = Table(
    "project",
    metadata,
    Column("name", Text, primary_key=True),
    # The most slots that its studies may hold at once, without ephemeral ones. Cycles that place for a project
    # with such a quota lock its row.
    Column("slots", Integer),
    # The most unfinished studies.
    Column("studies", Integer),
    time_column("create_time", now=True),
    # The total size of its codes; NULL is the limit of all projects (`store/code`).
    Column("code_mib", Integer),
    CheckConstraint("slots >= 0", name="slots"),
    CheckConstraint("studies >= 0", name="studies"),
    CheckConstraint("code_mib >= 0", name="code_mib"),
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
    # JSON, not JSONB: numbers stay as they were written, so a float never becomes an integer.
    Column("spec", JSON, nullable=False),
    Column("cursor", BigInteger, nullable=False, server_default="0"),
    Column("next_number", BigInteger, nullable=False, server_default="0"),
    # How many configurations to try, counted when it is created.
    Column("planned", BigInteger, nullable=False),
    # The name of the study that it waits for.
    Column("after", Text),
    # With `scale: auto`: what its pilot has chosen.
    Column("scale_choice", JSONB(none_as_null=True)),
    # For a gate: the key of what it checks.
    Column("checks", Text),
    # The digest of its program's folder, if that was shipped.
    Column("code", Text),
    # For each source file, the digests of the contents that attempts ran. JSON, not JSONB: files stay in the order
    # in which they arrived.
    Column("code_files", JSON, nullable=False, server_default="{}"),
    # How often its trials were reopened, or its spec changed: caches of another revision are void.
    Column("revision", BigInteger, nullable=False, server_default="0"),
    # The attempts of its trials are numbered above this: a restored database issues no number twice.
    Column("attempts_from", BigInteger, nullable=False, server_default="0"),
    # When a user deleted it: it can no longer be found, and its rows are removed in batches.
    time_column("delete_time"),
    # For each kind of data with an age limit: the end of the study for which it was deleted.
    Column("aged", JSONB, nullable=False, server_default="{}"),
    Column("sampled", BigInteger, nullable=False, server_default="0"),
    Column("reports", BigInteger, nullable=False, server_default="0"),
    Column("metric_seen", Boolean, nullable=False, server_default="false"),
    Column("early_failures", BigInteger, nullable=False, server_default="0"),
    # Parts of the spec for other studies' cycles to read, and the changing part of the study's place in the
    # cluster.
    Column("weight", Float, nullable=False, server_default="1"),
    Column("priority", Integer, nullable=False, server_default="0"),
    Column("standing", JSONB, nullable=False, server_default="{}"),
    # What users have noted on it.
    Column("tags", ARRAY(Text), nullable=False, server_default="{}"),
    Column("note", Text, nullable=False, server_default=""),
    *read_of_studies(),
    time_column("create_time", now=True),
    time_column("end_time"),
    # A study is in one of its five states.
    CheckConstraint("state IN ('ACTIVE', 'PAUSED', 'COMPLETED', 'STOPPED', 'FAILED')", name="state"),
    # A study has an end time if and only if it has ended.
    CheckConstraint("(state IN ('COMPLETED', 'STOPPED', 'FAILED')) = (end_time IS NOT NULL)", name="end"),
    # Only a study that has ended is deleted.
    CheckConstraint("delete_time IS NULL OR end_time IS NOT NULL", name="deleted"),
    CheckConstraint("weight > 0", name="weight"),
    # A name is unique within the project.
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
