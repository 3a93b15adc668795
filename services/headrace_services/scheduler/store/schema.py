"""The version of the database's schema, and which programs may work with it.

A schema's version is its newest migration. Each migration names `min_compatible`: the version that a program must
know at least to continue with it; the default is its own version. The table `schema_version` stores that for
programs that do not know the migration. So a program that is older than the database's schema knows whether it may
continue.

Advisory locks show which programs use a schema. They end with their connection whatever happens:

- A replica holds a shared lock whose key is the version that its program knows.
- A migration to a schema that needs a newer program holds another one, whose key is the version that is needed. It
  waits until no replica with an older version is left, and only then changes anything.

A replica takes its lock before it looks, and a migration before it counts. So neither misses the other.
"""

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import psycopg

from headrace.errors import HeadraceError

CHANNEL = "headrace_schema"
"""Notifies replicas that the schema changes."""
IN_USE = 0x48725565
"""The class of the advisory locks of replicas."""
CHANGING = 0x48724368
"""The class of the advisory lock of a migration."""


class SchemaError(HeadraceError):
    """The program does not fit the database's schema."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """A step of the schema."""

    revision: str
    min_compatible: str
    """The version that a program must know to continue with it."""
    words: str
    """What it does, in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The state of a database's schema."""

    revision: str
    """Its newest migration; empty if there is none."""
    needed: str
    """The version that a program must know; empty if any may continue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """A replica that uses the schema."""

    name: str
    revision: str
    """The version that its program knows."""


MIGRATIONS = Path(__file__).parent / "migrations"


def migrations() -> tuple[Migration, ...]:
    """All migrations that this program knows, oldest first. Their numbers ascend."""
    return _migrations_in(MIGRATIONS)


@cache
def _migrations_in(folder: Path) -> tuple[Migration, ...]:
    """Read the files without running them: a program on an up-to-date schema does not need Alembic, which is slow
    to import."""
    files = sorted((folder / "versions").glob("*.py"))
    return tuple(_read(ast.parse(file.read_text(encoding="utf-8"))) for file in files)


def _read(script: ast.Module) -> Migration:
    said = {
        target.id: node.value.value
        for node in script.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    revision = str(said["revision"])
    return Migration(
        revision=revision,
        min_compatible=str(said.get("min_compatible", revision)),
        words=(ast.get_docstring(script) or "").partition("\n")[0],
    )


def head() -> str:
    """The version that this program knows."""
    return migrations()[-1].revision


UPDATE: Final = (
    "Update this program to the release that migrated the database. There is none where a version from before 0.1.0 "
    "made it: then start with an empty database."
)


def pending(standing: Standing) -> list[Migration]:
    """The migrations that a database lacks. Raises SchemaError if it needs a newer program."""
    if reason := too_old(standing, head()):
        raise SchemaError(reason, remedy=UPDATE)
    return [one for one in migrations() if number(one.revision) > number(standing.revision)]


def too_old(standing: Standing, ours: str) -> str:
    """Why a program of version `ours` may not use the schema; empty if it may."""
    if number(standing.needed) <= number(ours):
        return ""
    return (
        f"the database's schema is {standing.revision}, which needs programs that know {standing.needed}, "
        f"and this one knows {ours}"
    )


def number(revision: str) -> int:
    """The position of a version among all; 0 for none."""
    return int(revision) if revision.isdecimal() else 0


Connection = psycopg.AsyncConnection[Any]


async def read(conn: Connection) -> Standing:
    """Read the state of the schema."""
    cursor = await conn.execute("SELECT to_regclass('schema_version') IS NOT NULL")
    if (await cursor.fetchone()) != (True,):
        return Standing(revision="", needed="")
    cursor = await conn.execute(
        "SELECT version_num, (SELECT max(min_compatible) FROM schema_version) FROM alembic_version"
    )
    row = await cursor.fetchone()
    assert row is not None, "a migration writes both tables in one transaction"
    return Standing(revision=str(row[0]), needed=str(row[1]))


async def announced(conn: Connection, ours: str) -> str:
    """Why a program of version `ours` must exit: a migration that needs a newer one is waiting. Empty if there is
    none."""
    needed = [lock for lock, _ in await _holders(conn, CHANGING) if lock > number(ours)]
    if not needed:
        return ""
    return f"a migration waits that needs programs which know {max(needed):04d}, and this one knows {ours}"


async def replicas(conn: Connection, *, before: str | None = None) -> list[Replica]:
    """The replicas that use the schema; with `before` only those whose version is older."""
    found = await _holders(conn, IN_USE)
    most = None if before is None else number(before)
    return [Replica(name=name, revision=f"{lock:04d}") for lock, name in found if most is None or lock < most]


async def use(conn: Connection, ours: str) -> None:
    """Show, as long as the connection lasts, that a program of this version uses the schema."""
    await conn.execute("SELECT pg_advisory_lock_shared(%s::int, %s::int)", (IN_USE, number(ours)))


async def announce(conn: Connection, needed: str) -> None:
    """Show, as long as the connection lasts, that a migration is waiting, and notify the replicas."""
    await conn.execute("SELECT pg_advisory_lock_shared(%s::int, %s::int)", (CHANGING, number(needed)))
    await conn.execute("SELECT pg_notify(%s, %s)", (CHANNEL, needed))


async def _holders(conn: Connection, kind: int) -> list[tuple[int, str]]:
    cursor = await conn.execute(
        "SELECT l.objid::bigint, coalesce(a.application_name, '') FROM pg_locks AS l"
        " LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid"
        " WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 2 AND l.classid = %s::bigint::oid"
        " AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        " ORDER BY 1, 2",
        (kind,),
    )
    return [(int(row[0]), str(row[1])) for row in await cursor.fetchall()]
